"""The records of a queue's state log as bytes, and back: no I/O, three outcomes.

:func:`record` and :func:`head` make bytes. :func:`good_bytes` says how far bytes are records; what stands behind is a
torn tail where no good record follows it, else damage.
"""

from __future__ import annotations

from typing import NamedTuple

from sej.codec import encode
from sej.message import Message
from sej.queue.log_format import (
    BOOT,
    CHECK,
    CHECKED,
    DEDUPE,
    DONE,
    HEAD,
    HEAD_BODY,
    LEASE,
    MAGIC,
    RECORD_BODY,
    RECORD_SIZE,
    VERSION,
)
from sej.system.checksum import crc32c

__all__ = [
    "Checked",
    "boot_record",
    "dedupe_record",
    "done_record",
    "good_bytes",
    "head",
    "lease_record",
    "message_check",
    "read_head",
    "record",
    "stamp_of",
]

_pack = RECORD_BODY.pack
_pack_check = CHECK.pack


def record(
    kind: int,
    offset: int = 0,
    a: int = 0,
    b: int = 0,
    *,
    band: int = 0,
    attempt: int = 0,
    slot: int = 0,
    extra: int = 0,
) -> bytes:
    """One record."""
    body = RECORD_BODY.pack(kind, band, attempt, slot, offset, a, b, extra)
    return body + CHECK.pack(crc32c(body))


def done_record(offset: int, stamp: int = 0) -> bytes:
    """The most frequent one: a single item is done."""
    body = _pack(DONE, 0, 0, 0, offset, offset + 1, 0, stamp)
    return body + _pack_check(crc32c(body))


def lease_record(first: int, stop: int, deadline: int, slot: int, stamp: int) -> bytes:
    """The next frequent one: a run of fresh messages is leased."""
    body = _pack(LEASE, 0, 1, slot, first, stop, deadline, stamp)
    return body + _pack_check(crc32c(body))


def boot_record(boot_id: bytes, began: int, now: int) -> bytes:
    """Times that follow are of this boot, which began at began, ns of the wall clock; now is its time."""
    high, low = int.from_bytes(boot_id[:8], "big"), int.from_bytes(boot_id[8:], "big")
    return record(BOOT, high, low, began, slot=now >> 32 & 0xFFFFFFFF, extra=now & 0xFFFFFFFF)


def dedupe_record(key: bytes, offset: int, until: int, check: int) -> bytes:
    """What a dedupe key's 12 bytes mean until then; until 0: nothing any more."""
    slot, a = int.from_bytes(key[:4], "big"), int.from_bytes(key[4:], "big")
    return record(DEDUPE, offset, a, until, slot=slot, extra=check)


def head(epoch: int, name: str = "") -> bytes:
    """The first 40 bytes of the log of a queue with this name; of no queue's if there is none."""
    body = HEAD_BODY.pack(MAGIC, VERSION, epoch, crc32c(name.encode()), b"")
    return body + CHECK.pack(crc32c(body))


def read_head(data: bytes, name: str) -> int | None:
    """The epoch that a log's first bytes name; None: they are not a head of this version, or another queue's."""
    if len(data) < RECORD_SIZE:
        return None
    magic, version, epoch, queue, _, _ = HEAD.unpack_from(data)
    sound = (magic, version, crc32c(data[:RECORD_SIZE])) == (MAGIC, VERSION, CHECKED)
    return epoch if sound and queue in (0, crc32c(name.encode())) else None


class Checked(NamedTuple):
    """How far bytes are records.

    Attributes:
        size: so many bytes are good records.
        damaged: whether good records follow what is not good: then it is no torn tail.
    """

    size: int
    damaged: bool


def good_bytes(data: bytes) -> Checked:
    """Check records, from the first byte on."""
    at = 0
    last = len(data) - RECORD_SIZE
    while at <= last and crc32c(data[at : at + RECORD_SIZE]) == CHECKED:
        at += RECORD_SIZE
    if at == len(data):
        return Checked(at, False)
    behind = range(at + RECORD_SIZE, last + 1, RECORD_SIZE)
    return Checked(at, any(crc32c(data[later : later + RECORD_SIZE]) == CHECKED for later in behind))


def message_check(message: Message) -> int:
    """What ties a record to a message: the CRC32C of the message as it stands in the journal."""
    return crc32c(encode(*message))


def stamp_of(timestamp: int) -> int:
    """The low 32 bits of a timestamp."""
    return timestamp & 0xFFFFFFFF
