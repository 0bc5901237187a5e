"""The sparse index of a segment: the positions of blocks, their times and their checksums.

The journal is authoritative: an index can be rebuilt from it at any time and never overrides it. An entry is written
after the bytes of its block were synced. It has the first and last offset and timestamp. If these differ from the
journal, the entry is stale and dropped. If they match and the CRC differs, the journal is damaged.

Only a writer under the lock, or ``sej index``, writes the file (:class:`IndexFile`). Readers load it, or build the same
entries in memory by walking the segment (:meth:`BlockIndex.extend`).

**The file** ``idx/<segment>.idx`` is a head of 16 bytes and then entries of 64 bytes, one for each block, in the order
of the segment. A block is a run of whole messages of about 256 KiB. Integers are big endian::

    head  = "SEJINDEX" version(u32) reserved(u32)
    entry = position(u64) end(u64) first_offset(u64) count(u32) crc32c(u32)
            first_timestamp(i64) last_timestamp(i64) newest_timestamp(i64) reserved(u32) check(u32)

``newest_timestamp`` is the newest in the segment up to the block's end, so that it never falls and can be bisected.
``check`` is the CRC32C of the 60 bytes before it.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple

from sej.codec import measure, message_size
from sej.codec.format import HEAD as MESSAGE_HEAD
from sej.codec.format import INT32, INT32_SIZE, NO_TIMESTAMP, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError
from sej.journal.directory import Directory, Segment
from sej.journal.recovery import Damage, find_damage, last_message
from sej.system.checksum import crc32c
from sej.system.disk import Disk, File, open_existing, pieces

BLOCK_BYTES: Final = 1 << 18
"""A block ends with the first message that makes it this long."""
HEAD: Final = b"SEJINDEX" + (1).to_bytes(4, "big") + bytes(4)
HEAD_SIZE: Final = 16
ENTRY_BODY: Final = struct.Struct(">QQQIIqqqI")
CHECK: Final = struct.Struct(">I")
ENTRY: Final = struct.Struct(">QQQIIqqqII")
ENTRY_SIZE: Final = 64

assert len(HEAD) == HEAD_SIZE and ENTRY.size == ENTRY_SIZE == ENTRY_BODY.size + CHECK.size


Key = Literal["end", "next_offset", "newest_timestamp"]
_READ_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 1 << 10
"""A block of at most this size is read in one piece to be checked."""
_ENTRIES: Final = 1 << 10
_FOLLOWERS: Final = 16


class Block(NamedTuple):
    """A run of whole messages in a segment.

    Attributes:
        position: its first byte.
        end: the byte after it.
        first_offset: of its first message.
        messages: how many are in it.
        crc32c: of its bytes.
        first_timestamp: of its first message, ns.
        last_timestamp: of its last message, ns.
        newest_timestamp: the newest in the segment up to its end, ns.
    """

    position: int
    end: int
    first_offset: int
    messages: int
    crc32c: int
    first_timestamp: int
    last_timestamp: int
    newest_timestamp: int

    @property
    def next_offset(self) -> int:
        """The offset after it."""
        return self.first_offset + self.messages

    def error(self, found: int, path: str) -> CorruptionError | None:
        """Return the error if the CRC32C that was found is not that of the bytes that were written."""
        if found == self.crc32c:
            return None
        return CorruptionError(
            f"messages {self.first_offset} to {self.next_offset - 1} (bytes {self.position} to {self.end}) have"
            f" CRC32C {found:08x}, expected {self.crc32c:08x}: the disk changed them",
            path=path,
            position=self.position,
            offset=self.first_offset,
        )

    def pack(self) -> bytes:
        """Return the entry as stored in the file."""
        body = ENTRY_BODY.pack(*self, 0)
        return body + CHECK.pack(crc32c(body))

    @classmethod
    def unpack(cls, data: bytes) -> Block | None:
        """Decode an entry of 64 bytes; None if its checksum fails."""
        *fields, _, check = ENTRY.unpack(data)
        if crc32c(data[: -CHECK.size]) != check:
            return None
        block = cls(*fields)
        return block if block.position < block.end and block.messages > 0 else None


class BlockIndex:
    """The blocks of one segment, in memory, from its start up to ``position``.

    Attributes:
        blocks: in order, without gaps.
        position: where the next block starts.
        due: the offset of the message there.
    """

    __slots__ = ("blocks", "due", "position")

    def __init__(self, first_offset: int, blocks: list[Block] | None = None) -> None:
        """Start at the segment's beginning, or after known blocks."""
        self.blocks = blocks or []
        self.position = self.blocks[-1].end if self.blocks else 0
        self.due = self.blocks[-1].next_offset if self.blocks else first_offset

    @property
    def newest_timestamp(self) -> int:
        """The newest timestamp so far, ns."""
        return self.blocks[-1].newest_timestamp if self.blocks else NO_TIMESTAMP

    def open_block(self, size: int) -> Block | None:
        """Return the last block if it is short and ends at the segment's end: appended messages may belong to it."""
        last = self.blocks[-1] if self.blocks else None
        return last if last and last.end == size and last.end - last.position < BLOCK_BYTES else None

    def add(self, block: Block) -> Block:
        """Append the next block."""
        assert block.position == self.position and block.first_offset == self.due
        if self.newest_timestamp > block.newest_timestamp:
            block = block._replace(newest_timestamp=self.newest_timestamp)
        self.blocks.append(block)
        self.position, self.due = block.end, block.next_offset
        return block

    def extend(self, file: File) -> None:
        """Walk the segment from ``position`` to its last full block."""
        for block in read_blocks(file, self.position, self.due):
            if block.end - block.position >= BLOCK_BYTES:
                self.add(block)

    def before_offset(self, offset: int) -> tuple[int, int]:
        """Return (position, offset) of a message at or before an offset, at most a block away."""
        at = bisect_right(self.blocks, offset, key=lambda block: block.first_offset) - 1
        if at < 0:
            return (self.position, self.due) if not self.blocks else (0, self.blocks[0].first_offset)
        block = self.blocks[at]
        return (block.end, block.next_offset) if block.next_offset <= offset else (block.position, block.first_offset)

    def before_time(self, timestamp: int) -> tuple[int, int]:
        """Return (position, offset) of a message at or before the first one from a timestamp on."""
        at = bisect_left(self.blocks, timestamp, key=lambda block: block.newest_timestamp)
        if at == len(self.blocks):
            return self.position, self.due
        return self.blocks[at].position, self.blocks[at].first_offset


def read_blocks(file: File, position: int, due: int) -> Iterator[Block]:
    """Divide the good messages from position on into blocks; the last one may be short."""
    size = file.size()
    memory = bytearray(min(_READ_BYTES, max(size - position, 0)))
    while position < size:
        claimed: int | None = None
        with memoryview(memory) as view:
            there = file.read_into(view[: size - position], position)
            at = 0
            while at < there:
                try:
                    run = measure(view, at, there, due, BLOCK_BYTES)
                    if run.position - at < BLOCK_BYTES and position + there < size:
                        if at:
                            break
                        claimed = _whole(view, run.position, there)
                except DecodeError:
                    return
                if (claimed is not None and len(memory) < claimed <= size - position) or not run.messages:
                    break
                crc = crc32c(view[at : run.position])
                times = run.first_timestamp, run.last_timestamp, run.newest_timestamp
                yield Block(position + at, position + run.position, due, run.messages, crc, *times)
                due += run.messages
                at = run.position
        if at:
            position += at
        elif claimed is not None and len(memory) < claimed <= size - position:
            memory = bytearray(claimed)  # the block ends with a message that is larger than one read
        else:
            return


def _whole(view: memoryview, start: int, there: int) -> int | None:
    """Return how many bytes include the whole message at start; None if there is no message, or if that is unknown."""
    try:
        claimed = message_size(view, start, there)
    except DecodeError:
        return None
    return None if claimed is None else start + claimed


def check_block(file: File, block: Block) -> bool:
    """Return whether an entry belongs to this segment: its first and last message have its offsets and times."""
    size = block.end - block.position
    if 0 < size <= _SMALL_BYTES:
        return is_content(block, file.read(size, block.position))
    found = last_message(file, block.end)
    return (
        found is not None
        and found[0] >= block.position
        and _names(file.read(MESSAGE_HEAD.size, block.position), block.first_offset, block.first_timestamp)
        and _names(found[1], block.next_offset - 1, block.last_timestamp)
    )


def is_content(block: Block, data: bytes | memoryview) -> bool:
    """Return the same as :func:`check_block`, from the bytes between the block's position and its end."""
    end = len(data)
    if end != block.end - block.position or end < OVERHEAD_SIZE:
        return False
    start: int = end - INT32.unpack_from(data, end - INT32_SIZE)[0]
    if not 0 <= start <= end - OVERHEAD_SIZE:
        return False
    if not _names(data, block.first_offset, block.first_timestamp):
        return False
    if not _names(data, block.next_offset - 1, block.last_timestamp, start):
        return False
    try:
        return message_size(data, start, end) == end - start
    except DecodeError:
        return False


def _names(data: bytes | memoryview, offset: int, timestamp: int, start: int = 0) -> bool:
    """Return whether a message that begins at ``start`` has this offset and this time."""
    return MESSAGE_HEAD.unpack_from(data, start)[:2] == (offset, timestamp)


def error_in(file: File, block: Block) -> CorruptionError | None:
    """Return the error of a block whose bytes in the file are not those that were written; None: they are."""
    found = 0
    for data in pieces(file, block.position, block.end):
        found = crc32c(data, found)
    return block.error(found, file.path)


def _split(data: bytes) -> Iterator[bytes]:
    """Yield whole entries."""
    return (data[at : at + ENTRY_SIZE] for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE))


def _entries(file: File, segment_bytes: int, first: int = 0, ahead: int = _ENTRIES) -> Iterator[Block | None]:
    """Yield the entries from a number on, None for each bad one; none if the head is wrong. So many are read ahead.

    A segment has no more blocks than messages, so any bytes after the room for that many are not read. Zeros are
    skipped.
    """
    if file.read(HEAD_SIZE, 0) != HEAD:
        return
    end = HEAD_SIZE + ENTRY_SIZE * (segment_bytes // OVERHEAD_SIZE)
    position = HEAD_SIZE + ENTRY_SIZE * first
    while position < end and (data := file.read(min(ENTRY_SIZE * ahead, end - position), position)):
        position += len(data)
        if data.count(0) != len(data):
            yield from map(Block.unpack, _split(data))
        else:
            yield None


def _bisect(file: File, key: Key, wanted: int) -> tuple[int, Block | None, Block | None] | None:
    """Return the number of the first entry whose key is at least ``wanted``, the entry before it, and this entry.

    None if there is no entry, or a bad one was met.
    """
    if file.read(HEAD_SIZE, 0) != HEAD:
        return None
    low, high = 0, (file.size() - HEAD_SIZE) // ENTRY_SIZE
    below = found = None
    while low < high:
        middle = (low + high) // 2
        block = Block.unpack(file.read(ENTRY_SIZE, HEAD_SIZE + middle * ENTRY_SIZE))
        if block is None:
            return None
        if getattr(block, key) < wanted:
            low, below = middle + 1, block
        else:
            high, found = middle, block
    return None if below is found is None else (low, below, found)


class IndexFile:
    """The sidecar of one segment on disk.

    Loading accepts only entries that are whole, without gaps and inside the segment, and whose last one matches the
    segment (:func:`check_block`); everything from the first doubtful entry on is dropped.
    """

    def __init__(self, directory: Directory, segment: Segment) -> None:
        """Set the file; nothing is opened."""
        self._disk: Disk = directory.disk
        self._first_offset = segment.first_offset
        self.path = f"{directory.prefix}idx/{segment.first_offset:016x}.idx"
        self._file: File | None = None

    def _read(self, segment_file: File) -> Iterator[Block | None]:
        """Yield all entries, as :func:`_entries`; none if the file is missing."""
        file = open_existing(self._disk, self.path, "read")
        if file is not None:
            with file.closing():
                yield from _entries(file, segment_file.size())

    def load(self, segment_file: File) -> BlockIndex:
        """Return the accepted blocks; an empty index if the file is missing, of another format or stale."""
        index, size = BlockIndex(self._first_offset), segment_file.size()
        for block in self._read(segment_file):
            place = index.position, index.due
            if block is None or block.end > size or (block.position, block.first_offset) != place:
                break
            index.add(block)
        while index.blocks and not check_block(segment_file, index.blocks[-1]):
            index = BlockIndex(self._first_offset, index.blocks[: len(index.blocks) // 2])
        return index

    def changed_blocks(self, segment_file: File) -> Iterator[tuple[Block, CorruptionError]]:
        """Yield each block whose bytes are not those that were written, and its error.

        Every entry counts that is whole and belongs to the segment, whatever the others are.
        """
        end = 0
        for block in self._read(segment_file):
            if block is None or block.position < end:
                continue
            if self.belongs(segment_file, block):
                end = block.end
                if (error := error_in(segment_file, block)) is not None:
                    yield block, error

    def belongs(self, segment_file: File, block: Block) -> bool:
        """Return whether an entry belongs to the segment, by its own messages or by the entries after it."""
        return check_block(segment_file, block) or self.is_followed(segment_file, block)

    def is_followed(self, segment_file: File, block: Block) -> bool:
        """Return whether an entry directly after a block belongs to the segment.

        Then the block's own entry is not stale: messages are cut and written again only at the end of a segment. If the
        block's first or last message differs from the entry, the disk changed it.
        """
        due = block.end, block.next_offset
        for after in self.blocks_after(segment_file, block.end, _FOLLOWERS):
            if (after.position, after.first_offset) != due:
                return False
            if check_block(segment_file, after):
                return True
            due = after.end, after.next_offset
        return False

    def blocks_after(self, segment_file: File, position: int, most: int) -> list[Block]:
        """Return up to ``most`` whole entries of blocks that end after a position, whatever the others are.

        They are not compared with the segment: see :func:`is_content`.
        """
        file = open_existing(self._disk, self.path, "read")
        if file is None:
            return []
        with file.closing():
            size = segment_file.size()
            bisected = _bisect(file, "end", position + 1) if position else None
            entries = _entries(file, size, 0 if bisected is None else bisected[0], most)
            return list(islice((each for each in entries if each is not None and each.end > position), most))

    def find(self, segment_file: File, key: Key, wanted: int) -> Block | None:
        """Return the first block whose key is at least ``wanted``, by bisection; the last one if none exists.

        Reads a few entries. None if the file is missing, or an entry does not match the segment.

        Args:
            segment_file: the segment.
            key: the name of a value of blocks that does not decrease from one to the next.
            wanted: the value to find.
        """
        file = open_existing(self._disk, self.path, "read")
        if file is None:
            return None
        with file.closing():
            bisected = _bisect(file, key, wanted)
        if bisected is None:
            return None
        _, below, found = bisected
        if found is None:
            found = below
        else:  # unordered entries must not move a reader forwards: the found one must follow the passed ones
            before = (0, self._first_offset) if below is None else (below.end, below.next_offset)
            if (found.position, found.first_offset) != before:
                return None
        sound = found is not None and found.first_offset >= self._first_offset and check_block(segment_file, found)
        return found if sound else None

    def end(self, segment_file: File) -> tuple[int, int]:
        """Return where the messages in the index end: the position, and the offset that is expected there."""
        index = self.load_end(segment_file)[1]
        return index.position, index.due

    def load_end(self, segment_file: File, *, to_write: bool = False) -> tuple[int, BlockIndex]:
        """Return how many entries are accepted, and an index with only the last of them: for appending.

        Reads one entry if the file is in order; otherwise it is loaded completely.

        Args:
            segment_file: the segment.
            to_write: keep the file open for :meth:`write`.
        """
        try:
            file = open_existing(self._disk, self.path, "edit" if to_write else "read")
        except PermissionError:
            if not to_write:
                raise
            return self.load_end(segment_file)  # write() says what it may not
        if file is None:
            return 0, BlockIndex(self._first_offset)
        try:
            count = (file.size() - HEAD_SIZE) // ENTRY_SIZE
            few = min(count, 2)
            data = file.read(HEAD_SIZE + few * ENTRY_SIZE, 0) if count > 0 else b""
            if data.startswith(HEAD):
                if count > few:
                    data = file.read(HEAD_SIZE + few * ENTRY_SIZE, (count - few) * ENTRY_SIZE)
                *below, block = map(Block.unpack, _split(data[HEAD_SIZE:]))
                before: tuple[int, int] | None = (0, self._first_offset)
                if below:
                    before = None if below[0] is None else (below[0].end, below[0].next_offset)
                if block and (block.position, block.first_offset) == before and check_block(segment_file, block):
                    return count, BlockIndex(self._first_offset, [block])
        finally:
            if to_write:
                self._file = file
            else:
                file.close()
        index = self.load(segment_file)
        return len(index.blocks), BlockIndex(self._first_offset, index.blocks[-1:])

    def find_damage(self, segment_file: File, position: int, due: int) -> Damage | None:
        """Decide about the bytes at a position like :func:`sej.journal.recovery.find_damage`, and with the index.

        A torn tail is never in the index, which is written after the messages. So the index shows corruption that the
        bytes alone do not: a damaged length with more damage after it looks like the last message, cut off.
        """
        indexed, indexed_due = self.end(segment_file)  # first: a writer may complete the message, and index it
        damage = find_damage(segment_file, position, due)
        if damage is None or indexed <= position or indexed_due <= due:
            return damage
        return damage._replace(indexed=indexed_due)

    def write(self, blocks: list[Block], keep: int) -> None:
        """Write the file: ``keep`` of its entries and then these; the bytes of all of them were synced.

        A short block's entry is overwritten in place: it is never missing.
        """
        file = self._file
        size, names = (0, 0) if file is None else file.extent()
        if file is None or not names:
            file = self._file = self._open()
            size = file.size()
        data, position = b"".join([block.pack() for block in blocks]), HEAD_SIZE + keep * ENTRY_SIZE
        if not keep or size < HEAD_SIZE:
            data, position = HEAD.ljust(position, b"\0") + data, 0
        file.write_at(data, position)
        if size > position + len(data):
            file.truncate(position + len(data))

    def _open(self) -> File:
        try:
            return self._disk.open(self.path, "edit")
        except (FileNotFoundError, NotADirectoryError):
            self._disk.mkdir(os.path.dirname(self.path))
            self._disk.open(self.path, "append").close()
            return self._disk.open(self.path, "edit")

    def close(self) -> None:
        """Close the file, if it was written."""
        if self._file is not None:
            self._file.close()
            self._file = None
