"""Which bytes of a file are on the medium, whatever its pages in the cache contain.

After a failed writeback Linux keeps the page in the cache and marks it clean. Every later sync succeeds and every
reader sees the bytes, but the medium does not have them. The error is reported once to each descriptor that was open at
that moment, and never to one that is opened later. So a process that opens a file cannot infer from the cache, or from
a sync that succeeds, what survives a power loss.

The invariant, by induction over all processes that append to a file:

1. A **kept position** is stored next to the file (:class:`KeptPosition`): every byte before it was synced.
2. A process that opens the file doubts the bytes between the kept position and the end that it finds. It compares them
   with the medium, read past the cache, and writes again what differs (:func:`renew`).
3. What is written after the file was opened is not in doubt: if it cannot be written back, the sync through this
   descriptor fails.
4. So a successful sync through this descriptor is reliable, and the kept position may move up.

The bytes of whole messages (or of whole records of a log) never change in a file, so renewing them is safe while other
processes append; an operation that removes whole messages creates a new file. The kept position is not synced itself:
after a power loss an older one is found, or none, and more is renewed than necessary. It is bound to one file by the
file's inode and first bytes, so a copy of a journal trusts nothing.

Crash states: no record, an older record, a torn record (its checksum fails), a record of another file. Each means that
more bytes are in doubt, never fewer.

**The layout**: ``idx/durable`` (of a journal) and the files of this layout next to a queue's log hold one record of 48
bytes. Integers are big endian::

    record = "SEJDURAB" name(u64) inode(u64) position(u64) offset(u64) head(u32) check(u32)

Every byte of the file ``name`` (of a journal: the first offset of its last segment) before ``position`` was on the
medium when the record was written, and so was the file's name. ``offset`` is the offset that follows. ``inode`` and
``head``, the CRC32C of the file's first bytes (64, or ``position`` if that is less), say which file this is. ``check``
is the CRC32C of the 44 bytes before it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sej.system.checksum import crc32c
from sej.system.disk import Disk, File, Status, Tolerated, of_system, open_existing

MAGIC: Final = b"SEJDURAB"
BODY: Final = struct.Struct(">8sQQQQI")
CHECK: Final = struct.Struct(">I")
RECORD: Final = struct.Struct(">8sQQQQII")
RECORD_SIZE: Final = 48
HEAD_BYTES: Final = 64

assert RECORD.size == RECORD_SIZE == BODY.size + CHECK.size


_RENEW_BYTES: Final = 1 << 20


class Kept(NamedTuple):
    """A position of a file: every byte before it, and every message below offset, is on the medium."""

    position: int
    offset: int


class _Known(NamedTuple):
    """The file that was synced last. One object, so that threads see all of it or nothing."""

    file: File
    inode: int
    head: int
    position: int


class KeptPosition:
    """The durable position of a growing file, in a small file next to it.

    Many processes may write it. Each writes only what it has synced itself, so the last one is right even if another
    one was ahead.

    The small file stays open from the first :meth:`store`, or from a :meth:`load` that is ``alone``, to
    :meth:`forget`, because a writer that syncs often would open it each time. A store that finds its name removed or
    replaced opens it again. If another process does this between that check and the write, the path has an older record
    or none. Only :meth:`lower` must reach the path, so it opens it.

    Attributes:
        path: the small file.
        lost: the stored position of the file that was loaded last, if that file ends before it, so that bytes are gone
            which were on the medium; else None.
    """

    __slots__ = ("_disk", "_of", "_open", "lost", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        """Set the path; nothing is opened.

        Args:
            disk: the disk.
            path: the small file; created by the first :meth:`store`.
        """
        self._disk = disk
        self.path = path
        self.lost: Kept | None = None
        self._of: _Known | None = None
        self._open: File | None = None

    def load(self, file: File, name: int, *, alone: bool = False, status: Status | None = None) -> Kept:
        """Return the stored position of an open file.

        Args:
            file: the file.
            name: its name in the record: of a segment, its first offset.
            alone: no other process can end this segment and start a later one before the next :meth:`store`.
            status: the file's status, if the caller knows it.

        Returns:
            The position; the beginning of the file if the record is missing, damaged or of another file, as in a copy.
        """
        self.lost = None
        there = _parse(self._read(stay=alone))
        if there is not None and there[0] == name:
            _, inode, position, offset, head = there
            status = status or file.status()
            if inode != status.inode:
                return Kept(0, name)
            same = _head(file, position) == head
            if same and position <= status.size:
                if alone:
                    self._of = _Known(file, inode, head, position)
                return Kept(position, offset)
            if status.size < position and (same or status.size < HEAD_BYTES):
                self.lost = Kept(position, offset)
        return Kept(0, name)

    def store(self, file: File, name: int, position: int, offset: int) -> None:
        """Store a position that was just synced. If this fails, the next opening renews more than necessary.

        Args:
            file: the file that was synced.
            name: as for :meth:`load`.
            position: every byte before it is on the medium.
            offset: the offset that follows.
        """
        try:
            of = self._of
            if of is None or of.file is not file or of.position < HEAD_BYTES or position < HEAD_BYTES:
                there = _parse(self._read()) if of is None or of.file is not file else None
                if there is not None and there[0] > name:
                    return  # another process has ended this segment
                of = self._of = _Known(file, file.status().inode, _head(file, position), position)
            body = BODY.pack(MAGIC, name, of.inode, position, offset, of.head)
            record = body + CHECK.pack(crc32c(body))
            try:
                self._overwrite(record)
            except FileNotFoundError:
                self._create(file, record)
        except OSError as error:
            if not of_system(error):
                raise

    def lower(self, file: File, name: int, position: int, offset: int) -> Kept | None:
        """Store a position, if the stored one is above it: the caller is about to cut the file there.

        Without this, the record would cover bytes that another program appends after the cut.

        Returns:
            The stored position, if it is above the new one: what was on the medium in between is lost. Else None.
        """
        known = self.load(file, name)
        if known.position <= position:
            return None
        self.forget()
        self.store(file, name, position, offset)
        return known

    def forget(self) -> None:
        """Release the file whose position was stored last, and the small file; each is closed with its last owner."""
        self._of = self._open = None

    def _create(self, file: File, record: bytes) -> None:
        if self._disk.status(file.path) is None:
            return  # the directory was removed: nothing of it is created again
        self._disk.mkdir(os.path.dirname(self.path))
        with self._disk.open(self.path, "temp") as kept:
            kept.write_at(record, 0)

    def _overwrite(self, record: bytes) -> None:
        kept = self._open
        if kept is None or not kept.extent()[1]:
            kept = self._open = self._disk.open(self.path, "edit")
        kept.write_at(record, 0)  # another thread may call forget(): this reference keeps the descriptor

    def _read(self, *, stay: bool = False) -> bytes | None:
        try:
            file = self._disk.open(self.path, "edit" if stay else "read")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not stay:
                raise
            return self._read()
        if not stay:
            with file:
                return file.read(RECORD_SIZE, 0)
        self._open = file
        return file.read(RECORD_SIZE, 0)


def _parse(data: bytes | None) -> tuple[int, int, int, int, int] | None:
    """Return name, inode, position, offset and head of a record; None if it is missing or damaged."""
    if data is None or len(data) != RECORD_SIZE:
        return None
    magic, name, inode, position, offset, head, check = RECORD.unpack(data)
    if magic != MAGIC or crc32c(data[: BODY.size]) != check:
        return None
    return name, inode, position, offset, head


def _head(file: File, position: int) -> int:
    return crc32c(file.read(min(position, HEAD_BYTES), 0))


def renew(
    disk: Disk,
    file: File,
    start: int,
    end: int,
    *,
    check: Callable[[bytes, int], None] | None = None,
    piece_bytes: int = _RENEW_BYTES,
) -> None:
    """Make the bytes from start to end durable, which may be in the cache but not on the medium.

    The file is synced, and the medium is read past the cache. Bytes that differ are written again, synced and compared
    once more. If the system cannot read past its cache, all of them are written again.

    Args:
        disk: the disk.
        file: the file, open; it may be open for appending only.
        start: the first byte in doubt.
        end: the byte after the last one.
        check: called first with each piece and its position; raises if these are not the bytes that were once written.
        piece_bytes: how much is read and compared in one step.

    Raises:
        OSError: the sync failed, or the medium still has other bytes.
    """
    if start >= end:
        return
    target = open_existing(disk, file.path, "edit")
    if target is None:
        return  # its name was removed: no acknowledgement depends on it
    with target:
        if target.status().identity != file.status().identity:
            return  # another file has the name, and was synced before it got it
        target.sync()
        written = False
        for data, position in _pieces(file, start, end, piece_bytes):
            if check is not None:
                check(data, position)
            written = write_missing(target, data, position) or written
        if written:
            target.sync()
            for data, position in _pieces(file, start, end, piece_bytes):
                require_stored(target, data, position)


def write_missing(file: File, data: bytes, position: int) -> bool:
    """Write bytes again that the medium may not have, after a sync of the file.

    Args:
        file: the file, opened for editing, and used by no other thread.
        data: the bytes in the cache.
        position: their position.

    Returns:
        Whether bytes were written, so that the caller must sync the file again and call :func:`require_stored`.

    Raises:
        OSError: the medium refused them; no later opening gets this error.
    """
    if file.stored(len(data), position) == data:
        return False
    try:
        file.rewrite(data, position)
    except OSError:
        with Tolerated():
            file.sync()  # btrfs reports the failure to the next sync, even in a process that opens the file later
        raise
    return True


def require_stored(file: File, data: bytes, position: int) -> None:
    """Check that the medium has these bytes, as far as the system can tell.

    Raises:
        OSError: it has others.
    """
    if file.stored(len(data), position) not in (None, data):
        raise OSError(
            errno.EIO,
            f"the medium does not have the bytes that were written at position {position}, after a second attempt; read"
            " the system's log of this disk, and move the file to another one",
            file.path,
        )


def _pieces(file: File, start: int, end: int, piece_bytes: int) -> Iterator[tuple[bytes, int]]:
    while start < end and (data := file.read(min(piece_bytes, end - start), start)):
        yield data, start
        start += len(data)
