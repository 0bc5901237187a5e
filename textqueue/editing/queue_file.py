"""One queue file and its edits in place. Each edit is proven before it is written.

An editor writes to the file without taking the queue's lock. So an edit has these steps, under the lock.
:meth:`QueueFile.session` does the first two, :meth:`QueueFile.commit` the others:

1. Open the file that is at the path now, and ask the kernel for a lease. During a lease, a program that opens or
   truncates the file waits. If another program has the file open, the kernel grants no lease. Then the edit is verified
   by reading it back, and only the few microseconds between proof and write remain unprotected.
2. Compare the file with the state in the ledger's last line. If it differs, another program has changed the file:
   ``textqueue.editing.reconcile`` finds the lines that moved and the marks that an old buffer reverted.
3. Prove that the message has not moved: a line begins at its position, with its bytes. Otherwise search the whole file.
   If the message is not there, raise ``MessageMovedError`` and write nothing.
4. Write one control byte, or a variable in its reserved space. The length of the file does not change.
5. Compare the path again. If an editor has put another file there, begin again with that file.
6. Append a line with the new state of the file to the ledger. If another program may have written to the file during
   the edit, the line says that the state is not known, and the next session examines the file. If another program had
   the file open, the line has a note of it, because that program may have been in the middle of reading or saving.

**Exclusive access** during an edit, also against programs that do not use the lock: The kernel grants a lease
(``sej.system.locks.lease``) only if no other process has the file open. An editor that is saving has it open for a
moment, so an edit waits for it briefly. Another program may have it open for hours, so after a failed wait, edits do
not wait again for a while.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Final, NamedTuple, Protocol

from sej.errors import ClosedError
from sej.system.disk import Disk, File, Status, is_full
from sej.system.locks import end_lease, leasable, lease, leased
from sej.system.logs import WARNING, record
from textqueue.editing.conflicts import Conflict
from textqueue.editing.proof import entry_at
from textqueue.editing.reconcile import OnRevert, reconcile
from textqueue.format.mutex import holder_of
from textqueue.format.parser import digest, essence, value_of
from textqueue.format.windows import Token, shared, token_of, unknown
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import GIVEN_BACK, IN_MUTEX, MARKS, Record
from textqueue.ledger.sidecar import Guard, Sidecars, interrupted

_LEASE_WAIT_S: Final = 0.02
"""How long an edit waits for a program that has the file open."""
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After a failed wait: how long edits do not wait again. It doubles each time."""
_PAUSE_S: Final = 0.000_2


class Exclusive:
    """Takes leases, and remembers failed waits."""

    def __init__(self) -> None:
        """Begin without a failed wait."""
        self._backoff_until = 0.0
        self._backoff_s = _BACKOFF_FIRST_S

    def take(self, file: File) -> bool:
        """Take a lease, and return whether it was granted. It ends when the file is closed."""
        if lease(file):
            self._backoff_s = _BACKOFF_FIRST_S
            return True
        now = time.monotonic()
        if now < self._backoff_until or not leasable(file):
            return False
        while time.monotonic() - now < _LEASE_WAIT_S:
            time.sleep(_PAUSE_S)
            if lease(file):
                return True
        self._backoff_until = time.monotonic() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)
        return False


MOMENT_S: Final = 0.000_3
"""Without a lease, another program may have written to the file during an edit that took longer than this."""

_LOOK_S: Final = 0.1
_LOOKS: Final = 8


class Session(NamedTuple):
    """The file while the lock is held.

    Attributes:
        file: the file, open for editing.
        status: the state of the file when the lock was taken.
        alone: whether this process has the lease, so that no other process can open the file.
        known: whether the ledger has the correct positions for that state.
    """

    file: File
    status: Status
    alone: bool
    known: bool

    def still(self) -> bool:
        """Return whether the file has not changed since the lock was taken. Call it before anything is written."""
        return (self.alone and leased(self.file)) or (
            self.known and token_of(self.file.status()) == token_of(self.status)
        )


class Edit(Protocol):
    """An edit that is written within a session.

    Attributes:
        last: position and bytes of the last written message; None: nothing was written.
    """

    last: tuple[int, bytes] | None

    def prove(self, session: Session) -> bool:
        """Find the messages, and return whether the edit can be written."""

    def write(self, session: Session) -> bool:
        """Write, and return True; False if another program wrote in between, so that a part is missing."""

    def log(self, ledger: Ledger, token: Token) -> None:
        """Append the lines of the edit to the ledger. The token is the state of the file after the edit."""


class Opening:
    """The context manager of a session. It is not a generator, because it takes most of the time of a single mark."""

    __slots__ = ("_file", "_queue")

    def __init__(self, queue: QueueFile) -> None:
        """Store the queue file; nothing is opened yet."""
        self._queue = queue
        self._file: File | None = None

    def __enter__(self) -> Session:
        """Take the lock, and the lease if the kernel grants it."""
        queue = self._queue
        queue.check_open()
        queue.guard.__enter__()
        try:
            queue.thread = threading.get_ident()
            queue.refresh()
            self._file = file = queue.disk.open(queue.real_path, "edit")
            return queue.begin(file)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Close the file, and release the lock."""
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._queue.thread = 0
            self._queue.guard.__exit__()


class QueueFile:
    """One ``.tq`` file, its lock and its ledger.

    Attributes:
        path: the path as the caller passed it.
        sidecars: the names of the files next to it.
        threads: the lock between threads that protects this object.
        thread: the thread that has a session; 0: none.
        known: whether the ledger has the correct positions, in this session.
    """

    def __init__(self, path: str, *, disk: Disk, on_revert: OnRevert, conflicts: list[Conflict]) -> None:
        """Create the object; no file is opened."""
        self.path = path
        self.disk = disk
        self.conflicts = conflicts
        self.sidecars = Sidecars(path, disk=disk, queue=path)
        self.guard = Guard(self.sidecars, disk=disk)
        self.threads = self.guard.threads
        self.ledger = Ledger(self.sidecars.path(".log"), disk=disk, queue=path)
        self.exclusive = Exclusive()
        self.thread = 0
        self.known = False
        self._on_revert: OnRevert = on_revert
        self._closed = False
        self._looked = 0.0
        self._pid = os.getpid()

    @property
    def real_path(self) -> str:
        """The path of the real file, if path is a symbolic link. It can change between two sessions only."""
        return self.sidecars.real_path

    def session(self) -> Opening:
        """Return a context manager that takes the lock, and brings the ledger in line with the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return Opening(self)

    def begin(self, file: File) -> Session:
        """Take the lease. Foreign changes are reconciled without it, so that no editor waits for that."""
        if self.ledger.is_wasteful(file.size()):
            if self.ledger.epochs > 1:
                self._reconcile(file, whole=True)
            else:
                self._compact()
        looks = 0
        while True:
            alone = self.exclusive.take(file)
            status = file.status()
            self.ledger.found = token_of(status)
            self.known = self._ours(file, status)
            if self.known or looks == _LOOKS:  # otherwise another program changes the file all the time
                return Session(file, status, alone, self.known)
            looks += 1
            end_lease(file)
            self._reconcile(file)

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
        alone = session.alone
        proven = edit.prove(session)
        if alone and not leased(
            session.file
        ):  # another process waits, or has opened the file while this one was stopped
            session = session._replace(alone=False)
            proven = edit.prove(session)
        if not proven:
            return False
        began, still, previous = time.monotonic(), session.alone or session.still(), self.ledger.last
        whole = edit.write(session)
        if edit.last is None:
            return whole
        kept = session.alone or previous is None or previous.position == edit.last[0] or _is_in(session.file, previous)
        there = self.disk.status(self.path)
        if whole and (there is None or there.identity != session.status.identity):
            return False
        # A foreign change at this moment must not be taken for a part of this edit. If there was time for one, or it
        # reverted the edit before, the ledger gets no state of the file, so that the next session reconciles. So it
        # does if this session could not reconcile. If a lease that another process waits for can still be released, it
        # was valid until now.
        exclusive = whole and (session.alone or (alone and end_lease(session.file)))
        ours = session.known and (exclusive or (whole and still and kept and time.monotonic() - began < MOMENT_S))
        token = token_of(there) if ours and there is not None else unknown(token_of(session.status))
        edit.log(self.ledger, token if exclusive or not ours else shared(token))
        return whole

    def _compact(self) -> None:
        """Shorten the ledger. A full disk does not fail the edit that follows."""
        try:
            self.ledger.compact()
        except OSError as error:
            if not is_full(error):
                raise

    def bring_in_line(self, file: File) -> None:
        """Find the current positions of all messages in the ledger. The caller holds the lock."""
        if self.ledger.epochs > 1:
            self._reconcile(file, whole=True)

    def epoch_of(self, status: Status) -> int:
        """Return the epoch for a file in this state; -1 if another program may have changed it."""
        with self.threads:
            self.refresh()
            return self.ledger.epoch if self.ledger.token == token_of(status) and self.ledger.epoch else -1

    def report(self, position: int, raw: bytes, kind: str, action: str) -> None:
        """Add a conflict."""
        self.note([Conflict(self.path, position, value_of(raw).decode("utf-8", "replace"), kind, action)])

    def note(self, conflicts: list[Conflict]) -> None:
        """Add conflicts, and log them."""
        self.conflicts += conflicts
        for conflict in conflicts:
            record(__name__, WARNING, "%s: position %d: %s: %s", *conflict[:2], *conflict[3:])

    def check_open(self) -> None:
        """Check that the queue is open, and that this is not a signal handler that interrupted a session.

        Such a handler would wait for a lease of its own process.

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

    def refresh(self) -> None:
        """Apply what other processes wrote into the ledger. The caller holds the lock."""
        now = time.monotonic()
        pid = os.getpid()
        if pid != self._pid:  # a forked child must not use the state of its parent
            self._pid = pid
            self.ledger.close()
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
        """Return whether the file is in the state of the ledger's last line, and its last edit is still in the file.

        The second check finds an old buffer that was saved within the same tick of the clock: if it reverts anything,
        it reverts the last edit.
        """
        token, last = self.ledger.token, self.ledger.last
        if token is None:
            return not self.ledger.lines
        return token == token_of(status) and (last is None or _is_in(file, last))

    def _reconcile(self, file: File, *, whole: bool = False) -> None:
        take = partial(self.exclusive.take, file)
        found = reconcile(self.ledger, file, take, path=self.path, on_revert=self._on_revert, whole=whole)
        self.note(found)


def _is_in(file: File, edit: Record) -> bool:
    """Return whether an edit is still in the file, at its position."""
    raw = entry_at(file, edit.position)
    if not raw or digest(essence(raw)) != edit.digest:
        return False
    if edit.kind in MARKS:  # a user may have changed it to another mark
        return raw[0] in MARKS
    if edit.kind == GIVEN_BACK:
        return raw[0] == GIVEN_BACK
    return edit.kind != IN_MUTEX or edit.holder == holder_of(raw)
