"""Messages as columns on the wire: only those columns, and about those times, that a reader requests.

The hub leaves out columns that were not requested, and messages before the first and after the last one in the
requested time, piece by piece. The reader compares the time of each message that it gets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from hub.wire import hub_pb2 as pb
from hub.wire.frames import nested, open_read_response, parse
from sej.codec import Columns, columns
from sej.codec.format import INT32_SIZE, MAX_OFFSET, OFFSET, OFFSET_SIZE, OVERHEAD_SIZE
from sej.errors import InvalidMessageError

COLUMNS: Final = {"offset": 1, "timestamp": 2, "type": 4, "key": 8, "value": 16}
"""The bits of ReadRequest.Columns."""
_ALL: Final = sum(COLUMNS.values())
_ROWS: Final = 1 << 14
_TIMESTAMP_SIZE: Final = 8
_ROWS_TAG: Final = bytes((pb.ReadResponse.ROWS_FIELD_NUMBER << 3 | 2,))
_HERE: Final = sys.byteorder == "little"
"""Whether this machine's numbers are those of the wire; other machines send and request whole messages."""


class Rows(NamedTuple):
    """Some messages, as columns.

    Attributes:
        begin: the offset of the first message that the hub looked at.
        stop: the offset after the last one.
        first: the offset of the first message in ``found``; the next ones have consecutive offsets.
        found: the messages. A column that was not requested may be empty.
    """

    begin: int
    stop: int
    first: int
    found: Columns


def bits_of(names: Iterable[str], since: int | None, until: int | None) -> int:
    """Return the columns of a request; 0 if whole messages are requested, or this machine cannot read columns.

    Raises:
        ValueError: there is no column of this name.
    """
    bits = COLUMNS["offset"]
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"columns must be some of {', '.join(COLUMNS)}, got {name!r}")
        bits |= COLUMNS[name]
    if since is not None or until is not None:
        bits |= COLUMNS["timestamp"]
    elif bits == _ALL:
        return 0
    return bits if _HERE else 0


def rows_response(pieces: list[bytes], request: pb.ReadRequest) -> bytes | None:
    """Encode a ReadResponse with the requested columns of pieces of encoded messages, whose offsets are consecutive.

    Returns None if the request is for whole messages. Otherwise the list of pieces is emptied, so that a large value is
    in memory twice at most.
    """
    since = request.Since if request.HasField("Since") else None
    until = request.Until if request.HasField("Until") else None
    bits = request.Columns or _ALL * (since is not None or until is not None)
    if not (bits and _HERE):
        return None
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    pieces.clear()
    begin: int = OFFSET.unpack(data[:OFFSET_SIZE])[0]
    most = len(data) // OVERHEAD_SIZE
    if request.StopOffset:
        most = max(min(most, request.StopOffset - begin), 0)
    found = columns(data, 0, len(data), begin, most, keys=False, values=False)
    stop = begin + found.messages
    low, high = _within(found.timestamps, since, until)
    if low or high < found.messages or bits & (COLUMNS["key"] | COLUMNS["value"]):
        at = columns(data, 0, len(data), begin, low, keys=False, values=False).position if low else 0
        keys, values = bool(bits & COLUMNS["key"]), bool(bits & COLUMNS["value"])
        found = columns(data, at, len(data), begin + low, high - low, keys=keys, values=values)
    del data
    rows = pb.Rows(
        Begin=begin,
        Stop=stop,
        First=begin + low,
        Count=high - low,
        Timestamps=found.timestamps if bits & COLUMNS["timestamp"] else b"",
        Types=found.types if bits & COLUMNS["type"] else b"",
        KeyEnds=found.key_ends,
        Keys=found.key_data,
        ValueEnds=found.value_ends,
    )
    return nested(pb.ReadResponse.ROWS_FIELD_NUMBER, rows, pb.Rows.VALUES_FIELD_NUMBER, found.value_data)


def open_rows(data: bytes, stop: int, bits: int, *, keys: bool, values: bool) -> Iterator[Rows]:
    """Yield the messages of a ReadResponse of either form below the offset ``stop`` (0: all).

    Args:
        data: the response.
        stop: as in the request.
        bits: the columns in the request.
        keys: whether keys are needed.
        values: whether values are needed.

    Raises:
        InvalidMessageError: the bytes cannot be decoded, or columns have other lengths than their number of messages.
        DecodeError: they are not whole messages.
    """
    answer = parse(pb.ReadResponse, data) if data[:1] == _ROWS_TAG else None
    if answer is not None and answer.HasField("Rows"):
        rows = answer.Rows
        found = Columns(
            rows.Count, 0, rows.Timestamps, rows.Types, rows.KeyEnds, rows.Keys, rows.ValueEnds, rows.Values
        )
        if not (rows.Begin <= rows.First <= rows.First + rows.Count <= rows.Stop <= MAX_OFFSET + 1):
            raise InvalidMessageError(
                f"the hub's answer has {rows.Count} messages from {rows.First} on, in {rows.Begin} to {rows.Stop}"
            )
        for column, wrong in _wrong(found).items():
            if bits & COLUMNS[column] and wrong:
                raise InvalidMessageError(f"the hub's answer has a column {column} that does not fit {rows.Count} rows")
        yield Rows(rows.Begin, rows.Stop, rows.First, found)
        return
    chunk = open_read_response(data)
    position, due = 0, OFFSET.unpack(chunk[:OFFSET_SIZE])[0]
    if stop and due >= stop:  # messages before the stop are missing: the caller must know that the hub looked at them
        yield Rows(due, due, due, columns(chunk, 0, len(chunk), due, 0, keys=False, values=False))
    while position < len(chunk) and (not stop or due < stop):
        most = min(_ROWS, stop - due) if stop else _ROWS
        found = columns(chunk, position, len(chunk), due, most, keys=keys, values=values)
        yield Rows(due, due + found.messages, due, found)
        position = found.position
        due += found.messages


def _wrong(found: Columns) -> dict[str, bool]:
    """Return for each column whether its bytes do not fit the number of messages: a reader trusts these lengths."""
    count = found.messages
    return {
        "timestamp": len(found.timestamps) != count * _TIMESTAMP_SIZE,
        "type": len(found.types) != count * INT32_SIZE,
        "key": count > 0 and not _fits(found.key_ends, found.key_data, count),
        "value": count > 0 and not _fits(found.value_ends, found.value_data, count),
    }


def _fits(ends: bytes, data: bytes, count: int) -> bool:
    if len(ends) != (count + 1) * INT32_SIZE:
        return False
    at = memoryview(ends).cast("i")
    return at[0] == 0 and at[count] == len(data)


def _within(timestamps: bytes, since: int | None, until: int | None) -> tuple[int, int]:
    """Return the range from the first message in the requested time up to the last one."""
    times = memoryview(timestamps).cast("q")
    low, high = 0, len(times)
    if since is None and until is None:
        return low, high
    least = since if since is not None else -(1 << 63)
    most = until if until is not None else (1 << 63) - 1
    if high and not least <= times[0] <= most and (max(times) < least or min(times) > most):
        return 0, 0
    while low < high and not least <= times[low] <= most:
        low += 1
    while low < high and not least <= times[high - 1] <= most:
        high -= 1
    return low, high
