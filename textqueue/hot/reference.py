"""The hot paths in pure Python, the reference for the compiled twin ``_hot_c``: same names, results and errors.

Giving out the messages of a window, marking one in a file that is held, and the ledger's lines for many marks.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar

from sej.system.disk import Disk, File
from sej.system.locks import leased
from textqueue.format.grammar import CONTINUATION, VARIABLE
from textqueue.format.parser import chunks, essence

__all__ = [
    "DONE", "FEW_BYTES", "FRESH_S", "GONE", "NOT_DONE", "Core", "Held", "Place", "Reader", "ends", "essence", "proven",
    "ready", "status_lines",
]  # fmt: skip

NOT_DONE: Final = 0
DONE: Final = 1
GONE: Final = 2
"""What became of a mark: nothing was written; it stands; it was written, and another file is at the path now."""

FRESH_S: Final = 0.05
"""So long messages of one window are given out before the file is looked at again."""
FEW_BYTES: Final = 2048
"""In so much of a window each message is followed by a look at the file whatever the time: in a short file, each."""
_NEWLINE: Final = 10
_QUEUED: Final = ord("-")

Place = tuple[int, bytes, int]
"""Position, bytes and epoch of a message as it was read; ``textqueue.editing.place.Place`` is one."""


class Core:
    """What a message keeps: its source, its bytes, where they stood, and in which epoch of the ledger."""

    __slots__ = ("_epoch", "_position", "_raw", "_source")
    _source: Any

    def __init__(self, source: Any, raw: bytes, position: int, epoch: int) -> None:
        """Made by a queue."""
        self._source = source
        self._raw = raw
        self._position = position
        self._epoch = epoch


_M = TypeVar("_M", bound=Core)


class Reader(Protocol):
    """A place in a file, as ``textqueue.reading.cursor`` keeps it."""

    def at(self, position: int) -> None:
        """Everything before this position of the window was handled."""

    def stale(self, position: int) -> bool:
        """Whether the file has changed below a position since the window was read."""


def ready(
    make: Callable[[Any, bytes, int, int], _M],
    reader: Reader,
    source: Any,
    window: tuple[int, bytes, int],
    controls: Collection[int],
    remember: list[bytes] | None,
) -> Iterator[_M]:
    """Give out the messages of a window, or its beginning when the file changes meanwhile.

    Args:
        make: makes a message.
        reader: is told how far this went, and asked whether the file has changed.
        source: of the messages.
        window: its position, bytes and epoch.
        controls: the control bytes of what is wanted.
        remember: takes the bytes of each message that is given out.
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
    """Whether an entry ends with these bytes, given the byte behind them (none at the end of the file)."""
    if not raw.endswith(b"\n"):
        return not after
    return not after or (after[0] != VARIABLE and (after[0] != CONTINUATION or b"\n\\" in raw))


def proven(data: bytes, start: int, places: Sequence[Place]) -> bool:
    """Whether messages, in the order of the file, stand where they were read, each at the beginning of a line.

    Args:
        data: of the file, from the byte before the first message to the byte behind the last, as far as there are such.
        start: its position.
        places: the messages.
    """
    end = -1
    for position, raw, _ in places:
        at = position - start
        stop = at + len(raw)
        if at <= end or data[at:stop] != raw or (position and data[at - 1] != _NEWLINE):
            return False
        if not ends(raw, data[stop : stop + 1]):
            return False
        end = at
    return True


def status_lines(control: int, places: Sequence[Place], tail: bytes) -> bytes:
    """The ledger's lines for marks of one status.

    Args:
        control: of the status.
        places: the messages.
        tail: what each line ends with, from the blank before the inode to the owner.
    """
    lines = []
    for position, raw, _ in places:
        name = blake2b(essence(raw), digest_size=12).hexdigest()
        text = b"%c %d %s%s" % (control, position, name.encode(), tail)
        lines.append(b"%s %08x\n" % (text, zlib.crc32(text)))
    return b"".join(lines)


class Held:
    """A file that is ours alone for a while, and marks in it: each proven, written, and in the ledger when it returns.

    What must hold: the lock is held, and nobody but this object writes to the file or the ledger. The lease is looked
    at before each mark, so that everything since stands as it was proven; the path is looked at after it.
    """

    def __init__(
        self, disk: Disk, file: File, log: File, *, identity: tuple[int, int], tail: bytes, until: float
    ) -> None:
        """Take over a file on which there is a lease.

        Args:
            disk: the seam.
            file: the queue file.
            log: the ledger.
            identity: device and inode of the file.
            tail: what each line of the ledger ends with; see ``status_lines``.
            until: by ``time.monotonic``: when it is over.
        """
        self._disk = disk
        self._file = file
        self._log = log
        self._identity = identity
        self._tail = tail
        self._until = until
        self.disturbed = False
        """Somebody waits for the file, or the lease is lost."""
        self.marks = 0
        self.log_bytes = 0
        self.high = -1
        self.last: tuple[int, bytes] | None = None
        """Where the last mark stands, and the message's bytes with it."""

    def mark(self, message: Core, control: int) -> int:
        """Give a queued message, which stands where it was read, another status.

        Returns:
            ``NOT_DONE``, ``DONE`` or ``GONE``.

        Raises:
            OSError: the system refused to write.
        """
        raw, position = message._raw, message._position
        if raw[0] != _QUEUED or time.monotonic() > self._until:
            return NOT_DONE
        if not leased(self._file):
            self.disturbed = True
            return NOT_DONE
        size = len(raw)
        if position:
            data = self._file.read(size + 2, position - 1)
        else:
            data = b"\n" + self._file.read(size + 1, 0)
        if data[1 : size + 1] != raw or data[0] != _NEWLINE or not ends(raw, data[size + 1 :]):
            return NOT_DONE
        self._file.write_at(bytes([control]), position)
        there = self._disk.status(self._file.path)
        if there is None or there.identity != self._identity:
            return GONE
        line = status_lines(control, ((position, raw, 0),), self._tail)
        self._log.write(line)
        message._raw = new = bytes([control]) + raw[1:]
        self.marks += 1
        self.log_bytes += len(line)
        self.high = max(self.high, position)
        self.last = position, new
        return DONE
