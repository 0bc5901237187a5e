"""One queue file and the edits in place that are proven before they are made.

A person with an editor is a writer who never takes the lock. So an edit goes like this, under the lock of ours
(:meth:`QueueFile.session` does the first two steps, :meth:`QueueFile.commit` the others):

1. Open the file that is at the path now, and ask the kernel for a lease: while it is held, a program that opens or
   truncates the file waits. Programs that keep the file open all the time make that impossible; then the edit is
   verified by reading it back, and the few microseconds between proof and write are the one window left.
2. If the file is not as our last edit left it, another program changed it: ``textqueue.editing.reconcile`` finds out
   what moved and which marks of ours a stale buffer took back.
3. Prove that the message stands where it was read: a line begins there and its bytes are the message's. Otherwise
   search the whole file for it. Not there as it was read: ``MessageMovedError``, and nothing is written.
4. Write: one control byte, or a variable in its own room. The length of the file never changes.
5. Look at the path again: if an editor has put another file there meanwhile, do it all again on that one.
6. Write a line into the ledger, which says how the file looks now.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Final, NamedTuple, Protocol

from sej.errors import ClosedError
from sej.system.disk import Disk, File, Status
from sej.system.locks import ask_for_file, end_lease, leased
from textqueue.editing.chain import Chain
from textqueue.editing.lease import Exclusive
from textqueue.editing.proof import entry_at
from textqueue.editing.reconcile import Conflict, OnRevert, reconcile
from textqueue.format.mutex import holder_of
from textqueue.format.parser import digest, value_of
from textqueue.format.windows import Token, token_of
from textqueue.hot import essence
from textqueue.ledger.lock import Guard
from textqueue.ledger.log import GIVEN_BACK, IN_MUTEX, MARKS, MARKS_KEPT, Ledger
from textqueue.ledger.sidecar import home
from textqueue.ledger.upgrade import upgrade

__all__ = ["MOMENT_S", "Edit", "Opening", "QueueFile", "Session"]

MOMENT_S: Final = 0.000_3
"""Without a lease: an edit that took longer was interrupted, and another program may have written meanwhile."""

_LOOK_S: Final = 0.1
_LOOKS: Final = 8
_NEAR_BYTES: Final = 1024
_NOTHING: Final = (0, b"")


class Session(NamedTuple):
    """The file while the lock is held.

    Attributes:
        file: open for editing.
        status: its state when the lock was taken.
        alone: whether no other process can open it.
        known: whether the ledger has the position of every message in that state.
        near: bytes that were read since, and their position.
    """

    file: File
    status: Status
    alone: bool
    known: bool
    near: tuple[int, bytes] = (0, b"")

    def read(self, size: int, position: int) -> bytes:
        """Up to size bytes from position; under the lease also what was read before."""
        start, data = self.near
        if self.alone and start <= position and position + size <= start + len(data):
            return data[position - start : position - start + size]
        return self.file.read(size, position)

    def still(self) -> bool:
        """Whether what was read since the lock was taken is one state of the file; before anything is written."""
        return (self.alone and leased(self.file)) or (
            self.known and token_of(self.file.status()) == token_of(self.status)
        )


class Edit(Protocol):
    """Something that is written within a session.

    Attributes:
        last: the position and the bytes of the last message that was written; None: nothing was.
        high: how far down the messages were changed; None: the file got longer.
    """

    last: tuple[int, bytes] | None
    high: int | None

    def prove(self, session: Session) -> bool:
        """Find what is to be changed; whether it can be written as it is."""

    def write(self, session: Session) -> bool:
        """Write; False if another program wrote in between, so that only a part was written, or nothing."""

    def log(self, ledger: Ledger, token: Token) -> None:
        """Write the ledger's lines for what was written; the token is the state of the file since."""


class Opening:
    """A session as a context manager: not a generator, since single marks are made of little else."""

    __slots__ = ("_file", "_queue")

    def __init__(self, queue: QueueFile) -> None:
        """Nothing is opened yet."""
        self._queue = queue
        self._file: File | None = None

    def __enter__(self) -> Session:
        """Take the lock, and the lease if it is to be had."""
        queue = self._queue
        queue.check_open()
        queue.guard.__enter__()
        try:
            self._file = file = queue.opened()
            return queue.begin(file)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Close the file, unless a hold keeps it, and give the lock back."""
        try:
            if self._file is not None and self._file is not self._queue.kept:
                self._file.close()
        finally:
            self._queue.guard.__exit__()


class QueueFile:
    """One ``.tq`` file, its lock and its ledger.

    Attributes:
        path: as it was named.
        home: the file itself, where path was a link when it was named; what is kept next to it is named after this.
        threads: what is kept here belongs to one thread at a time.
        mine: the last edit of this object: where it is, and the message's bytes since.
        kept: the file of a session that stays open when the session ends; see ``textqueue.editing.marks``.
    """

    def __init__(self, path: str, *, disk: Disk, on_revert: OnRevert, conflicts: list[Conflict]) -> None:
        """Name the file; nothing is opened."""
        self.path = path
        self.disk = disk
        self.conflicts = conflicts
        self.home = home(path)
        self.guard = Guard(self.home + ".lck", disk=disk, ask=partial(ask_for_file, path), queue=path)
        self.threads = self.guard.threads
        self.ledger = Ledger(self.home + ".log", disk=disk, queue=path)
        self.exclusive = Exclusive()
        self.chain = Chain()
        self.mine: tuple[int, bytes] | None = None
        self.kept: File | None = None
        self._on_revert: OnRevert = on_revert
        self._closed = False
        self._looked = 0.0
        self._pid = os.getpid()

    def session(self) -> Opening:
        """Hold the lock over the file; what others did meanwhile has been looked into.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return Opening(self)

    def opened(self) -> File:
        """The file, open for editing; within the lock."""
        self.refresh()
        return self.disk.open(self.path, "edit")

    def begin(self, file: File) -> Session:
        """Take the lease. What other programs did is looked into without it, so that no editor waits for that."""
        if self.ledger.older:
            upgrade(self.ledger, file)
        if self.ledger.epochs > 1 and self._is_long():
            self._reconcile(file, whole=True)
        looks = 0
        while True:
            alone = self.exclusive.take(file)
            status = file.status()
            known, near = self._ours(file, status)
            if known or looks == _LOOKS:  # else another program writes there all the time
                return Session(file, status, alone, known, near)
            looks += 1
            end_lease(file)
            self._reconcile(file)

    def commit(self, session: Session, edit: Edit, *, within: Token | None = None) -> bool:
        """Prove an edit, write it and log it: whatever changes messages goes through here, but for marks in a hold.

        Args:
            session: the file, under the lock.
            edit: what is changed.
            within: a hold: the state of the file when it began, which is noted until it ends.

        Returns:
            Whether all of it is in the file that is at the path. If not, it is to be done again.

        Raises:
            MessageMovedError: a message is not there any more; nothing was written.
        """
        alone = session.alone
        proven = edit.prove(session)
        if alone and not leased(session.file):  # another process waits, or opened it while this one was stopped
            session = session._replace(alone=False)
            proven = edit.prove(session)
        if not proven:
            return False
        began, still = time.monotonic(), session.alone or session.still()
        whole = edit.write(session)
        if edit.last is None:
            return whole
        there = self.disk.status(self.path)
        if whole and (there is None or there.identity != session.status.identity):
            return False
        # What another program wrote just now must not pass for ours: if it had the time, the state before is noted, so
        # that the next one looks into it. If a lease that was asked back can still be given up, it held all the time.
        ours = whole and (
            session.alone or (alone and end_lease(session.file)) or (still and time.monotonic() - began < MOMENT_S)
        )
        if within is not None:
            edit.log(self.ledger, within)
            self.mine = edit.last
            return ours
        before = token_of(session.status)
        token = token_of(there) if ours and there is not None else before
        edit.log(self.ledger, token)
        self.mine = edit.last
        self.compact()
        if ours and edit.high is not None:
            self.chain.add(before, token, edit.high)
        return whole

    def compact(self) -> None:
        """Keep the ledger small; within the lock."""
        if self.ledger.epochs == 1 and self._is_long():
            self.ledger.shorten()

    def bring_in_line(self, file: File) -> None:
        """Know where every message is now that the ledger says something about; within the lock."""
        if self.ledger.epochs > 1:
            self._reconcile(file, whole=True)

    def _is_long(self) -> bool:
        return self.ledger.lines > 2 * MARKS_KEPT

    def epoch_of(self, status: Status) -> int:
        """The epoch of what is read from a file in this state; -1 when another program may have changed it."""
        with self.threads:
            self.refresh()
            return self.ledger.epoch if self.ledger.token == token_of(status) and self.ledger.epoch else -1

    def report(self, position: int, raw: bytes, kind: str, action: str) -> None:
        """Keep something that a person should know."""
        self.conflicts.append(Conflict(self.path, position, value_of(raw).decode("utf-8", "replace"), kind, action))

    def check_open(self) -> None:
        """Refuse what comes after the end.

        Raises:
            ClosedError: its queue was closed.
        """
        if self._closed:
            raise ClosedError("this queue was closed; reopen it", path=self.path)

    def close(self) -> None:
        """Give the descriptors back; for good."""
        with self.threads:
            self._closed = True
            self.guard.close()
            self.ledger.close()

    # What others did

    def refresh(self) -> None:
        """Take in what our other programs wrote into the ledger; within the lock."""
        now = time.monotonic()
        pid = os.getpid()
        if pid != self._pid:  # a forked child: its parent's view is not its own
            self._pid = pid
            self.mine = None
            self.ledger.close()
        look = now - self._looked > _LOOK_S
        if look:
            self._looked = now
        self.ledger.refresh(look=look)

    def _ours(self, file: File, status: Status) -> tuple[bool, tuple[int, bytes]]:
        """Whether no other program changed the file since our last edit, and that edit is still in it.

        The second part is what finds a stale buffer that was saved within the same tick of the clock: if it takes back
        anything of ours, it takes back the latest.

        Returns:
            That, and the bytes that were read for it, with their position.
        """
        token, last = self.ledger.token, self.ledger.last
        if token is None:
            return not self.ledger.lines, _NOTHING
        if token != token_of(status):
            return False, _NOTHING
        if last is None:
            return True, _NOTHING
        at = last.position
        if self.mine is not None and self.mine[0] == at:
            data = file.read(len(self.mine[1]) + _NEAR_BYTES, at)  # where the next edit may be
            if data.startswith(self.mine[1]):
                return True, (at, data)
        raw = entry_at(file, at)
        if not raw or digest(essence(raw)) != last.digest:
            return False, _NOTHING
        if last.kind in MARKS:  # a person may have made it another one
            return raw[0] in MARKS, _NOTHING
        if last.kind == GIVEN_BACK:
            return raw[0] == GIVEN_BACK, _NOTHING
        return last.kind != IN_MUTEX or last.owner == holder_of(raw), _NOTHING

    def _reconcile(self, file: File, *, whole: bool = False) -> None:
        self.mine = None
        take = partial(self.exclusive.take, file)
        self.conflicts += reconcile(self.ledger, file, take, path=self.path, on_revert=self._on_revert, whole=whole)
