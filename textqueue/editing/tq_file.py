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

from sej.system.clock import Clock
from sej.system.disk import Disk, File
from sej.system.locks import has_file_lease, is_file_leasable, take_file_lease
from sej.system.logs import WARNING, record
from textqueue.format.parser import decode, value_of
from textqueue.format.windows import Token, token_of
from textqueue.ledger.log import Ledger, Record
from textqueue.ledger.sidecar import Guard, sidecar_path, temporary_file

OnRevert = Literal["reapply", "deliver"]
Spans = Sequence[tuple[int, int]]
"""Parts of a file, ascending, each a position and a size."""
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


class Options(NamedTuple):
    """The options of a queue, which are those of ``TextQueue``, and the list that gets its conflicts."""

    disk: Disk
    clock: Clock
    settle_s: float
    on_revert: OnRevert
    conflicts: list[Conflict]


class TqFile:
    """One ``.tq`` file, its lock, its ledger, and the lock between threads that protects this object."""

    def __init__(self, path: str, options: Options) -> None:
        self.path, self.options, self.disk = path, options, options.disk
        self.guard = Guard(path, disk=self.disk, queue=path)
        self.threads = self.guard.threads
        self.ledger = Ledger(self.guard.log, disk=self.disk, queue=path)
        self._backoff_until, self._backoff_s = 0.0, _BACKOFF_FIRST_S

    def report(self, position: int, raw: bytes, kind: str, action: str) -> None:
        """Add a conflict."""
        self.note([Conflict(self.path, position, decode(value_of(raw)), kind, action)])

    def note(self, conflicts: list[Conflict]) -> None:
        """Add conflicts, and log them."""
        self.options.conflicts.extend(conflicts)
        for conflict in conflicts:
            record(__name__, WARNING, "%s: position %d: %s: %s", *conflict[:2], *conflict[3:])

    def wait_for_lease(self, file: File) -> bool:
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

    # Replacing the file

    def swap(self, file: File, temporary: str, before: Token, *, strict: bool = False) -> bool:
        """Rename a synced file to the queue's name, under a file lease, if no other program has changed the queue file.

        strict: it is refused as well while another program has the file open, and may save it.
        """
        alone = take_file_lease(file) or self.wait_for_lease(file) or has_file_lease(file)
        there = self.disk.status(self.path)
        if there is None or token_of(there) != before or (strict and not alone and is_file_leasable(file)):
            return False
        self.disk.rename(temporary, self.guard.real_path)
        return True

    def write_rest(
        self,
        file: File,
        temporary: str,
        before: Token,
        spans: Spans,
        head: tuple[int, bytes],
        *patch: tuple[int, bytes],
    ) -> Token:
        """Write a copy of the file without some spans, with another head and other bytes; return its state."""
        with temporary_file(self.disk, temporary, file.path, ALL) as new:
            new.write(head[1])
            copy_rest(file, new, head[0], before[1], spans)
            for position, data in patch:
                new.write_at(data, position)
            return token_of(new.status())

    def replace(self, file: File, before: Token, spans: Spans, head: tuple[int, bytes] = (0, b"")) -> Token | None:
        """Replace the file by a copy, as :meth:`write_rest` makes it; return its state, or None if it was changed.

        With another head, no other program may have the file open.
        """
        temporary = sidecar_path(self.guard.real_path, ".save")
        after = self.write_rest(file, temporary, before, spans, head)
        return after if self.swap(file, temporary, before, strict=bool(head[1])) else None

    def moved_claims(self, spans: Spans, grown: int = 0) -> list[Record]:
        """Return the claims that remain, at their positions after some spans were removed, and bytes added above."""
        gone = {start for start, _ in spans}
        claims = [one for one in self.ledger.claims.values() if one.position not in gone]
        return [
            one._replace(position=shifted(one.position, spans) + grown) if one.position >= 0 else one for one in claims
        ]


def copy(source: File, target: File, start: int, end: int) -> None:
    """Copy the bytes from start to end."""
    while start < end:
        data = source.read(min(_BLOCK, end - start), start)
        if not data:
            return
        target.write(data)
        start += len(data)


def copy_rest(source: File, target: File, start: int, end: int, spans: Spans) -> None:
    """Copy the bytes from start to end, without some spans."""
    for position, size in spans:
        copy(source, target, start, position)
        start = position + size
    copy(source, target, start, end)


def shifted(position: int, gone: Spans) -> int:
    """Return where a position is after some spans were removed."""
    return position - sum(size for _, size in gone[: bisect.bisect_left(gone, (position, 0))])
