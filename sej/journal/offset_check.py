r"""The twin of a kept offset: a checksum for eight bytes whose format has no room for one.

``ofs/NAME.ofs`` is 8 bytes that the original reads and writes too. Its twin, ``ofs/NAME.check``, records
the newest two states of that file: its offset, its inode and its time of change.

A commit makes the new ``.ofs`` durable under a temporary name, notes it in the slot that does not describe the present
``.ofs``, and renames it into place. So at any moment one slot describes the existing file:

==============================  =====================  ==========================================================
what a crash leaves             the slots describe     the ``.ofs`` is
==============================  =====================  ==========================================================
nothing of the commit           old, older             the old one: the first slot describes it
a torn slot                     old                    the old one
the slot, but no rename         old, new               the old one
slot and rename                 old, new               the new one
the rename, but no slot         old, older             a file that no slot describes; a reader's twin is not synced
==============================  =====================  ==========================================================

A full disk has no room for another file. A reader's ``.ofs`` is then overwritten, synced, and noted.

Which differences are damage? If a slot describes this file (inode and time of change), the bytes must hold the same
offset: a flipped bit changes neither inode nor time. Any other file was written by another program, such as the
original's reader, or is a restored copy. That is legal and accepted, unless the newest slot is strict. A work queue
excludes other programs by its lock and syncs its twin before the rename. There an offset that neither slot has is
damage.

A reader of the original may have a name that is too long for a file ``NAME.check``. It has no twin.

An old journal without twins is read without a check, and the first commit creates the twin. Without the ``.ofs`` the
twin is ignored, and a reader that starts again removes it.

**The layout** of ``ofs/NAME.check``: two slots, at bytes 0 and 512, so that no sector holds parts of both. Integers are
big endian::

    slot = "SEJTWIN\0" reader(u32) strict(u32) sequence(u64) offset(u64) inode(u64) mtime(i64) check(u32)

``reader`` is the CRC32C of the reader's name. ``offset`` is what ``NAME.ofs`` holds when its file has that inode and
that time of change, in ns; :data:`NOTHING`: it is empty. ``strict`` is 1 if no other program writes the file. ``check``
is the CRC32C of the 48 bytes before it. The slot with the higher sequence is the newer one.

At byte 64 of a slot, if the reader had read a message whose time is known::

    after = offset(u64) timestamp(i64) check(u32)

The message before this offset, which is at most that of the slot, had this timestamp. ``check`` is the CRC32C of the
slot and of the 16 bytes before it, so an ``after`` of an earlier slot does not count.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from sej.codec.format import OFFSET, OFFSET_SIZE
from sej.errors import BadOffsetFileError, InvalidNameError
from sej.journal.directory import Directory, check_name
from sej.system.checksum import crc32c
from sej.system.disk import File, Status, is_full, open_existing, write_temporary
from sej.system.durable import renew

MAGIC: Final = b"SEJTWIN\0"
SLOT_BODY: Final = struct.Struct(">8sIIQQQq")
CHECK: Final = struct.Struct(">I")
SLOT: Final = struct.Struct(">8sIIQQQqI")
SLOT_SIZE: Final = 52
STRIDE: Final = 512
AFTER: Final = struct.Struct(">QqI")
AFTER_AT: Final = 64
AFTER_SIZE: Final = 20
TWIN_BYTES: Final = STRIDE + AFTER_AT + AFTER_SIZE
NOTHING: Final = 2**64 - 1

assert AFTER.size == AFTER_SIZE
assert SLOT.size == SLOT_SIZE == SLOT_BODY.size + CHECK.size


_SLOTS: Final = 2
_NAME_BYTES: Final = 255 - len(".check")
"""The longest name with a twin: file systems take 255 bytes."""


class After(NamedTuple):
    """The message before this offset had this timestamp when the reader had read it."""

    offset: int
    timestamp: int


class _Slot(NamedTuple):
    """The content of one slot; number: its position in the file."""

    number: int
    sequence: int
    offset: int
    inode: int
    mtime_ns: int
    strict: bool
    after: After | None = None


class _Kept(NamedTuple):
    """The ``.ofs`` as found: its bytes, at most one more than it should have, and its status."""

    data: bytes
    status: Status

    @property
    def offset(self) -> int:
        """Return the offset in the bytes, if they are one."""
        return OFFSET.unpack(self.data)[0] if len(self.data) == OFFSET_SIZE else NOTHING


def twin_path(directory: Directory, name: str) -> str:
    """Return the path of a reader's twin."""
    return directory.at("ofs", f"{name}.check")


def drop_twin(directory: Directory, name: str) -> None:
    """Remove the twin of an ``.ofs`` that was removed; the caller holds the reader's lock."""
    if may_have_twin(name) and directory.disk.status(twin_path(directory, name)) is not None:
        directory.disk.unlink(twin_path(directory, name))


def read_kept(directory: Directory, name: str) -> int | None:
    """Return a reader's kept offset, compared with its twin; no lock is needed. None: it never committed.

    Raises:
        BadOffsetFileError: the file has another size, or its bytes are not those that were written.
        FileTypeError: it is not a regular file.
    """
    return read_place(directory, name)[0]


def read_place(directory: Directory, name: str) -> tuple[int | None, After | None]:
    """As :func:`read_kept`; also return what is known about the messages before the offset."""
    before = None
    while True:
        kept = _look(directory, name)
        if kept is None:
            return None, None
        slots = _slots(directory, name)
        wrong = _wrong(kept, slots)
        if wrong is None:
            return (kept.offset, _after_of(kept, slots)) if kept.data else (None, None)
        if (kept, slots) == before:  # or a commit came between the two reads
            raise BadOffsetFileError(
                f"{wrong}; `sej doctor` prints the command that sets the right offset",
                path=directory.at("ofs", f"{name}.ofs"),
            )
        before = kept, slots


def lowest_kept(directory: Directory, name: str) -> int | None:
    """Return the lower offset of a work queue's ``.ofs`` and its twin, if they were copied while the queue was in use.

    Then the ``.ofs`` is a file that no slot knows, and each of the two was right at its moment. The lower offset
    repeats items, and loses none. The caller holds the queue's lock.

    Returns:
        The offset; None: the ``.ofs`` is in a file that a queue has written, so another program has changed it, or its
        size is wrong. In a copy on the same file system this can be by chance, because inodes are used again.
    """
    kept, slots = _look(directory, name), _slots(directory, name)
    if kept is None or len(kept.data) != OFFSET_SIZE or not slots or not slots[0].strict:
        return None
    if slots[0].offset == NOTHING or any(slot.inode == kept.status.inode for slot in slots):
        return None
    return min(kept.offset, slots[0].offset)


def known_offset(directory: Directory, name: str) -> int | None:
    """Return the offset that a damaged ``.ofs`` should hold by its twin; None: the twin does not know it."""
    kept, slots = _look(directory, name), [slot for slot in _slots(directory, name) if slot.offset != NOTHING]
    here = [slot for slot in slots if kept is not None and slot.inode == kept.status.inode]
    return next((slot.offset for slot in here + slots), None)


def keep_offset(directory: Directory, name: str, offset: int, *, strict: bool, after: After | None = None) -> None:
    """Write an offset to the ``.ofs``, durably, and note it in the twin; the caller holds the reader's lock.

    Args:
        directory: the journal.
        name: the reader's name.
        offset: the offset.
        strict: no other program writes this file: for work queues.
        after: what is known about the messages before the offset.
    """
    disk, path = directory.disk, directory.at("ofs", f"{name}.ofs")

    temporary = directory.at("tmp", f"{name}.ofs")
    try:
        fresh = write_temporary(disk, temporary, OFFSET.pack(offset))
    except OSError as error:
        if strict or not is_full(error) or not _keep_in_place(directory, name, offset, after):
            raise
        return
    if may_have_twin(name):
        kept, slots = _look(directory, name), _slots(directory, name)
        here = _describes(kept, slots)
        sequence = max((slot.sequence for slot in slots), default=0)
        if disk.status(twin_path(directory, name)) is None:  # a strict twin must not survive only the rename
            disk.open(twin_path(directory, name), "new" if strict else "temp").close()
        with disk.open(twin_path(directory, name), "edit") as twin:
            if strict:  # the slot that describes the present file must be durable before the other one is written
                renew(disk, twin, 0, twin.size())
            if here is None and kept is not None:  # the twin begins with the present file
                sequence += 1
                here = _Slot(0, sequence, kept.offset, kept.status.inode, kept.status.mtime_ns, strict)
                _write(twin, name, here)
                if strict:
                    twin.sync()
            number = 0 if here is None else 1 - here.number
            _write(twin, name, _Slot(number, sequence + 1, offset, fresh.inode, fresh.mtime_ns, strict, after))
            if strict:
                twin.sync()
    disk.rename(temporary, path)


def _keep_in_place(directory: Directory, name: str, offset: int, after: After | None) -> bool:
    """Overwrite the ``.ofs``, which needs no room: on a full disk, retention waits for this offset to make room.

    Its eight bytes are in one sector. A crash before the slot leaves a file that no slot describes.
    """
    kept, slots = _look(directory, name), _slots(directory, name)
    if kept is None or len(kept.data) != OFFSET_SIZE:
        return False
    with directory.disk.open(directory.at("ofs", f"{name}.ofs"), "edit") as file:
        file.write_at(OFFSET.pack(offset), 0)
        file.sync()
        fresh = file.status()
    if slots:
        with directory.disk.open(twin_path(directory, name), "edit") as twin:
            number, sequence = 1 - slots[0].number, slots[0].sequence + 1
            _write(twin, name, _Slot(number, sequence, offset, fresh.inode, fresh.mtime_ns, False, after))
    return True


def may_have_twin(name: str) -> bool:
    """Return whether a reader's name leaves room for the suffix of a twin."""
    return len(os.fsencode(name)) <= _NAME_BYTES


def _look(directory: Directory, name: str) -> _Kept | None:
    file = open_existing(directory.disk, directory.at("ofs", f"{name}.ofs"), "read")
    if file is None:
        return None
    with file:
        return _Kept(file.read(OFFSET_SIZE + 1, 0), file.status())


def _slots(directory: Directory, name: str) -> list[_Slot]:
    """Return the slots that are sound and belong to this reader, the newest first."""
    if not may_have_twin(name):
        return []
    file = open_existing(directory.disk, twin_path(directory, name), "read")
    if file is None:
        return []
    with file:
        data = file.read(TWIN_BYTES, 0)
    found = []
    for number in range(_SLOTS):
        begin = number * STRIDE
        slot = data[begin : begin + SLOT_SIZE]
        if len(slot) < SLOT_SIZE or crc32c(slot[: -CHECK.size]) != CHECK.unpack(slot[-CHECK.size :])[0]:
            continue
        magic, reader, strict, sequence, offset, inode, mtime_ns, _ = SLOT.unpack(slot)
        if (magic, reader) == (MAGIC, _reader(name)):
            after = _after(slot, data[begin + AFTER_AT : begin + AFTER_AT + AFTER_SIZE])
            found.append(_Slot(number, sequence, offset, inode, mtime_ns, bool(strict), after))
    return sorted(found, key=lambda slot: -slot.sequence)


def _write(twin: File, name: str, slot: _Slot) -> None:
    body = SLOT_BODY.pack(
        MAGIC, _reader(name), slot.strict, slot.sequence, slot.offset, slot.inode, slot.mtime_ns
    )  # fmt: skip
    data = body + CHECK.pack(crc32c(body))
    if slot.after is not None:
        known = AFTER.pack(*slot.after, 0)[: -CHECK.size]
        data = data.ljust(AFTER_AT, b"\0") + known + CHECK.pack(crc32c(data + known))
    twin.write_at(data, slot.number * STRIDE)


def _after_of(kept: _Kept, slots: list[_Slot]) -> After | None:
    here = _describes(kept, slots) or (slots[0] if slots else None)
    after = None if here is None else here.after
    return after if after is not None and after.offset <= kept.offset else None


def _after(slot: bytes, data: bytes) -> After | None:
    """Return what follows a sound slot; None: nothing that belongs to it."""
    if len(data) < AFTER_SIZE:
        return None
    offset, timestamp, check = AFTER.unpack(data)
    return After(offset, timestamp) if check == crc32c(slot + data[: -CHECK.size]) else None


def _describes(kept: _Kept | None, slots: list[_Slot]) -> _Slot | None:
    """Return the slot that describes the present file: by inode and time, or in a copy by its offset."""
    if kept is None:
        return None
    there = kept.status.inode, kept.status.mtime_ns
    same = next((slot for slot in slots if (slot.inode, slot.mtime_ns) == there), None)
    return same or next((slot for slot in slots if slot.offset == kept.offset), None)


def _wrong(kept: _Kept, slots: list[_Slot]) -> str | None:
    """Return what is wrong with an ``.ofs``; None: nothing is known to be."""
    size = len(kept.data)
    if size not in (0, OFFSET_SIZE):
        return f"a kept offset must have {OFFSET_SIZE} bytes, this file has {size}{'+' if size > OFFSET_SIZE else ''}"
    if not slots:
        return None
    newest, here = slots[0], _describes(kept, slots)
    if not size:
        emptied = here is None or any(slot.inode == kept.status.inode for slot in slots if slot.offset != NOTHING)
        return f"this file is empty, but the reader has kept offset {newest.offset}" if emptied else None
    if here is not None and here.offset == kept.offset:
        return None
    if here is None and not newest.strict:
        return None
    return f"this file holds offset {kept.offset}, expected {(here or newest).offset}: its bytes have changed"


def _reader(name: str) -> int:
    return crc32c(name.encode("utf-8", "surrogateescape"))


def kept_offsets(directory: Directory) -> dict[str, int | None]:
    """Return the kept offsets of all readers, by name."""
    return {name: read_kept(directory, name) for name in directory.reader_names()}


def check_reader(directory: Directory, name: str) -> str:
    """Accept the name of a reader: one that may be created here, or one whose file is there.

    Programs of the original use other names too, such as ``host:1`` or ``a b``.

    Raises:
        InvalidNameError: no such file is there, and the name has other characters than a new reader's may have; or it
            could leave ``ofs/``.
        TypeError: it is not a str.
    """
    try:
        return check_name(name, "a reader's name")
    except InvalidNameError:
        if not name or "/" in name or "\0" in name:
            raise
        try:
            there = directory.disk.status(directory.at("ofs", f"{name}.ofs"))
        except OSError:  # a longer name than the file system takes
            there = None
        if there is None:
            raise
        return name
