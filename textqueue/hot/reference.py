"""The hot paths in pure Python: the reference for the compiled ``_hot_c``, with the same names, results and errors.

They yield the messages of a window, mark a message during a hold, write the ledger lines of many marks, and find the
ledger lines of other processes that matter.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar

from sej.system.disk import Disk, File
from sej.system.locks import leased
from textqueue.format.grammar import CONTINUATION, VARIABLE
from textqueue.format.kinds import CLAIMS, ENDS, GIVEN_BACK, IN_MUTEX, SET, UNSEEN, VISIBLE
from textqueue.format.parser import chunks, essence, variables_of

__all__ = [
    "ALWAYS", "BLANKS", "DIGITS", "DONE", "FEW_BYTES", "FRESH_S", "GONE", "LATER_BYTES", "NOT_DONE", "Core", "Held",
    "Place", "Reader", "ends", "essence", "newest", "proven", "ready", "status_lines", "variable_at",
]  # fmt: skip

NOT_DONE: Final = 0
DONE: Final = 1
GONE: Final = 2
"""The results of a mark: not written; done; written, but another file is at the path now."""

FRESH_S: Final = 0.05
"""How long messages of a window are delivered before the file is checked again."""
FEW_BYTES: Final = 2048
"""In this many bytes of a window, the file is checked after each message: so in a short file, always."""
_NEWLINE: Final = 10
_QUEUED: Final = ord("-")
DIGITS: Final = 19
BLANKS: Final = 6
"""Of a ledger line: the most digits of a position, and the number of blanks before the CRC32."""
LATER_BYTES: Final = 1 << 12
"""If the ledger lines that were left for later have more bytes than this, they are written."""
ALWAYS: Final = CLAIMS | {GIVEN_BACK, SET}
"""The kinds of ledger lines that always matter."""

Place = tuple[int, bytes, int]
"""Position, bytes and epoch of a message as it was read, such as a ``textqueue.editing.place.Place``."""


class Core:
    """The fields of a message: its source; its bytes, position and epoch when it was read; and its claim, if any."""

    __slots__ = ("_epoch", "_position", "_raw", "_source", "claim")
    _source: Any
    claim: bytes

    def __init__(self, source: Any, raw: bytes, position: int, epoch: int) -> None:
        """Create a message; only a queue does."""
        self._source = source
        self._raw = raw
        self._position = position
        self._epoch = epoch
        self.claim = b""

    @property
    def source(self) -> Any:
        """The queue file, as the reader passed it."""
        return self._source

    @property
    def raw(self) -> bytes:
        """Its bytes in the file, from the control byte to the end of the last line."""
        return self._raw

    @property
    def position(self) -> int:
        """The position of its control byte."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the ledger in which the position is valid."""
        return self._epoch

    def moved_to(self, position: int, raw: bytes, epoch: int) -> None:
        """Take over what an edit has found or written."""
        self._position, self._raw, self._epoch = position, raw, epoch


_M = TypeVar("_M", bound=Core)


class Reader(Protocol):
    """A position in a file, as ``textqueue.reading.cursor`` keeps it."""

    def at(self, position: int) -> None:
        """Set the position: everything before it in the window was handled."""

    def stale(self, position: int) -> bool:
        """Return whether the file has changed after a position since the window was read."""


def ready(
    make: Callable[[Any, bytes, int, int], _M],
    reader: Reader,
    source: Any,
    window: tuple[int, bytes, int],
    controls: Collection[int],
    remember: list[bytes] | None,
) -> Iterator[_M]:
    """Yield the messages of a window, or only the first ones if the file changes meanwhile.

    Args:
        make: creates a message.
        reader: gets the position at the end, and checks whether the file has changed.
        source: the source of the messages.
        window: position, bytes and epoch of the window.
        controls: the control bytes of the wanted messages.
        remember: a list that gets the bytes of each message before it is yielded.
    """
    position, data, epoch = window
    clock = time.monotonic
    fresh_until, few = clock() + FRESH_S, position + FEW_BYTES
    for raw in chunks(data):
        if raw[0] in controls:
            if remember is not None:
                remember.append(raw)
            yield make(source, raw, position, epoch)
            if clock() > fresh_until or position < few:
                if reader.stale(position + 1):
                    reader.at(position + len(raw))
                    return
                fresh_until = clock() + FRESH_S
        position += len(raw)
    reader.at(position)


def ends(raw: bytes, after: bytes) -> bool:
    """Return whether an entry ends with raw, given the next byte of the file; no byte: the file ends there."""
    if not raw.endswith(b"\n"):
        return not after
    return not after or (after[0] != VARIABLE and (after[0] != CONTINUATION or b"\n\\" in raw))


def variable_at(raw: bytes, index: int) -> tuple[int, int] | None:
    """Return position and size of a variable, by its number from 0; None if the message has no such variable."""
    variables = variables_of(raw)
    return (variables[index].position, len(variables[index].data)) if 0 <= index < len(variables) else None


def proven(data: bytes, start: int, places: Sequence[Place]) -> bool:
    """Return whether no message has moved: each begins a line, and is a whole entry.

    Args:
        data: bytes of the file, from the byte before the first message to the byte after the last, if they exist.
        start: the position of data in the file.
        places: the messages, in the order of the file.
    """
    end = -1
    for position, raw, _ in places:
        at = position - start
        stop = at + len(raw)
        if at <= end or not raw or data[at:stop] != raw or (position and data[at - 1 : at] != b"\n"):
            return False
        if not ends(raw, data[stop : stop + 1]):
            return False
        end = at
    return True


def status_lines(control: int, places: Sequence[Place], tail: bytes) -> bytes:
    """Return the ledger lines for marks of one status.

    Args:
        control: the control byte of the status.
        places: the messages.
        tail: the end of each line, from the blank before the inode to the owner.
    """
    lines = []
    for position, raw, _ in places:
        name = blake2b(essence(raw), digest_size=12).hexdigest()
        text = b"%c %d %s%s" % (control, position, name.encode(), tail)
        lines.append(b"%s %08x\n" % (text, zlib.crc32(text)))
    return b"".join(lines)


def newest(lines: bytes, claimed: Container[int]) -> tuple[int, int, list[bytes]]:
    """Return the ledger lines that matter, if the newest line about a position decides whether it is claimed.

    Args:
        lines: lines of one epoch.
        claimed: the positions that were claimed before these lines.

    Returns:
        How many lines there are, without torn and damaged ones; how many of them mean nothing any more; and the lines
        that matter, newest first, without their CRC32.
    """
    count = spent = 0
    kept: list[bytes] = []
    decided: set[int] = set()
    found = shown = False  # whether a line was kept whose edit can be found in the file, and a visible one
    for line in reversed(lines.split(b"\n")):
        stop = line.find(b" ", 2)
        digits = line[2:stop].removeprefix(b"-")
        if stop < 0 or not digits.isdigit() or len(digits) > DIGITS:
            continue
        kind, position = line[0], int(line[2:stop])
        over = position in decided and kind != GIVEN_BACK
        visible = not shown and kind in VISIBLE
        latest = not found and position >= 0 and kind not in UNSEEN
        if over and not visible and not latest:
            count += 1
            spent += kind != IN_MUTEX
            continue
        text, _, crc = line.rpartition(b" ")
        if b"%08x" % zlib.crc32(text) != crc or text.count(b" ") != BLANKS:
            continue
        count += 1
        spent += over and kind != IN_MUTEX
        first = not kept or visible or latest
        if first or kind in ALWAYS or (kind in ENDS and (not shown or position in claimed)):
            kept.append(text)
            found = found or latest
            shown = shown or visible
        if kind in ENDS or kind in CLAIMS:
            decided.add(position)
    return count, spent, kept


class Held:
    """Marks and variables in a file during a hold. After ``DONE``, the edit is in the file and in the ledger.

    The line of a reserved variable may follow later, in one write with the next line, or by ``flush``. It does not
    change what the message is, so it matters to the next sync only. If the process dies before, the next session finds
    the file in a state that the ledger does not have, and the next sync writes the whole file again.

    It relies on the lock: no other object writes to the file or the ledger. Each edit first checks the lease, so that
    no other program can change the message between proof and write. Afterwards it checks that the file is still at the
    path.
    """

    def __init__(
        self, disk: Disk, file: File, log: File, *, identity: tuple[int, int], tail: bytes, until: float
    ) -> None:
        """Begin to mark in a file that has a lease.

        Args:
            disk: the file system.
            file: the queue file.
            log: the ledger.
            identity: device and inode of the file.
            tail: the end of each ledger line; see ``status_lines``.
            until: the end of the hold, in the time of ``time.monotonic``.
        """
        self._disk = disk
        self._file = file
        self._log = log
        self._identity = identity
        self._tail = tail
        self._until = until
        self.disturbed = False
        """Whether the lease is lost, or another process waits for the file."""
        self.lines = 0
        self.marks = 0
        """Of these lines, those of marks."""
        self.log_bytes = 0
        """Of these lines, the bytes of those that were written."""
        self.lost = False
        """Whether a write of lines failed."""
        self._later = b""
        self.high = -1
        self.kind = 0
        """The kind of the last line."""
        self.last: tuple[int, bytes] | None = None
        """The position of the last edit, and the message's bytes after it."""
        self.shown: tuple[int, bytes] | None = None
        """The same for the last mark."""

    def mark(self, message: Core, control: int) -> int:
        """Give a queued message, which has not moved, another status.

        Returns:
            ``NOT_DONE``, ``DONE`` or ``GONE``.

        Raises:
            OSError: a read or write failed.
        """
        raw = message.raw
        if raw[0] != _QUEUED or time.monotonic() > self._until:
            return NOT_DONE
        result = self._write(message, 0, bytes([control]), control, self._tail, later=False)
        if result == DONE:
            self.marks += 1
            self.shown = self.last
        return result

    def variable(self, message: Core, relative: int, data: bytes) -> int:
        """Write a variable of a message that has not moved.

        Args:
            message: the message.
            relative: the position of the variable, relative to the control byte.
            data: its text, with the padding.

        Returns:
            ``NOT_DONE``, ``DONE`` or ``GONE``.

        Raises:
            OSError: a read or write failed.
            ValueError: the variable is not within the message.
        """
        raw = message.raw
        if relative < 1 or relative + len(data) > len(raw):
            raise ValueError(f"a variable must be within the message, got position {relative} and {len(data)} bytes")
        if time.monotonic() > self._until:
            return NOT_DONE
        was, name = essence(raw), essence(raw[:relative] + data + raw[relative + len(data) :])
        owner = b"-" if was == name else blake2b(was, digest_size=12).hexdigest().encode()
        return self._write(message, relative, data, SET, self._tail[:-1] + owner, later=was == name)

    def flush(self) -> None:
        """Write the lines that were left for later.

        Raises:
            OSError: the write failed; some of the lines are lost.
        """
        lines, self._later = self._later, b""
        if not lines:
            return
        try:
            self._log.write(lines)
        except OSError:
            self.lost = True
            raise
        self.log_bytes += len(lines)

    def _write(self, message: Core, relative: int, data: bytes, kind: int, tail: bytes, *, later: bool) -> int:
        if not leased(self._file):
            self.disturbed = True
            return NOT_DONE
        raw, position = message.raw, message.position
        size = len(raw)
        if position:
            found = self._file.read(size + 2, position - 1)
        else:
            found = b"\n" + self._file.read(size + 1, 0)
        if found[1 : size + 1] != raw or found[0] != _NEWLINE or not ends(raw, found[size + 1 :]):
            return NOT_DONE
        self._file.write_at(data, position + relative)
        there = self._disk.status(self._file.path)
        if there is None or there.identity != self._identity:
            return GONE
        new = raw[:relative] + data + raw[relative + len(data) :]
        line = status_lines(kind, ((position, new, 0),), tail)
        self._later += line
        if not later or len(self._later) > LATER_BYTES:
            self.flush()
        message.moved_to(position, new, message.epoch)
        self.lines += 1
        self.high = max(self.high, position)
        self.kind = kind
        self.last = position, new
        return DONE
