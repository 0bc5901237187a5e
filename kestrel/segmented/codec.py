"""Decoding and encoding of records. No I/O.

:func:`decode` has three results: a :class:`Record`; None if more bytes are needed; :class:`DamageError` if the bytes
are not a record. :func:`item_of`, :func:`head_of` and :func:`done_of` return the meaning of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kestrel.errors import DamageError
from kestrel.fast import Table
from kestrel.segmented.format import (
    COMMANDS,
    DATA_COMMANDS,
    DONE_BYTE,
    DONE_HEAD,
    HEAD_BYTE,
    HEAD_RECORD,
    ID,
    ID_SIZE,
    MAX_DATA_SIZE,
    PUT,
    PUT_BYTE,
    PUT_EXPIRING_BYTE,
    PUT_EXPIRING_HEAD,
    PUT_HEAD,
    WORD,
    WORD_SIZE,
)


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

    @property
    def size(self) -> int:
        """All its bytes in the file, the command byte included."""
        return 1 + len(self.header) + len(self.data or b"")


def whole_size(data: bytes, at: int = 0, position: int = 0) -> int | None:
    """How many bytes the record at ``at`` takes; None while its size is incomplete.

    Raises:
        DamageError: the header has no room for the size, or the size is negative or over 16 MiB.
    """
    if at >= len(data):
        return None
    command, words = divmod(data[at], 16)
    head = 1 + words * WORD_SIZE
    if command < DATA_COMMANDS:
        return head
    if not words:
        raise DamageError(
            f"command {command} must have a header with the size of its data, got no header",
            position=position,
        )
    if at + 1 + WORD_SIZE > len(data):
        return None
    size: int = WORD.unpack_from(data, at + 1)[0]
    if not 0 <= size <= MAX_DATA_SIZE:
        raise DamageError(f"a data block must have 0 to {MAX_DATA_SIZE} bytes, got {size}", position=position)
    return head + size


def decode(data: bytes, at: int = 0, position: int = 0) -> Record | None:
    """The record at ``at``; None while it is incomplete.

    Args:
        data: bytes of a file, after its magic.
        at: where in them the record begins.
        position: where in the file that is.

    Raises:
        DamageError: these bytes are not a record.
    """
    size = whole_size(data, at, position)
    if size is None or at + size > len(data):
        return None
    command, words = divmod(data[at], 16)
    head = at + 1 + words * WORD_SIZE
    return Record(position, command, data[at + 1 : head], data[head : at + size] if command >= DATA_COMMANDS else None)


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


def head_of(record: Record) -> int:
    """The id of a READ_HEAD.

    Raises:
        DamageError: the header is too short for an id.
    """
    if len(record.header) < ID_SIZE:
        raise DamageError(
            f"READ_HEAD with a header of {len(record.header)} bytes; expected 8", position=record.position
        )
    number: int = ID.unpack_from(record.header)[0]
    return number


def done_of(record: Record) -> list[int]:
    """The ids of a READ_DONE.

    Raises:
        DamageError: the data is not a sequence of 8-byte ids.
    """
    data = record.data or b""
    if len(data) % ID_SIZE:
        raise DamageError(f"READ_DONE of {len(data)} bytes; expected a multiple of 8", position=record.position)
    return [number for (number,) in ID.iter_unpack(data)]


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
