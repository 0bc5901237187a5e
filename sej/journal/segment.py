"""Read one segment forwards, with bounded memory.

A segment may grow while it is read. The bytes of an incomplete message are dropped and read again from its start next
time, because another writer may have cut the tail and written again. No length is trusted before the file is that long,
so memory is bounded by the chunk and by the largest existing message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from sej.codec import IMPLEMENTATION, Columns, Run, columns, decode_many, measure, message_size
from sej.errors import CorruptionError, DecodeError, TruncatedError
from sej.journal.index import BLOCK_BYTES
from sej.message import Message
from sej.system.disk import Disk, File, Status
from sej.system.lifecycle import Closing

CHUNK_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = 4096


class Room(Protocol):
    """Gives memory for large messages."""

    def make_room(self, size: int) -> None:
        """Get memory for the next message; raises if there is none."""


class Place(NamedTuple):
    """A byte of a segment, with the file's (device, inode): a name may belong to another file by then."""

    identity: tuple[int, int]
    position: int


_Taken = TypeVar("_Taken", Columns, Run)


class SegmentReader(Closing):
    """Reads messages from a position of a segment on.

    Attributes:
        path: the file.
        file: the same, open.
        position: the byte where the next message starts.
        due: the offset of the next message.
        seen_size: the last known size of the file, in bytes.
        end: the byte to stop at, although the file may be longer; None: the end of the file.
        until: the byte that a chunk from before it does not pass: the first one of the next block to verify.
    """

    def __init__(
        self,
        disk: Disk,
        path: str | os.PathLike[str],
        position: int,
        due: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        room: Room | None = None,
    ) -> None:
        """Open the file.

        Args:
            disk: the disk.
            path: the segment.
            position: the byte where the next message starts.
            due: the offset of the next message.
            chunk_bytes: how much is read in one step.
            room: asked with the size of a message that is larger than a chunk before it is read; raises if there is no
                memory for it, and the reader does not move.

        Raises:
            FileNotFoundError: the segment was removed.
        """
        self.path = os.fspath(path)
        self.file: File = disk.open(self.path, "read")
        self.position = position
        self.due = due
        self.seen_size = 0
        self.end: int | None = None
        self.until = 0
        self._chunk: bytes | memoryview = b""
        self._chunk_at = position
        self._chunk_bytes = chunk_bytes
        self._room = room
        self._memory = bytearray()

    def read(self, limit: int) -> list[Message]:
        """Read up to limit messages; an empty list if no whole message follows now.

        Raises:
            CorruptionError: the bytes are not a message, or not the expected one (then ``__cause__.found``).
            TruncatedError: the file is shorter than what was read from it.
        """
        while True:
            at = self.position - self._chunk_at
            if at < len(self._chunk):
                try:
                    messages, end = decode_many(self._chunk, at, len(self._chunk), self.due, limit)
                except DecodeError as error:
                    raise self._corruption(error) from error
                if messages:
                    self.position = self._chunk_at + end
                    self.due += len(messages)
                    return messages
            if not self._refill():
                return []

    def read_columns(self, limit: int, *, keys: bool = True, values: bool = True) -> Columns | None:
        """Read up to limit messages as columns, with keys and values or not; None if no whole message follows now.

        Raises:
            CorruptionError: as :meth:`read`.
            TruncatedError: as :meth:`read`.
        """
        return self._next(partial(columns, keys=keys, values=values), limit)

    def read_encoded(self, limit_bytes: int) -> tuple[bytes, int]:
        """Read whole encoded messages, up to the first that reaches limit_bytes; return the bytes and the count.

        Raises:
            CorruptionError: as :meth:`read`.
            TruncatedError: as :meth:`read`.
        """
        start = self.position
        run = self._next(measure, limit_bytes)
        return (b"", 0) if run is None else (bytes(self._chunk[start - self._chunk_at : run.position]), run.messages)

    def _next(self, take: Callable[[bytes | memoryview, int, int, int, int], _Taken], limit: int) -> _Taken | None:
        """Return the result of a codec function here; None if no whole message follows now."""
        while True:
            at = self.position - self._chunk_at
            if at < len(self._chunk):
                try:
                    found = take(self._chunk, at, len(self._chunk), self.due, limit)
                except DecodeError as error:
                    raise self._corruption(error) from error
                if found.messages:
                    self.position = self._chunk_at + found.position
                    self.due += found.messages
                    return found
            if not self._refill():
                return None

    def load(self, start: int, end: int) -> bytes | memoryview:
        """Read the bytes from start, at or before the next message, to end; the next messages are decoded from them."""
        if (self._chunk_at, len(self._chunk)) != (start, end - start):
            self._fill(start, end - start)
        return self._chunk

    def unload(self, end: int) -> None:
        """Forget the bytes from a position on that :meth:`load` has read."""
        self._chunk = self._chunk[: max(end - self._chunk_at, 0)]

    def skip(self, position: int, due: int, end: int | None = None) -> None:
        """Continue at another message of this segment, up to end."""
        self.position = self._chunk_at = position
        self.due = due
        self.end = end
        self._chunk = b""

    def rest(self) -> int:
        """Return the bytes of the file after the last whole message that was read."""
        return self.file.size() - self.position

    def status(self) -> Status:
        """Return the file's current status."""
        return self.file.status()

    def close(self) -> None:
        """Close the file."""
        self._chunk, self._memory = b"", bytearray()
        self.file.close()

    def _refill(self) -> bool:
        """Read a chunk from the next message on; return whether there is more to decode than before."""
        size = self.file.size()
        if self.end is not None and size > self.end:
            size = self.end
        self.seen_size = size
        there = size - self.position
        had = len(self._chunk) - (self.position - self._chunk_at)
        if there < 0:
            raise TruncatedError(
                f"the file has {size} bytes, but messages up to byte {self.position} were read from it: it was cut"
                " or replaced; scan again from this offset",
                path=self.path,
                position=size,
                offset=self.due,
            )
        if there <= max(had, 0):
            self._chunk = b""  # drop the incomplete message: it is read again
            self._chunk_at = self.position
            return False
        want = min(there, self._chunk_bytes)
        if had == want == self._chunk_bytes:  # a whole chunk held no message: read its size
            try:
                claimed = message_size(self._chunk, self.position - self._chunk_at, len(self._chunk))
            except DecodeError as error:
                raise self._corruption(error) from error
            if claimed is None or claimed > there:
                self._chunk = b""
                self._chunk_at = self.position
                return False
            if self._room is not None:
                self._chunk, self._chunk_at = b"", self.position  # it may wait long
                self._room.make_room(claimed)
            want = claimed
        elif max(had, 0) < self.until - self.position < want:
            want = self.until - self.position
        self._fill(self.position, want)
        return len(self._chunk) > had

    def _fill(self, position: int, size: int) -> None:
        """Read a chunk: a large one into the same memory again if the codec decodes that as fast as bytes.

        A reader that waits for room keeps none meanwhile.
        """
        self._chunk = b""  # after a failed read the memory is not valid
        self._chunk_at = position
        is_usual = _SMALL_BYTES < size <= self._chunk_bytes + BLOCK_BYTES and self._room is None
        if not is_usual or IMPLEMENTATION == "python":
            self._chunk = self.file.read(size, position)
            return
        if len(self._memory) < size:
            self._memory = bytearray(size)
        view = memoryview(self._memory)
        self._chunk = view[: self.file.read_into(view[:size], position)]

    def _corruption(self, error: DecodeError) -> CorruptionError:
        position = self._chunk_at + (error.position or 0)
        return CorruptionError(error.reason, path=self.path, position=position, offset=self.due)
