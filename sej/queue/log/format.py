"""The state log of a queue, ``ofs/NAME.queue``, as bytes: its layout, its kinds of records, and back. No I/O.

A head of 40 bytes, then records of 40 bytes, appended under the queue's lock. Integers are big endian::

    head   = "SEJQUEUE" version(u32) epoch(u32) queue(u32) reserved(16) check(u32)
    record = kind(u8) priority(i8) attempt(u16) holder(u32) offset(u64) a(u64) b(u64) extra(u32) check(u32)

``check`` is the CRC32C of the 36 bytes before it, lowest byte first, so that the CRC32C of a whole record is always
:data:`CHECKED`. ``epoch`` is a random number that changes when the state was rebuilt: older leases are void. ``queue``
is the CRC32C of the queue's name. Times are nanoseconds of the boot-time clock of the last :data:`BOOT`.

Each kind of record is one row of the table below. Called with its fields, it makes the bytes of a record;
:class:`sej.queue.log.state.QueueState` has a handler for each. :func:`good_bytes` says how far bytes are records. What
follows is a torn tail if no good record is in it, else damage.

Texts of an item (its headers, the reason of its last failure, its result) are cut into parts of 24 bytes, one record
for each. All parts of the headers together, and those of a result::

    timestamp(i64) check(u32) size(u32) text(size)
    outcome(u32) until_ns(u64) size(u32) data(size)
    size(u32) key_size(u32) value_size(u32) text(size) key(key_size) value(value_size)

The text is a JSON object. Timestamp and check name the message, as in INTENT and EXPIRE: the record is written before
the message, so the message with this offset may be another one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sej.codec import encode
from sej.message import Message
from sej.queue.interface.values import encoded
from sej.system.checksum import crc32c_function

MAGIC: Final = b"SEJQUEUE"
VERSION: Final = 1
RECORD_SIZE: Final = 40
"""The size of the head too, so that every record starts at a multiple of it."""
HEAD_BODY: Final = struct.Struct(">8sIII16s")
HEAD: Final = struct.Struct(">8sIII16sI")
RECORD_BODY: Final = struct.Struct(">BbHIQQQI")
RECORD: Final = struct.Struct(">BbHIQQQI4x")
"""A record that was checked."""
WORDS: Final = ("kind", "priority", "attempt", "holder", "offset", "a", "b", "extra")
_A: Final = WORDS.index("a")
"""The words of a record, in their order."""
CHECK: Final = struct.Struct("<I")
CHECKED: Final = 0x48674BC7
"""The CRC32C of bytes followed by their own CRC32C, lowest byte first: one call checks a record."""
MAX_PRIORITY: Final = 3
"""Priorities are -MAX_PRIORITY to MAX_PRIORITY."""
MAX_ATTEMPT: Final = 2**16 - 1
MAX_REASON_BYTES: Final = 4096
"""So much of the reason of an item's last failure is kept."""
EXHAUSTED: Final = 1
"""In the last word of WAIT: a process began to give this item up; the next one that reaches it finishes that."""
NO_RESULT, RESULT_KEPT, FAILED = range(3)
"""The outcomes of an item: it was done without a result, it was done with one, it is a dead letter."""
_HEADERS_HEAD: Final = struct.Struct(">qII")
_RESULT_HEAD: Final = struct.Struct(">IQI")
_SCHEDULE_HEAD: Final = struct.Struct(">III")
_PART: Final = struct.Struct(">IQQI")
"""The words of a record that hold a part of a text: holder, a, b and extra."""
_U32, _U64 = 2**32, 2**64
crc32c: Final = crc32c_function()
_pack = RECORD_BODY.pack
_pack_check = CHECK.pack


class Kind:
    """A kind of record.

    Attributes:
        number: the first byte of its records.
        name: as on the format's page.
        fields: each field's name, and the word of the record that holds it.
        read: returns the fields in the words of a record.
    """

    def __init__(self, number: int, name: str, fields: str) -> None:
        """Set a row: its fields are ``name=word``, or only the word if it is the field's name."""
        self.number, self.name = number, name
        pairs = [field.partition("=") for field in fields.split()]
        self.fields = {field: word or field for field, _, word in pairs}
        self._places = [WORDS.index(word) for word in self.fields.values()]
        first = self._places[0]
        self.read: Callable[[tuple[Any, ...]], tuple[int, ...]]
        self.read = itemgetter(*self._places) if len(self._places) > 1 else itemgetter(slice(first, first + 1))

    def __call__(self, *fields: int) -> bytes:
        """Return a record with these fields, in the table's order; those that are left out are 0."""
        words = [self.number, 0, 0, 0, 0, 0, 0, 0]
        for place, value in zip(self._places, fields, strict=False):
            words[place] = value
        words[_A] %= _U64  # a timestamp may be negative
        body = _pack(*words)
        return body + _pack_check(crc32c(body))


# --- the kinds of records: docs/formats/queue.md shows these lines
# the fresh messages first..stop-1 are leased to holder until deadline_ns; attempt: 1; stamp: of the last one
LEASE: Final = Kind(1, "LEASE", "first=offset stop=a attempt holder deadline_ns=b stamp=extra")
# first..stop-1 are done; stamp: of the last one, or 0
DONE: Final = Kind(2, "DONE", "first=offset stop=a stamp=extra")
# offset, out of order, is leased to holder until deadline_ns; attempt: the number of this lease; key_id and stamp: 0 if
# the queue has no order of keys
PICK: Final = Kind(3, "PICK", "offset attempt holder deadline_ns=b priority key_id=a stamp=extra")
# offset may be taken from ready_at_ns on; attempt: how often it was leased; exhausted 1: offset, of this stamp, is
# being given up
WAIT: Final = Kind(4, "WAIT", "offset ready_at_ns=b attempt priority exhausted=extra stamp=a")
# the lease of offset lasts until deadline_ns
EXTEND: Final = Kind(5, "EXTEND", "offset deadline_ns=b attempt")
# every lease of holder is given back
FREE: Final = Kind(6, "FREE", "holder")
# offset is a dead letter; stamp: of its message, or 0
DEAD: Final = Kind(7, "DEAD", "offset attempt stamp=extra")
# the message that will be offset, with this timestamp and CRC32C, waits until ready_at_ns
INTENT: Final = Kind(8, "INTENT", "offset timestamp=a check=extra ready_at_ns=b priority")
# the message offset, with this timestamp and CRC32C, expires at at_ns
EXPIRE: Final = Kind(9, "EXPIRE", "offset timestamp=a check=extra at_ns=b")
# until until_ns the key with this hash means message offset with this CRC32C; until_ns 0: it means nothing
DEDUPE: Final = Kind(10, "DEDUPE", "key_high=holder key_low=a offset until_ns=b check=extra")
# NAME.ofs holds offset; it is now_ns
KEPT: Final = Kind(11, "KEPT", "offset now_ns=b")
# everything below stop that is not leased is removed; frontier: where fresh messages began
PURGE: Final = Kind(12, "PURGE", "frontier=offset stop=a")
# the INTENT for offset is void: its message does not match
DROP: Final = Kind(13, "DROP", "offset")
# times below are of the boot with this id, which began at began_ns of the wall clock; it is now
BOOT: Final = Kind(14, "BOOT", "id_high=offset id_low=a began_ns=b now_high=holder now_low=extra")
# fresh messages begin at frontier; newest, with this stamp, was taken last
START: Final = Kind(15, "START", "frontier=offset newest=a stamp=extra")
# so many items were done, dead and lost so far; the last record of a rewritten log
COUNTS: Final = Kind(16, "COUNTS", "done=offset dead=a lost=b")
# first..stop-1 were removed from the journal before they were done; leased ones are not meant; parked: how many of them
# were parked
LOST: Final = Kind(17, "LOST", "first=offset stop=a parked=b")
# the dead letters below stop, in the journal whose id begins with journal, were put back; count: how many
BACK: Final = Kind(18, "BACK", "journal=a stop=offset count=extra")
# order 1: items of a key are delivered in order; 2: kinds of items are limited; 0: neither; block 1: a dead letter
# keeps its key; max_attempts: after so many an item becomes a dead letter; 0: as before, at first 5
ORDER: Final = Kind(19, "ORDER", "order=offset block=a max_attempts=attempt")
# 20 to 23: only in queues with order="key".
# the key of offset, which is leased or waiting; holds 1: it was delivered and keeps its key
KEY: Final = Kind(20, "KEY", "offset key_id=a holds=b")
# fresh messages begin at stop; count of those before it are parked; stamp: of the last one before it, or 0
SCAN: Final = Kind(21, "SCAN", "stop=offset count=a stamp=extra")
# from first on, the messages of this key that were passed by are parked; first 2^63-1: none is
PARK: Final = Kind(22, "PARK", "key_id=a first=offset")
# the dead letter offset keeps its key; on 0: it does not any more
BLOCK: Final = Kind(23, "BLOCK", "offset key_id=a on=b")
# on 1: no item is delivered; 0: items are delivered again
PAUSE: Final = Kind(24, "PAUSE", "on=offset")
# the token bucket of the rate is full at full_at_ns; key_id: the kind that it limits, 0: the queue
RATE: Final = Kind(25, "RATE", "full_at_ns=b key_id=a")
# 24 bytes of the headers of the message offset; part: which ones, from 0
HEADERS: Final = Kind(26, "HEADERS", "offset part=attempt text_1=holder text_2=a text_3=b text_4=extra")
# 24 bytes of the reason for which the last attempt of offset failed; part: which ones, from 0
REASON: Final = Kind(27, "REASON", "offset part=attempt text_1=holder text_2=a text_3=b text_4=extra")
# the result of the message offset, with this timestamp and CRC32C, is kept for keep_ns after the item has ended
KEEP: Final = Kind(28, "KEEP", "offset timestamp=a check=extra keep_ns=b")
# 24 bytes of the result of offset, which counts once the item has ended; part: which ones, from 0
RESULT: Final = Kind(29, "RESULT", "offset part=attempt text_1=holder text_2=a text_3=b text_4=extra")
# 24 bytes of the definition of a schedule, which counts from the TURN after it on; part: which ones, from 0
SCHEDULE: Final = Kind(30, "SCHEDULE", "number=offset part=attempt text_1=holder text_2=a text_3=b text_4=extra")
# the next time of a schedule is next_ns of the wall clock, 0: unknown; message, with this CRC32C, is the item of the
# time before it, 2^63-1: none; every 1: its times keep their distance if the clock is set; state 1: paused, 2: removed
TURN: Final = Kind(31, "TURN", "number=offset next_ns=b message=a check=extra every=priority state=attempt")
# 24 bytes of the limits by kind, which count from the ORDER after them on; part: which ones, from 0
LIMIT: Final = Kind(32, "LIMIT", "number=offset part=attempt text_1=holder text_2=a text_3=b text_4=extra")
KINDS: Final = {kind.number: kind for kind in list(globals().values()) if isinstance(kind, Kind)}
"""Each kind of record by its number."""


# --- constructors of records whose fields are made from other values


def leased(first: int, stop: int, holder: int, deadline_ns: int, stamp: int) -> bytes:
    """LEASE: a run of fresh messages is leased."""
    body = _pack(1, 0, 1, holder, first, stop, deadline_ns, stamp)
    return body + _pack_check(crc32c(body))


def one_done(offset: int, stamp: int = 0) -> bytes:
    """DONE, the most frequent one: a single item is done."""
    body = _pack(2, 0, 0, 0, offset, offset + 1, 0, stamp)
    return body + _pack_check(crc32c(body))


def picked(offset: int, attempt: int, holder: int, deadline_ns: int, priority: int, key_id: int, stamp: int) -> bytes:
    """PICK: an item is leased out of order."""
    body = _pack(3, priority, attempt, holder, offset, key_id, deadline_ns, stamp)
    return body + _pack_check(crc32c(body))


def all_done(rows: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """DONE: yield one record for each run of these items, sorted, each with its stamp or 0."""
    start = stop = stamp = -1
    for offset, following in rows:
        if offset != stop:
            if start >= 0:
                yield DONE(start, stop, stamp)
            start = offset
        stop, stamp = offset + 1, following
    if start >= 0:
        yield DONE(start, stop, stamp)


def exhausted(offset: int, ready_at_ns: int, attempt: int, priority: int, stamp: int = 0) -> bytes:
    """WAIT: an item is about to become a dead letter; a process that reaches it from this time on finishes that."""
    return WAIT(offset, ready_at_ns, attempt, priority, EXHAUSTED, stamp)


def deduped(key: bytes, offset: int, until_ns: int, check: int) -> bytes:
    """DEDUPE: the meaning of a key's 12 bytes until this time; until 0: none."""
    return DEDUPE(int.from_bytes(key[:4], "big"), int.from_bytes(key[4:], "big"), offset, until_ns, check)


def booted(boot_id: bytes, began_ns: int, now_ns: int) -> bytes:
    """BOOT: times that follow are of this boot, which began at began_ns of the wall clock; now_ns is its time."""
    high, low = int.from_bytes(boot_id[:8], "big"), int.from_bytes(boot_id[8:], "big")
    return BOOT(high, low, began_ns, now_ns // _U32 % _U32, now_ns % _U32)


def in_parts(kind: Kind, offset: int, text: bytes) -> Iterator[bytes]:
    """HEADERS, REASON or RESULT: yield the records of a text of an item; the last part ends with zeros."""
    for part, at in enumerate(range(0, len(text), _PART.size)):
        yield kind(offset, part, *_PART.unpack(text[at : at + _PART.size].ljust(_PART.size, b"\0")))


def reason_kept(offset: int, reason: str) -> bytes:
    """REASON: the records of why an attempt failed, cut to what is kept; none if it is empty."""
    return b"".join(in_parts(REASON, offset, reason.encode(errors="backslashreplace")[:MAX_REASON_BYTES]))


def add_part(texts: dict[int, bytes], number: int, part: int, *words: int) -> None:
    """Add the part in a record's words to a text; one that does not follow the part before it is left out."""
    data = _PART.pack(*words)
    if part == 0:
        texts[number] = data
    elif len(texts.get(number, b"")) == part * len(data):
        texts[number] += data


def packed_headers(headers: Mapping[str, str], timestamp: int, check: int) -> bytes:
    """Return the headers of the message with this timestamp and CRC32C, as their parts hold them."""
    text = encoded(headers)
    return _HEADERS_HEAD.pack(timestamp, check, len(text)) + text


def packed_result(outcome: int, until_ns: int, data: bytes) -> bytes:
    """Return the result of an item, as its parts hold it: kept until this time."""
    return _RESULT_HEAD.pack(outcome, until_ns, len(data)) + data


def packed_schedule(text: bytes, key: bytes, value: bytes) -> bytes:
    """Return the definition of a schedule, as its parts hold it: a text, and the key and the value of its items."""
    return _SCHEDULE_HEAD.pack(len(text), len(key), len(value)) + text + key + value


# --- reading


class Result(NamedTuple):
    """The result of an item.

    Attributes:
        outcome: NO_RESULT, RESULT_KEPT or FAILED.
        until_ns: how long it is kept, on the boot-time clock.
        data: the result, or why the item failed.
    """

    outcome: int
    until_ns: int
    data: bytes


def result_of(text: bytes | None) -> Result | None:
    """Return the result that the parts hold; None: there is none, or a part is missing."""
    if not text:
        return None
    outcome, until_ns, size = _RESULT_HEAD.unpack_from(text)
    data = text[_RESULT_HEAD.size : _RESULT_HEAD.size + size]
    return Result(outcome, until_ns, data) if len(data) == size else None


def schedule_of(data: bytes | None) -> tuple[bytes, bytes, bytes] | None:
    """Return the text, the key and the value that the parts hold; None: there is none, or a part is missing."""
    if not data:
        return None
    size, key_size, value_size = _SCHEDULE_HEAD.unpack_from(data)
    key_at = _SCHEDULE_HEAD.size + size
    value_at = key_at + key_size
    value = data[value_at : value_at + value_size]
    return (data[_SCHEDULE_HEAD.size : key_at], data[key_at:value_at], value) if len(value) == value_size else None


def headers_of(texts: Mapping[int, bytes], message: Message) -> dict[str, str]:
    """Return the headers of a message, of those that a state has; none if they are of another, or a part is missing."""
    data = texts.get(message.offset)
    if data is None:
        return {}
    *link, size = _HEADERS_HEAD.unpack_from(data)
    text = data[_HEADERS_HEAD.size : _HEADERS_HEAD.size + size]
    return dict(_parsed(text)) if link == [message.timestamp, message_check(message)] and len(text) == size else {}


@lru_cache(maxsize=256)
def _parsed(text: bytes) -> dict[str, str]:
    """Return the headers of a text: the same ones are read for many items, and twice for each with a limit by kind."""
    return dict(json.loads(text.decode()))


def read_fields(records: bytes) -> Iterator[tuple[Kind, dict[str, int]]]:
    """The kind and the fields of whole, checked records; kinds that are not in the table are left out."""
    for row in RECORD.iter_unpack(records):
        kind = KINDS.get(row[0])
        if kind is not None:
            yield kind, dict(zip(kind.fields, kind.read(row), strict=True))


def take_and_end(
    data: bytes, leased: dict[int, Any], frontier: int, most: int
) -> tuple[int, int, int, dict[int, tuple[int, int]], tuple[int, int] | None]:
    """Apply LEASE and DONE to a queue whose items are fresh, leased or done, up to the first other or wrong record.

    Most items end in the records in which they were taken: these are never added to ``leased``. Those that end and were
    leased before are removed from it. This is the reference of the compiled function.

    Returns:
        The bytes of the records that were applied; where fresh messages begin now; how many items ended that were
        leased; (holder, deadline_ns) of the new leases, by offset; and the anchor, as in
        :class:`sej.queue.log.state.QueueState`, None if no item was leased.
    """
    begun: dict[int, tuple[int, int]] = {}
    size = ended = 0
    anchor, lease, done = None, LEASE.number, DONE.number
    for kind, _, _, holder, first, stop, deadline_ns, stamp in RECORD.iter_unpack(data):
        if stop > first + most:
            break
        if kind == lease and first < stop <= frontier + most:
            for offset in range(first, stop):
                begun[offset] = holder, deadline_ns
            frontier, anchor = stop, (stop - 1, stamp)
        elif kind == done and stop <= frontier:
            for offset in range(first, stop):
                there = begun if offset in begun else leased
                if offset in there:
                    del there[offset]
                    ended += 1
        else:
            break
        size += RECORD_SIZE
    return size, frontier, ended, begun, anchor


def head(epoch: int, name: str) -> bytes:
    """The first 40 bytes of the log of a queue with this name."""
    body = HEAD_BODY.pack(MAGIC, VERSION, epoch, crc32c(name.encode()), b"")
    return body + CHECK.pack(crc32c(body))


def read_head(data: bytes, name: str) -> int | None:
    """The epoch that a log's first bytes name; None: they are not a head of this version, or another queue's."""
    if len(data) < RECORD_SIZE:
        return None
    magic, version, epoch, queue, _, _ = HEAD.unpack_from(data)
    sound = (magic, version, queue) == (MAGIC, VERSION, crc32c(name.encode()))
    return epoch if sound and crc32c(data[:RECORD_SIZE]) == CHECKED else None


_GOOD: Final = DROP(0)
"""A good record, of any kind."""


def good_bytes(data: bytes) -> tuple[int, bool]:
    """Return how many bytes are good records, and whether good records follow bad bytes: then it is not a torn tail.

    The CRC32C of good records one after another depends on their number only: one call checks all of them.
    """
    if crc32c(data) == crc32c(_GOOD * (len(data) // RECORD_SIZE)):
        return (len(data), False)
    at = 0
    last = len(data) - RECORD_SIZE
    while at <= last and crc32c(data[at : at + RECORD_SIZE]) == CHECKED:
        at += RECORD_SIZE
    if at == len(data):
        return (at, False)
    behind = range(at + RECORD_SIZE, last + 1, RECORD_SIZE)
    return (at, any(crc32c(data[later : later + RECORD_SIZE]) == CHECKED for later in behind))


def message_check(message: Message) -> int:
    """Return the link between a record and a message: the CRC32C of the message as stored in the journal."""
    return crc32c(encode(*message))


def stamp_of(timestamp: int) -> int:
    """The low 32 bits of a timestamp."""
    return timestamp & 0xFFFFFFFF
