"""The records of a queue's state log as bytes, and back: no I/O.

There is one constructor for each kind of record; :data:`sej.queue.log.kinds.KINDS` says how its fields become bytes.
:func:`good_bytes` says how far bytes are records. What follows is a torn tail if no good record is in it, else damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from sej.codec import encode
from sej.message import Message
from sej.queue.log.format import (
    BACK,
    BLOCK,
    BOOT,
    CHECK,
    CHECKED,
    COUNTS,
    DEAD,
    DEDUPE,
    DONE,
    DROP,
    EXHAUSTED,
    EXPIRE,
    EXTEND,
    FREE,
    HEAD,
    HEAD_BODY,
    HEADERS,
    HEADERS_PART,
    INTENT,
    KEPT,
    KEY,
    LEASE,
    LOST,
    MAGIC,
    ORDER,
    PARK,
    PAUSE,
    PICK,
    PURGE,
    RATE,
    RECORD,
    RECORD_BODY,
    RECORD_SIZE,
    SCAN,
    START,
    VERSION,
    WAIT,
    WORDS,
)
from sej.queue.log.headers import read_headers
from sej.queue.log.key_order import key_hash
from sej.queue.log.kinds import KINDS
from sej.system.checksum import crc32c

_U32, _U64 = 2**32, 2**64
_pack = RECORD_BODY.pack
_pack_check = CHECK.pack


def _packer(kind: int) -> Callable[..., bytes]:
    """Return a function that makes records of a kind from their fields, in the table's order."""
    words = list(KINDS[kind].fields.values())
    places = itemgetter(*(words.index(word) + 2 if word in words else int(word == "kind") for word in WORDS))

    def pack(*fields: int) -> bytes:
        body = _pack(*places((0, kind, *fields)))
        return body + _pack_check(crc32c(body))

    return pack


_made = {kind: _packer(kind) for kind in KINDS}


def leased(first: int, stop: int, holder: int, deadline_ns: int, stamp: int) -> bytes:
    """LEASE: a run of fresh messages is leased."""
    body = _pack(LEASE, 0, 1, holder, first, stop, deadline_ns, stamp)
    return body + _pack_check(crc32c(body))


def one_done(offset: int, stamp: int = 0) -> bytes:
    """DONE, the most frequent one: a single item is done."""
    body = _pack(DONE, 0, 0, 0, offset, offset + 1, 0, stamp)
    return body + _pack_check(crc32c(body))


def done(first: int, stop: int, stamp: int = 0) -> bytes:
    """DONE: a run of items is done."""
    return _made[DONE](first, stop, stamp)


def picked(
    offset: int, attempt: int, holder: int, deadline_ns: int, priority: int, key_id: int = 0, stamp: int = 0
) -> bytes:
    """PICK: an item, out of order, is leased; key_id and stamp: in a queue with an order of keys."""
    body = _pack(PICK, priority, attempt, holder, offset, key_id, deadline_ns, stamp)
    return body + _pack_check(crc32c(body))


def picked_run(
    messages: list[Message], index: int, n: int, held: Mapping[int, object], holder: int, deadline_ns: int
) -> tuple[bytes, list[tuple[Message, int]]]:
    """PICK, one for each of at most n messages from index on, up to the first whose key is held or taken before.

    Returns:
        The records, and (message, 1) for each.
    """
    records, run, taken = [], [], set()
    for message in messages[index : index + n]:
        key = key_hash(message.key)
        if key in held or key in taken:
            break
        if key:
            taken.add(key)
        records.append(picked(message.offset, 1, holder, deadline_ns, 0, key, stamp_of(message.timestamp)))
        run.append((message, 1))
    return b"".join(records), run


def waits(offset: int, ready_at_ns: int, attempt: int, priority: int) -> bytes:
    """WAIT: an item may be taken from this time on."""
    return _made[WAIT](offset, ready_at_ns, attempt, priority, 0, 0)


def exhausted(offset: int, ready_at_ns: int, attempt: int, priority: int, stamp: int = 0) -> bytes:
    """WAIT: an item is about to become a dead letter; a process that reaches it from this time on finishes that."""
    return _made[WAIT](offset, ready_at_ns, attempt, priority, EXHAUSTED, stamp)


def extended(offset: int, deadline_ns: int, attempt: int) -> bytes:
    """EXTEND: a lease lasts until this time."""
    return _made[EXTEND](offset, deadline_ns, attempt)


def freed(holder: int) -> bytes:
    """FREE: every lease of a holder is given back."""
    return _made[FREE](holder)


def dead(offset: int, attempt: int = 0, stamp: int = 0) -> bytes:
    """DEAD: an item is a dead letter."""
    return _made[DEAD](offset, attempt, stamp)


def intended(offset: int, timestamp: int, check: int, ready_at_ns: int, priority: int) -> bytes:
    """INTENT: the message that will be there waits until this time."""
    return _made[INTENT](offset, timestamp % _U64, check, ready_at_ns, priority)


def expires(offset: int, timestamp: int, check: int, at_ns: int) -> bytes:
    """EXPIRE: a message expires at this time."""
    return _made[EXPIRE](offset, timestamp % _U64, check, at_ns)


def headed(offset: int, part: int, data: bytes) -> bytes:
    """HEADERS: a part of an item's headers, 24 bytes."""
    return _made[HEADERS](offset, part, *HEADERS_PART.unpack(data))


def deduped(key: bytes, offset: int, until_ns: int, check: int) -> bytes:
    """DEDUPE: the meaning of a key's 12 bytes until this time; until 0: none."""
    return _made[DEDUPE](int.from_bytes(key[:4], "big"), int.from_bytes(key[4:], "big"), offset, until_ns, check)


def kept(offset: int, now_ns: int) -> bytes:
    """KEPT: the kept offset."""
    return _made[KEPT](offset, now_ns)


def purged(frontier: int, stop: int) -> bytes:
    """PURGE: everything below stop that is not leased is removed."""
    return _made[PURGE](frontier, stop)


def dropped(offset: int) -> bytes:
    """DROP: an INTENT is void."""
    return _made[DROP](offset)


def booted(boot_id: bytes, began_ns: int, now_ns: int) -> bytes:
    """BOOT: times that follow are of this boot, which began at began_ns of the wall clock; now_ns is its time."""
    high, low = int.from_bytes(boot_id[:8], "big"), int.from_bytes(boot_id[8:], "big")
    return _made[BOOT](high, low, began_ns, now_ns // _U32 % _U32, now_ns % _U32)


def starts(frontier: int, newest: int, stamp: int) -> bytes:
    """START: fresh messages begin here, and the newest one that was taken."""
    return _made[START](frontier, newest, stamp)


def counted(done: int, dead: int, lost: int) -> bytes:
    """COUNTS: how many items ended before the records that follow."""
    return _made[COUNTS](done, dead, lost)


def lost(first: int, stop: int, parked: int = 0) -> bytes:
    """LOST: messages were removed from the journal before they were done; so many of them were parked."""
    return _made[LOST](first, stop, parked)


def redriven(journal: int, stop: int, count: int = 0) -> bytes:
    """BACK: the dead letters below stop were put back."""
    return _made[BACK](journal, stop, count)


def ordered(order: int, block: int, max_attempts: int = 0) -> bytes:
    """ORDER: the order of the queue, and its most attempts; 0: as before."""
    return _made[ORDER](order, block, max_attempts)


def keyed(offset: int, key_id: int, holds: int = 0) -> bytes:
    """KEY: the key of an item that is leased or waiting."""
    return _made[KEY](offset, key_id, holds)


def scanned(stop: int, count: int, stamp: int) -> bytes:
    """SCAN: fresh messages begin here; those before it that were not taken are parked."""
    return _made[SCAN](stop, count, stamp)


def parked(key_id: int, first: int) -> bytes:
    """PARK: from this offset on, items of a key are parked."""
    return _made[PARK](key_id, first)


def blocked(offset: int, key_id: int, on: int) -> bytes:
    """BLOCK: a dead letter keeps its key, or does not any more."""
    return _made[BLOCK](offset, key_id, on)


def paused(on: int) -> bytes:
    """PAUSE: no item is delivered, or items are delivered again."""
    return _made[PAUSE](on)


def rated(full_at_ns: int) -> bytes:
    """RATE: the bucket of the rate is full again at this time."""
    return _made[RATE](full_at_ns)


def read_fields(records: bytes) -> Iterator[tuple[int, dict[str, int]]]:
    """The kind and the fields of whole, checked records; kinds that are not in the table are left out."""
    readers = {number: (list(kind.fields), kind.read()) for number, kind in KINDS.items()}
    for row in RECORD.iter_unpack(records):
        if row[0] in readers:
            names, read = readers[row[0]]
            yield row[0], dict(zip(names, read(row), strict=True))


def head(epoch: int, name: str = "") -> bytes:
    """The first 40 bytes of the log of a queue with this name, or of any queue if there is no name."""
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
    """Which bytes are records.

    Attributes:
        size: this many bytes are good records.
        damaged: whether good records follow bad bytes, so that it is not a torn tail.
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
    """Return the link between a record and a message: the CRC32C of the message as stored in the journal."""
    return crc32c(encode(*message))


def headers_of(rows: Mapping[int, bytes], message: Message) -> dict[str, str]:
    """Return the headers of a message, of those that a state has."""
    data = rows.get(message.offset)
    return {} if data is None else read_headers(data, message.timestamp, message_check(message))


def stamp_of(timestamp: int) -> int:
    """The low 32 bits of a timestamp."""
    return timestamp & 0xFFFFFFFF
