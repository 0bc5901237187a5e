"""The locks of writers: the journal's lock file ``jnl.lck``, and the last segment itself.

An exclusive writer holds both while it is open, a shared writer ``jnl.lck`` for one turn at a time, with a mark in the
file. The mark is ``shared`` and 16 random hex digits. A shared writer removes it before it starts a segment, and writes
another one when it has found the end. An exclusive writer destroys it: ours signs the file, the original truncates it.
**So if a writer finds the mark that it has left or seen, the last segment is still the same file, and since then only
shared writers have appended to it.**

**The original's trace** in ``jnl.lck``, and the extra checks of a writer after it:

The original opens the lock file with O_TRUNC. When it closes, it unlocks, closes and only then unlinks the name. So the
name may be removed at any moment after a writer here has locked the file, and the next original locks a new one:

    the original            this writer               the next original
    unlock
                            lock, the name exists
    unlink
                                                      new file, lock, reads the end
                            append                    writes at the end that it has read

A lock file that an original has opened is empty, and one that it has closed is missing. A writer here signs the file
and leaves it in place. So an empty file, or a missing one next to segments, is an original's trace. The signature
records the trace (``original=``, a time) for :data:`_TRUST_S`.

After a trace every message is a write of its own, between two checks (:mod:`sej.writing.opening`): the
path is still the locked file, and the segment ends where this writer left it. No writer here ever puts the same file
back under the path. So a good check *after* the write proves that the path has been this file from the locking to this
check, and that no original has read the end before the message was there. Hence: **an acknowledged message precedes
everything that an original appends**. A message that fails the second check is not acknowledged.

What remains is the time between the first check and the write. If an original unlinks, and another one opens and reads
the end in this time, the unacknowledged message is a second one with its offset. The next opening refuses the journal,
and ``sej repair`` keeps the messages of the first writer.

The trace follows the signature or the mark in the file, and each turn of a shared writer also checks that the lock file
is still the file at its path.

**Fencing tokens**: a writer that was replaced cannot append any more, even if it does not know that it was replaced.
A token is a number that only rises. The journal's is in the file ``token``; a writer that opens with a number stores
it there. From then on every append compares its writer's number with the journal's. Both happen under the journal's
lock, and the number is on the disk before the opening returns. So each append of a writer with a lower number is in the
journal before the higher number is, or nowhere::

    old leader (7)    append ........ append                          append -> ConflictError: expected 7, found 8
    journal's token   7               7          8 on the disk        8
    new leader (8)                               opens: the end that it sees is final for all lower tokens

The file is replaced as a whole. A writer keeps the version that it has compared open, so no later version has the same
inode: while the path is still this file, the number is the same. This costs one ``stat`` for each append.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Self

from sej.checks import COUNT
from sej.errors import ConflictError, CorruptionError, LockedError, LockLostError
from sej.fork import forget_forked, notice_fork, watch_forks
from sej.journal.directory import Directory
from sej.system.disk import Disk, File, Status
from sej.system.locks import is_current, open_lock, read_holder, sign
from sej.system.sealed import whole

_NOTE: Final = b"original="
_DOUBT: Final = b"?"
_TRUST_S: Final = 86_400
"""An original that was stopped between its unlock and its unlink for longer than this is not expected any more."""
_RECENT_NS: Final = 2_000_000_000
_WAIT_S: Final = 0.01
_LOOK_S: Final = 0.0002
_DYING_S: Final = 0.25
_PAUSE_S: Final = 0.002
_MARK: Final = b"shared "
_MARK_BYTES: Final = len(_MARK) + 16
_SIGNED_BYTES: Final = 256
_TURN_PAUSE_S: Final = 0.00005
"""Longer than a turn, so that the holder of the lock can take several turns before a switch to another process."""
_PAUSE_MAX_S: Final = 0.002
_TURN_S: Final = 2.0
"""The additional wait for shared writers, which hold the lock for microseconds at a time."""


NEXT: Final = "next"


class Trace(NamedTuple):
    """The trace of an original.

    Attributes:
        at: when it was found, in seconds since the epoch.
        certain: whether its own lock file was found; a missing lock file may be missing because of a copy.
    """

    at: int
    certain: bool

    def line(self) -> bytes:
        """Return its line in a signature."""
        return b"%s%d%s\n" % (_NOTE, self.at, b"" if self.certain else _DOUBT)


def _trace_in(content: bytes) -> Trace | None:
    """Return the trace in a signature, or None if it has none or is too old."""
    for line in content.split(b"\n"):
        stamp = line.removeprefix(_NOTE).removesuffix(_DOUBT)
        if line.startswith(_NOTE) and stamp.isdigit() and time.time() - int(stamp) < _TRUST_S:
            return Trace(int(stamp), not line.endswith(_DOUBT))
    return None


def _pause(status: Status, disk: Disk, path: str) -> None:
    """Give an original that has just closed the time to unlink: the lock is then taken on the next file.

    This is not needed for safety. It is short, and only for a file that was emptied moments ago.
    """
    if abs(time.time_ns() - status.mtime_ns) > _RECENT_NS:
        return
    deadline = time.monotonic() + _WAIT_S
    while is_current(disk, status.identity, path) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


class WriterLock:
    """The journal's lock, and the locks of segments.

    One that ``keeps`` is held from :meth:`hold` to :meth:`release`, any other one is free between two turns.

    It knows each segment before it locks it. So whatever interrupts a call, the next one unlocks what that call has
    left. To close a file is not enough for that: a child that another thread has just forked may have a copy of it.

    Attributes:
        original: the trace of an original; None: no original ran recently.
        keeps: whether it is held until the writer closes.
        leave: releases the lock file's lock in one call into C. It may be called at any time.
    """

    original: Trace | None = None

    def __init__(self, directory: Directory, timeout: float | None = 0.0, *, keeps: bool = True) -> None:
        """Open the lock file; it is created if it is missing.

        Args:
            directory: the SEJ directory.
            timeout: seconds to wait while an exclusive writer has the journal; None waits without a limit.
            keeps: False for a lock that is taken for one turn at a time.
        """
        self._directory = directory
        self._timeout = timeout
        self.keeps = keeps
        self.path = directory.prefix + "jnl.lck"
        self._segments: list[File] = []
        self._open()

    def _open(self) -> None:
        self.file, self._was_missing = open_lock(self._directory.disk, self.path)
        self.leave: Callable[[], object] = self.file.unlocker()
        self._identity: tuple[int, int] | None = None
        """The identity of the file, if :meth:`hold` has locked it."""
        self._mark = b""

    def enter(self) -> None:
        """Take the lock. Shared writers hold it for microseconds, an exclusive writer as long as it is open.

        Raises:
            LockedError: an exclusive writer has had the journal for longer than the timeout.
        """
        if self.file.lock(held=self.keeps):
            return
        start, pause_s = time.monotonic(), _TURN_PAUSE_S
        while not self.file.lock(held=self.keeps):
            waited = time.monotonic() - start
            if self._timeout is not None and waited >= self._timeout:
                holder = read_holder(self.file)
                is_turn = holder is not None and holder.startswith("shared ")
                if not is_turn or waited >= self._timeout + _TURN_S:
                    raise LockedError(
                        f"the journal's writer lock is held by {holder or 'another process'}: a sej.Writer keeps it"
                        " while it is open; append through that writer, or close it",
                        path=self.path,
                        holder=holder,
                    )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)

    def is_free(self) -> bool:
        """Return whether no other process has the lock at this moment; the caller takes no turn meanwhile."""
        free = self.file.lock(wait=False)
        if free:
            self.leave()
        return free

    def hold(self) -> None:
        """Take the lock of the file at the path, and look for the trace of an original in it.

        If an original may have just closed, wait until it has removed the file. A lock that ``keeps`` signs the file,
        and is only checked if it is held already.
        """
        if self.keeps and self._identity is not None:
            self.check()
            return
        self.enter()
        while not (status := self.file.status()).links:  # its name was removed between open and lock
            self.renew()
        content = self.file.read(min(status.size, _SIGNED_BYTES + 1), 0)
        self.original = _trace_in(content) if _NOTE in content else None
        if not content and self._directory.segments():
            self.original = Trace(int(time.time()), not self._was_missing)
        if self.original is not None and not content and not self._was_missing:
            _pause(status, self._directory.disk, self.path)
            self.renew()
            status = self.file.status()
        if self.keeps:
            note = b"" if self.original is None else self.original.line()
            # A shared writer takes its mark as proof that no other writer has held the lock: it must not remain.
            sign(self.file, content, note, must=content.startswith(_MARK))
        self._identity = status.device, status.inode

    def renew(self) -> None:
        """Open and lock the lock file again if the locked file is not at its path any more.

        The original removes the lock file when it closes, and a lock on a removed file excludes no writer.
        """
        while not self.is_current():
            old = self.file
            try:
                self._open()
            except FileNotFoundError:
                self._directory.require()  # the journal was removed
                raise
            old.close()
            self.enter()

    def is_current(self) -> bool:
        """Return whether the locked file is still at its path."""
        return is_current(self._directory.disk, self._identity or self.file.status().identity, self.path)

    def check(self) -> None:
        """Check that the locked file is still at its path.

        Raises:
            LockLostError: it was removed or replaced: others can lock a new one.
        """
        if self.is_current():
            return
        if self.keeps:
            what = (
                "the lock file of the journal's writer was removed or replaced while it was held, and another process"
                " may hold the new one; find the program that removes it, then reopen"
            )
        else:
            what = (
                "an original SEJ removed the journal's lock file during this append, so the message may or may not be"
                " in the journal: read the last messages before you append it again"
            )
        raise LockLostError(what, path=self.path)

    def is_marked(self) -> bool:
        """Return whether the mark that this writer has left or seen is still in the file."""
        return bool(self._mark) and self.file.read(_MARK_BYTES, 0) == self._mark

    def mark_end(self) -> None:
        """Take the mark of another shared writer, which belongs to the end that was just found, or write one."""
        mark = self.file.read(_MARK_BYTES, 0)
        if len(mark) != _MARK_BYTES or not mark.startswith(_MARK):
            mark = _MARK + os.urandom(8).hex().encode()
            self.unmark()
            self.file.write_at(mark + b"\n" + (b"" if self.original is None else self.original.line()), 0)
            self._was_missing = False
        self._mark = mark

    def unmark(self) -> None:
        """Remove the mark: another writer that finds it believes that the old segment is still the last one."""
        self._mark = b""
        self.file.truncate(0)

    def lock_segment(self, file: File) -> None:
        """Take the last segment's own lock; without ``keeps``, only see that no exclusive writer has it.

        The original unlinks ``jnl.lck``, and with it the lock of the process that holds that inode. No process unlinks
        the last segment, so two of our own writers never append, whatever happens to the lock file.

        A process that is killed gives its locks back one after the other, ``jnl.lck`` first. So this waits for a
        moment.

        Raises:
            LockedError: an exclusive writer holds it.
        """
        if self.keeps and file not in self._segments:
            self._segments.append(file)
        unlock = None if self.keeps else file.unlocker()
        deadline = time.monotonic() + _DYING_S
        try:
            while not file.lock():
                if time.monotonic() >= deadline:
                    raise LockedError(
                        "another writer holds this segment, although the journal's lock file is free: the file was"
                        " removed while that writer ran; close that writer",
                        path=file.path,
                    )
                time.sleep(_PAUSE_S)
        finally:
            if unlock is not None:
                unlock()  # in C, and the first call here: no signal handler can run before it

    def keep(self, file: File | None) -> None:
        """Unlock every segment but this one. Files stay open, because a sync may use them."""
        for other in self._segments.copy():
            if other is not file:
                other.unlock()
                self._segments.remove(other)

    def release(self) -> None:
        """Release all locks; a second call does nothing, or finishes an interrupted one."""
        self.keep(None)
        self.leave()  # explicitly: a child that was just forked may still have the descriptor
        self.close_copies()

    def close_copies(self) -> None:
        """Close the lock file, and in a forked child the segments, without unlocking the parent's locks."""
        for file in self._segments:
            file.close()
        self._segments.clear()
        self.leave = _nothing
        self.file.close()

    _after_fork = close_copies

    def __enter__(self) -> Self:
        """Take the lock, for an operation on all segments."""
        try:
            self.hold()
        except BaseException:
            self.release()
            raise
        watch_forks(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Release all locks."""
        notice_fork()
        self.release()
        forget_forked(self)


def _nothing() -> None:
    """Do nothing: ``leave`` of a lock that is closed."""


class Fence:
    """The token of one shared writer. Every call is made under the journal's lock, except :meth:`close`.

    Attributes:
        token: the writer's number.
    """

    def __init__(self, directory: Directory, token: int | Literal["next"]) -> None:
        """Check the number; nothing is read yet."""
        if token != NEXT:
            COUNT("token", token)
        self.token = token if isinstance(token, int) else 0
        self._is_next = token == NEXT
        self._disk = directory.disk
        self._journal, self._tmp = directory.path, directory.at("tmp")
        way_out = "remove it, then open each writer with a number above every earlier one"
        self._file = directory.sealed("a fencing token", way_out, "token")
        self._seen: File | None = None
        """The version of the file whose number is not above the writer's."""

    def take(self) -> None:
        """Store the number in the journal, durably.

        Raises:
            ConflictError: the journal has a higher one.
        """
        found = self._load()
        if self._is_next:
            self.token = (found or 0) + 1
        elif found is not None and found > self.token:
            raise self._conflict(found)
        if found != self.token:
            self._disk.mkdir(self._tmp)
            self._file.store({"token": self.token})
        self._keep()

    def check(self) -> None:
        """Check that no writer has stored a higher number.

        Raises:
            ConflictError: one has; nothing was appended.
            CorruptionError: the file was removed, or has a lower number, as from an old copy.
        """
        if not is_current(self._disk, self._identity, self._file.path):
            found = self._load()
            if found is None or found < self.token:
                raise CorruptionError(
                    f"the journal's fencing token must be at least {self.token}, got {found}: the file was removed or"
                    " replaced by an old one; open this writer again with a higher token",
                    path=self._file.path,
                )
            if found > self.token:
                raise self._conflict(found)
            self._keep()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._seen is not None:
            self._seen.close()

    def _load(self) -> int | None:
        content = self._file.load()
        with self._file.checking():
            return None if content is None else whole(content["token"])

    def _keep(self) -> None:
        self.close()
        self._seen = self._disk.open(self._file.path, "read")
        self._identity = self._seen.status().identity

    def _conflict(self, found: int) -> ConflictError:
        return ConflictError(
            f"this writer's fencing token is {self.token}, and the journal's is {found}: another writer has taken over,"
            " so nothing was appended; close this one",
            path=self._journal,
            expected=self.token,
            found=found,
        )
