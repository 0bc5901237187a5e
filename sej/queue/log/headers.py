"""The headers of an item in the state log: parts of 24 bytes, one HEADERS record for each. No I/O.

All parts of an item together::

    timestamp(i64) check(u32) size(u32) text(size)

The text is a JSON object. Timestamp and check name the message, as in INTENT and EXPIRE: the record is written before
the message, so the message with this offset may be another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from sej.queue.interface.headers import encoded
from sej.queue.log.format import HEADERS_HEAD, HEADERS_PART

_PART_SIZE: Final = HEADERS_PART.size


def packed(headers: Mapping[str, str], timestamp: int, check: int) -> Iterator[bytes]:
    """Yield the parts of headers for the message with this timestamp and CRC32C; the last one ends with zeros."""
    text = encoded(headers)
    data = HEADERS_HEAD.pack(timestamp, check, len(text)) + text
    for at in range(0, len(data), _PART_SIZE):
        yield data[at : at + _PART_SIZE].ljust(_PART_SIZE, b"\0")


def read_headers(data: bytes, timestamp: int, check: int) -> dict[str, str]:
    """Return the headers that all parts hold together; none if they belong to another message, or a part is missing."""
    *link, size = HEADERS_HEAD.unpack_from(data)
    text = data[HEADERS_HEAD.size : HEADERS_HEAD.size + size]
    return json.loads(text) if link == [timestamp, check] and len(text) == size else {}
