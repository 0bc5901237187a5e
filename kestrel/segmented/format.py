"""The records of libkestrel's files: commands and limits; decoding and encoding them. No I/O.

Source: "Journal file format" (Kestrel 3), and the program itself for what the document does not say: a command byte of
0 ends a file, and no data block is over 16 MiB. The magics are big endian, everything else is little endian and signed.
``docs/formats/kestrel-3.md`` shows the table of commands and is tested against it.

A record is a command byte (four bits of command, four bits of header size in words of 4 bytes), the header, and for
commands of 8 and above as many bytes of data as the first word of the header says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from kestrel.errors import DamageError
from kestrel.fast import Table

READ_HEAD: Final = 0
PUT: Final = 8
READ_DONE: Final = 9
DATA_COMMANDS: Final = 8
"""Commands from here on are followed by data."""
END_BYTE: Final = 0
MAX_DATA_SIZE: Final = 16 << 20
MAX_ID: Final = 2**63 - 1

WORD: Final = struct.Struct("<i")
ID: Final = struct.Struct("<q")


class Command(NamedTuple):
    """One known record.

    Attributes:
        command: the upper four bits of the first byte.
        name: as the document writes it.
        file: ``writer`` or ``reader``, in which it counts.
        words: the header sizes that are written.
        fields: the header's fields with their width in bytes.
    """

    command: int
    name: str
    file: str
    words: tuple[int, ...]
    fields: tuple[tuple[str, int], ...]

    def byte(self, words: int) -> int:
        """Return the command byte for a header of this many words."""
        return self.command << 4 | words


COMMANDS: Final = {
    record.command: record
    for record in (
        Command(READ_HEAD, "READ_HEAD", "reader", (2,), (("id", 8),)),
        Command(
            PUT,
            "PUT",
            "writer",
            (6, 8),
            (("size", 4), ("error_count", 4), ("id", 8), ("add_time", 8), ("expire_time", 8)),
        ),
        Command(READ_DONE, "READ_DONE", "reader", (1,), (("size", 4),)),
    )
}

PUT_BYTE: Final = COMMANDS[PUT].byte(6)
PUT_EXPIRING_BYTE: Final = COMMANDS[PUT].byte(8)
HEAD_BYTE: Final = COMMANDS[READ_HEAD].byte(2)
DONE_BYTE: Final = COMMANDS[READ_DONE].byte(1)

PUT_HEAD: Final = struct.Struct("<Biiqq")
"""command byte, size, error_count, id, add_time"""
PUT_EXPIRING_HEAD: Final = struct.Struct("<Biiqqq")
"""command byte, size, error_count, id, add_time, expire_time"""
HEAD_RECORD: Final = struct.Struct("<Bq")
"""command byte, id"""
DONE_HEAD: Final = struct.Struct("<Bi")
"""command byte, size"""

assert (PUT_BYTE, PUT_EXPIRING_BYTE, HEAD_BYTE, DONE_BYTE) == (0x86, 0x88, 0x02, 0x91)
assert PUT_HEAD.size == 1 + 6 * WORD.size
assert PUT_EXPIRING_HEAD.size == 1 + 8 * WORD.size


class Item(NamedTuple):
    """One item of a queue.

    Attributes:
        id: its number, from 1; never 0.
        add_time: when it was put, in ms since the epoch.
        expire_time: when it expires, in ms since the epoch; None: never; 0 is 1970, so immediately.
        error_count: how often it was given back.
        data: its bytes.
    """

    id: int
    add_time: int
    expire_time: int | None
    error_count: int
    data: bytes


class Record(NamedTuple):
    """One record as it is stored in a file.

    Attributes:
        position: its first byte in the file.
        command: 0 to 15.
        header: the header's bytes.
        data: the data block; None for commands that have none.
    """

    position: int
    command: int
    header: bytes
    data: bytes | None


def decode(data: bytes, at: int = 0, position: int = 0) -> tuple[Record | None, int | None]:
    """The record at ``at``, and how many bytes it takes; None for what the bytes do not show yet.

    Args:
        data: bytes of a file, after its magic.
        at: where in them the record begins.
        position: where in the file that is.

    Raises:
        DamageError: the header has no room for the size, or the size is negative or over 16 MiB.
    """
    if at >= len(data):
        return None, None
    command, words = divmod(data[at], 16)
    start = stop = at + 1 + words * WORD.size
    if command >= DATA_COMMANDS:
        if not words:
            raise DamageError(
                f"command {command} must have a header with the size of its data, got no header", position=position
            )
        if at + 1 + WORD.size > len(data):
            return None, None
        (size,) = WORD.unpack_from(data, at + 1)
        if not 0 <= size <= MAX_DATA_SIZE:
            raise DamageError(f"a data block must have 0 to {MAX_DATA_SIZE} bytes, got {size}", position=position)
        stop += size
    if stop > len(data):
        return None, stop - at
    content = data[start:stop] if command >= DATA_COMMANDS else None
    return Record(position, command, data[at + 1 : start], content), stop - at


_NAMES: Final = tuple(name for name, _ in COMMANDS[PUT].fields)
PUTS: Final = Table(
    Item,
    "command",
    MAX_DATA_SIZE,
    [(PUT_BYTE, _NAMES[:-1], PUT_HEAD, 0), (PUT_EXPIRING_BYTE, _NAMES, PUT_EXPIRING_HEAD, 0)],
)
"""The ordinary PUTs; each is decoded to its item."""


def item_of(record: Record) -> Item:
    """What a PUT holds: an expiry where the header has room for one; further words are passed over.

    Raises:
        DamageError: the header is too short for an item.
    """
    raw = bytes((PUT_BYTE,)) + record.header
    if len(raw) < PUT_HEAD.size:
        raise DamageError(
            f"PUT with a header of {len(record.header)} bytes; expected at least 24", position=record.position
        )
    _, _, errors, number, add_time = PUT_HEAD.unpack_from(raw)
    expire_time = PUT_EXPIRING_HEAD.unpack_from(raw)[5] if len(raw) >= PUT_EXPIRING_HEAD.size else None
    return Item(number, add_time, expire_time, errors, record.data or b"")


def ids_of(record: Record) -> list[int]:
    """The id of a READ_HEAD, the ids of a READ_DONE.

    Raises:
        DamageError: the header or the data is not a sequence of 8-byte ids.
    """
    ids = record.header[: ID.size] if record.data is None else record.data
    if len(ids) % ID.size:
        raise DamageError(f"ids of {len(ids)} bytes; expected a multiple of {ID.size}", position=record.position)
    return [number for (number,) in ID.iter_unpack(ids)]


def encode_put(item: Item) -> bytes:
    """The bytes of a PUT."""
    size = len(item.data)
    if item.expire_time is None:
        return PUT_HEAD.pack(PUT_BYTE, size, item.error_count, item.id, item.add_time) + item.data
    head = PUT_EXPIRING_HEAD.pack(PUT_EXPIRING_BYTE, size, item.error_count, item.id, item.add_time, item.expire_time)
    return head + item.data


def encode_head(number: int) -> bytes:
    """The bytes of a READ_HEAD."""
    return HEAD_RECORD.pack(HEAD_BYTE, number)


def encode_done(numbers: Iterable[int]) -> bytes:
    """The bytes of READ_DONE records for these ids: one, or more if 16 MiB do not hold them; one also for no ids."""
    ids = b"".join(map(ID.pack, numbers))
    blocks = [ids[at : at + MAX_DATA_SIZE] for at in range(0, len(ids), MAX_DATA_SIZE)] or [b""]
    return b"".join(DONE_HEAD.pack(DONE_BYTE, len(block)) + block for block in blocks)
