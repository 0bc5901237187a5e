"""One queue file and its edits in place. Each edit is proven before it is written.

An editor writes to the file without taking the queue's lock. So an edit has these steps, under the lock.
:meth:`QueueFile.session` does the first two, :meth:`QueueFile.commit` the others:

1. Open the file that is at the path now, and ask the kernel for a file lease. As long as it lasts, a program that opens
   or truncates the file waits. If another program has the file open, the kernel grants none. Then the edit is verified
   by reading it back, and only the few microseconds between proof and write remain unprotected.
2. Compare the file, and the number in it, with the ledger's last line. If they differ, another program has changed the
   file: ``textqueue.editing.reconcile``. If another program has the file open and has changed it a moment ago, it may
   be saving: then nothing is written.
3. Prove that the message has not moved: a line begins at its position, with its bytes. Otherwise search the whole file.
   If the message is not there, raise ``MessageMovedError`` and write nothing.
4. Write one control byte, or a variable in its reserved space. The length of the file does not change. Then write the
   number of the change (``textqueue.format.generation``).
5. Compare the path again. If an editor has put another file there, begin again with that file.
6. Append a line with the new state of the file to the ledger. If another program may have written to the file during
   the edit, the line says that the state is not known, and the next session examines the file.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from sej.errors import ClosedError
from sej.fork import notice_fork, watch_forks
from sej.system.disk import Disk, File, Status, is_full
from sej.system.locks import end_file_lease, has_file_lease
from textqueue.editing.reconcile import begin, reconcile, shifted
from textqueue.editing.tq_file import Conflict, OnRevert, TqFile
from textqueue.errors import MessageMovedError
from textqueue.format.generation import DIGITS, Generation, line_for, number_text, strays_in
from textqueue.format.windows import Token, scan, token_of, unknown
from textqueue.ledger.log import Line
from textqueue.ledger.sidecar import interrupted

MOMENT_S: Final = 0.000_3
"""Without a file lease, another program may have written to the file during an edit that took longer than this."""
SAVING_S: Final = 2.0
"""A program that has the file open, and has changed it within this time, may be in the middle of a save."""
_LOOK_S: Final = 0.1
_LOOKS: Final = 8
_HEAD_BYTES: Final = 1 << 16


class Session(NamedTuple):
    """The file while the lock is held.

    Attributes:
        file: the file, open for editing.
        status: the state of the file when the lock was taken.
        alone: whether this process has the file lease, so that no other process can open the file.
        known: whether the ledger has the correct positions for that state.
        busy: whether another program may be in the middle of a save, so that nothing may be written.
    """

    file: File
    status: Status
    alone: bool
    known: bool
    busy: bool = False

    def still(self) -> bool:
        """Return whether the file has not changed since the lock was taken. Call it before anything is written."""
        return (self.alone and has_file_lease(self.file)) or (
            self.known and token_of(self.file.status()) == token_of(self.status)
        )


class Edit(Protocol):
    """An edit that is written within a session.

    Attributes:
        last: position and bytes of the last message; None: nothing was done.
        wrote: whether the file was changed, so that the change has a number.
    """

    last: tuple[int, bytes] | None
    wrote: bool

    def prove(self, session: Session) -> bool:
        """Find the messages, and return whether the edit can be written."""

    def write(self, session: Session) -> bool:
        """Write, and return True; False if another program wrote in between, so that a part is missing."""

    def lines(self) -> Sequence[Line]:
        """Return the lines of the edit for the ledger."""


class Opening:
    """The context manager of a session. It is not a generator, because it takes most of the time of a single mark."""

    __slots__ = ("_file", "_queue")

    def __init__(self, queue: QueueFile) -> None:
        """Store the queue file; nothing is opened yet."""
        self._queue = queue
        self._file: File | None = None

    def __enter__(self) -> Session:
        """Take the lock, and the file lease if the kernel grants it."""
        queue = self._queue
        queue.check_open()
        queue.guard.__enter__()
        try:
            queue.thread = threading.get_ident()
            queue.refresh()
            while True:
                self._file = file = queue.disk.open(queue.sidecars.real_path, "edit")
                if (session := queue.begin(file)) is not None:
                    return session
                file.close()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError) and error.errno == errno.ELOOP and queue.sidecars.have_moved():
                queue.guard.close()  # the path has become a link: another lock is in use
                return self.__enter__()
            raise

    def __exit__(self, *_: object) -> None:
        """Close the file, and release the lock."""
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._queue.thread = 0
            self._queue.guard.__exit__()


class QueueFile(TqFile):
    """A ``.tq`` file whose edits are proven.

    Attributes:
        thread: the thread that has a session; 0: none.
        known: whether the ledger has the correct positions, in this session.
    """

    def __init__(self, path: str, *, disk: Disk, on_revert: OnRevert, conflicts: list[Conflict]) -> None:
        """Create the object; no file is opened."""
        super().__init__(path, disk=disk, on_revert=on_revert, conflicts=conflicts)
        self.thread = 0
        self.known = False
        self._closed = False
        self._looked = 0.0
        watch_forks(self)

    def session(self) -> Opening:
        """Return a context manager that takes the lock, and brings the ledger in line with the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return Opening(self)

    def begin(self, file: File) -> Session | None:
        """Take the file lease. Foreign changes are reconciled without it, so that no editor waits for that.

        Returns:
            The session; None: the file was replaced.
        """
        if self.ledger.is_wasteful():
            self._compact()
        looks = 0
        begun: Token | None = None  # the state that a new ledger began with
        while True:
            alone = self.exclusive.take(file)
            status = file.status()
            new = not self.ledger.epoch
            self.known = begun == token_of(status) if new else self._ours(file, status)
            if self.known:
                session = Session(file, status, alone, True)
                late = alone and self.ledger.late >= 0
                return None if late and self.add_line(session) else session
            busy = not alone and abs(time.time_ns() - status.mtime_ns) < SAVING_S * 1e9
            if busy or looks == _LOOKS:  # another program changes the file all the time
                return Session(file, status, alone, known=False, busy=busy)
            looks += 1
            end_file_lease(file)
            if new:
                begun = begin(self, file)
            elif reconcile(self, file, alone=alone):
                return None

    def commit(self, session: Session, edit: Edit) -> bool:
        """Prove an edit, write it and log it. All changes of messages are made here.

        Args:
            session: the file, under the lock.
            edit: the edit.

        Returns:
            Whether the whole edit is in the file at the path. If not, the caller tries again.

        Raises:
            MessageMovedError: a message was changed or removed since it was read; nothing was written.
        """
        if session.busy:
            return False
        file, alone = session.file, session.alone
        try:
            proven = edit.prove(session)
        except MessageMovedError:
            if session.still():
                raise
            return False  # another program has changed the file since the lock was taken
        if alone and not has_file_lease(
            file
        ):  # another process waits, or has opened the file while this one was stopped
            session = session._replace(alone=False)
            proven = edit.prove(session)
        if not proven:
            return False
        began, still = time.monotonic(), session.alone or session.still()
        whole = edit.write(session)
        if edit.last is None:
            return whole
        ledger = self.ledger
        at, number = ledger.generation
        still = still and (session.alone or self._has_number(file, ledger.generation))
        if edit.wrote:
            number += 1
            if at >= 0 and session.known and still:
                file.write_at(number_text(number), at)
        there = self.disk.status(self.path)
        if whole and (there is None or there.identity != session.status.identity):
            return False
        # A foreign change at this moment must not be taken for a part of this edit. If there was time for one, the
        # ledger gets no state of the file, so that the next session reconciles. So it does if this session could not
        # reconcile. If a file lease that another process waits for can still be released, it was valid until now.
        exclusive = whole and (session.alone or (alone and end_file_lease(file)))
        ours = session.known and (exclusive or (whole and still and time.monotonic() - began < MOMENT_S))
        token = token_of(there) if ours and there is not None else unknown(token_of(session.status))
        ledger.append(edit.lines(), token, number)
        return whole

    def add_line(self, session: Session) -> bool:
        """Add the line with the number at the top, if this is possible; return whether the file was replaced.

        It is possible if the file has no other name, which would keep the old content, and no other program has it
        open. Otherwise, that program may have read it, and save it later: the next session adds the line, or finds out
        that the save is older than the claim.
        """
        ledger, before = self.ledger, token_of(session.status)
        if ledger.generation.position >= 0 or session.status.links > 1:
            return False
        if not session.alone:
            if not ledger.lined and ledger.late < 0:
                ledger.late = ledger.generation.number
                ledger.state(before)
            return False
        if token_of(session.file.status()) != before:
            return False
        number = ledger.generation.number
        end_file_lease(session.file)
        mark, line, at = line_for(session.file.read(_HEAD_BYTES, 0), number)
        windows = scan(session.file) if ledger.lined else ()
        strays = [(start, size) for one in windows for start, size, _ in strays_in(one.data, one.position)]
        after = self.replace(session.file, before, strays, (len(mark), mark + line))
        if after is not None:
            grown = after[1] - before[1]
            claims = [
                one._replace(position=shifted(one.position, strays) + len(line)) if one.position >= 0 else one
                for one in ledger.claims.values()
            ]
            _, size, changed_ns = ledger.foreign if ledger.epoch else before
            foreign = after[0], size + grown, changed_ns
            ledger.begin(claims, after, Generation(at, number), foreign=foreign)
        return after is not None

    def _compact(self) -> None:
        """Shorten the ledger. A full disk does not fail the edit that follows."""
        try:
            self.ledger.compact()
        except OSError as error:
            if not is_full(error):
                raise

    def epoch_of(self, status: Status) -> int:
        """Return the epoch for a file in this state; -1 if another program may have changed it."""
        with self.threads:
            self.refresh()
            return self.ledger.epoch if self.ledger.token == token_of(status) and self.ledger.epoch else -1

    def check_open(self) -> None:
        """Check that the queue is open, and that this is not a signal handler that interrupted a session.

        Such a handler would wait for a file lease of its own process.

        Raises:
            ClosedError: the queue was closed.
            FileInUseError: this is such a handler.
        """
        if self._closed:
            raise ClosedError("this queue was closed; reopen it", path=self.path)
        if self.thread == threading.get_ident():
            raise interrupted(self.path)

    def close(self) -> None:
        """Close the files. The object cannot be reopened."""
        with self.threads:
            self._closed = True
            self.guard.close()
            self.ledger.close()

    # Changes by other processes

    def _after_fork(self) -> None:
        """In a forked child, read the ledger again: the parent may have been about to change what was read."""
        self.ledger.close()

    def refresh(self) -> None:
        """Apply what other processes wrote into the ledger. The caller holds the lock."""
        notice_fork()
        now = time.monotonic()
        look = now - self._looked > _LOOK_S
        if look:
            self._looked = now
            if not self.guard.is_open:  # otherwise the names cannot change
                self.sidecars.look()
        path = self.sidecars.path(".log")
        if path != self.ledger.path:
            self.ledger.close()
            self.ledger.path = path
        self.ledger.refresh(look=look)

    def _ours(self, file: File, status: Status) -> bool:
        """Return whether the file is in the state of the ledger's last line, with the number of the last change.

        The number finds an old buffer that was saved within the same tick of the clock.
        """
        return self.ledger.token == token_of(status) and self._has_number(file, self.ledger.generation)

    def _has_number(self, file: File, generation: Generation) -> bool:
        at, number = generation
        return at < 0 or file.read(DIGITS, at) == number_text(number)
