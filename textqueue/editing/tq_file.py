"""One ``.tq`` file: its names, its lock, its ledger, its file lease, and its replacement by another version.

**Exclusive access** during an edit, also against programs that do not use the lock: The kernel grants a file lease
(``sej.system.locks.take_file_lease``) only if no other process has the file open. An editor that is saving has it open
for a moment, so an edit waits for it briefly. Another program may have it open for hours, so after a failed wait, edits
do not wait again for a while.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from sej.system.disk import Disk, File
from sej.system.locks import has_file_lease, is_file_leasable, take_file_lease
from sej.system.logs import WARNING, record
from textqueue.format.parser import value_of
from textqueue.format.windows import Token, token_of
from textqueue.ledger.log import Ledger
from textqueue.ledger.sidecar import Guard, sidecar_path, temporary_file

OnRevert = Literal["reapply", "deliver"]
_FILE_LEASE_WAIT_S: Final = 0.02
"""How long an edit waits for a program that has the file open."""
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After a failed wait: how long edits do not wait again. It doubles each time."""
_PAUSE_S: Final = 0.000_2
_BLOCK: Final = 1 << 20
ALL: Final = 0o7777
"""The mode of a new version of a queue file is that of the old one."""


class Conflict(NamedTuple):
    """A conflict between this library and another program, which a user should know about.

    Attributes:
        path: the file.
        position: the position of the message.
        text: the text of the message; of a removed one, the first 80 bytes.
        kind: ``"reverted"``: an editor saved an old buffer and reverted a mark; ``"claim"``: it reverted a claim;
            ``"collision"``: the file was rewritten at the moment of an edit; ``"changed"``: a claimed message was
            changed or deleted; ``"lease"``: the lease of a claim ended, and another worker took the message;
            ``"removed"``: a save removed a message that a program had appended.
        action: what the queue did about it.
    """

    path: str
    position: int
    text: str
    kind: str
    action: str


class Exclusive:
    """Takes file leases, and remembers failed waits."""

    def __init__(self) -> None:
        """Begin without a failed wait."""
        self._backoff_until = 0.0
        self._backoff_s = _BACKOFF_FIRST_S

    def take(self, file: File) -> bool:
        """Take a file lease, and return whether it was granted. It ends when the file is closed."""
        return take_file_lease(file) or self.wait(file)

    def wait(self, file: File) -> bool:
        """Wait for a moment for a file lease that was not granted, unless that failed a moment ago."""
        now = time.monotonic()
        if now < self._backoff_until or not is_file_leasable(file):
            return False
        while time.monotonic() - now < _FILE_LEASE_WAIT_S:
            time.sleep(_PAUSE_S)
            if take_file_lease(file):
                self._backoff_s = _BACKOFF_FIRST_S
                return True
        now = time.monotonic()
        again = now - self._backoff_until < _BACKOFF_MAX_S
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S) if again else _BACKOFF_FIRST_S
        self._backoff_until = now + self._backoff_s
        return False


class TqFile:
    """One ``.tq`` file, its lock and its ledger.

    Attributes:
        path: the path as the caller passed it.
        conflicts: the list that gets the conflicts.
        on_revert: what to do about a mark that an old buffer reverted.
        guard: the lock, and the names of the files next to the queue.
        threads: the lock between threads that protects this object.
    """

    def __init__(self, path: str, *, disk: Disk, on_revert: OnRevert, conflicts: list[Conflict]) -> None:
        """Create the object; no file is opened."""
        self.path = path
        self.disk = disk
        self.conflicts = conflicts
        self.on_revert = on_revert
        self.guard = Guard(path, disk=disk, queue=path)
        self.threads = self.guard.threads
        self.ledger = Ledger(self.guard.log, disk=disk, queue=path)
        self.exclusive = Exclusive()

    @property
    def real_path(self) -> str:
        """The path of the real file, if path is a symbolic link. It can change between two sessions only."""
        return self.guard.real_path

    def report(self, position: int, raw: bytes, kind: str, action: str) -> None:
        """Add a conflict."""
        self.note([Conflict(self.path, position, value_of(raw).decode("utf-8", "replace"), kind, action)])

    def note(self, conflicts: list[Conflict]) -> None:
        """Add conflicts, and log them."""
        self.conflicts += conflicts
        for conflict in conflicts:
            record(__name__, WARNING, "%s: position %d: %s: %s", *conflict[:2], *conflict[3:])

    # Replacing the file

    def swap(self, file: File, temporary: str, before: Token, *, strict: bool = False) -> bool:
        """Rename a temporary file to the queue's name, under a file lease. The caller holds the lock.

        Args:
            file: the queue file, open.
            temporary: the path of the new file, which was synced.
            before: the state of the queue file when it was read.
            strict: whether it is refused while another program has the file open, and may save it.

        Returns:
            Whether it was renamed; False: another program has changed the queue file.
        """
        alone = self.exclusive.take(file) or has_file_lease(file)
        there = self.disk.status(self.path)
        if there is None or token_of(there) != before or (strict and not alone and is_file_leasable(file)):
            return False
        self.disk.rename(temporary, self.real_path)
        return True

    def replace(
        self, file: File, before: Token, spans: Sequence[tuple[int, int]], head: tuple[int, bytes] = (0, b"")
    ) -> Token | None:
        """Replace the file by a copy without some spans.

        Args:
            file: the queue file, open.
            before: its state when it was read.
            spans: what is left out, ascending, each a position and a size.
            head: the size of the first bytes, and what replaces them: then no other program may have the file open.

        Returns:
            The new state; None if another program has changed the file.
        """
        temporary = sidecar_path(self.real_path, ".save")
        with temporary_file(self.disk, temporary, file.path, ALL) as new:
            new.write(head[1])
            copy_rest(file, new, head[0], before[1], spans)
            after = token_of(new.status())
        return after if self.swap(file, temporary, before, strict=bool(head[1])) else None


def copy(source: File, target: File, start: int, end: int) -> None:
    """Copy the bytes from start to end."""
    while start < end:
        data = source.read(min(_BLOCK, end - start), start)
        if not data:
            return
        target.write(data)
        start += len(data)


def copy_rest(source: File, target: File, start: int, end: int, spans: Sequence[tuple[int, int]]) -> None:
    """Copy the bytes from start to end, without some spans, each a position and a size."""
    for position, size in spans:
        copy(source, target, start, position)
        start = position + size
    copy(source, target, start, end)


def shifted(position: int, gone: Sequence[tuple[int, int]]) -> int:
    """Return where a position is after some spans were removed, ascending, each a position and a size."""
    return position - sum(size for _, size in gone[: bisect.bisect_left(gone, (position, 0))])
