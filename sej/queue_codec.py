"""The records of a queue's state log as bytes, and back: no I/O, three outcomes.

:func:`record` and :func:`head` make bytes. :func:`good_bytes` says how far bytes are records; what stands behind is a
torn tail where no good record follows it, else damage.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from sej.codec import encode
from sej.message import Message
from sej.queue_format import CHECK, HEAD, HEAD_BODY, KINDS, MAGIC, RECORD_BODY, RECORD_SIZE, VERSION

__all__ = ["Checked", "good_bytes", "head", "message_check", "read_head", "record", "stamp_of"]

_CHECKED = RECORD_SIZE - CHECK.size


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


def head(epoch: int) -> bytes:
    """The first 40 bytes of a log."""
    body = HEAD_BODY.pack(MAGIC, VERSION, epoch, b"")
    return body + CHECK.pack(crc32c(body))


def read_head(data: bytes) -> int | None:
    """The epoch that a log's first bytes name; None: they are no head of this version."""
    if len(data) < RECORD_SIZE:
        return None
    magic, version, epoch, _, check = HEAD.unpack_from(data)
    return epoch if (magic, version, check) == (MAGIC, VERSION, crc32c(data[:_CHECKED])) else None


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
    while at <= last and _is_good(data, at):
        at += RECORD_SIZE
    behind = range(at + RECORD_SIZE, last + 1, RECORD_SIZE)
    return Checked(at, any(_is_good(data, later) for later in behind))


def _is_good(data: bytes, at: int) -> bool:
    end = at + _CHECKED
    return data[at] in KINDS and CHECK.unpack_from(data, end)[0] == crc32c(data[at:end])


def message_check(message: Message) -> int:
    """What ties a record to a message: the CRC32C of the message as it stands in the journal."""
    return crc32c(encode(*message))


def stamp_of(timestamp: int) -> int:
    """The low 32 bits of a timestamp."""
    return timestamp & 0xFFFFFFFF
