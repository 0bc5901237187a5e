"""Messages as lines: for people with escapes or in hexadecimal, for programs as JSON. No I/O but writing lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from sej.format import NO_TIMESTAMP
from sej.message import Message

__all__ = ["FORMS", "as_hex", "as_json", "as_text", "iso_time", "print_messages"]

_NS: Final = 1_000_000_000
_ESCAPES: Final = {number: f"\\x{number:02x}" for number in (*range(32), 127)} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord("\\"): "\\\\",
}


def iso_time(timestamp: int) -> str | None:
    """A timestamp (ns since the epoch) as people write it, to the nanosecond; None where there is none.

    Example:
        >>> iso_time(1_500_000_000_000_000_001)
        '2017-07-14T02:40:00.000000001Z'
    """
    if timestamp == NO_TIMESTAMP:
        return None
    seconds, rest = divmod(timestamp, _NS)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def as_text(message: Message) -> str:
    r"""One line: offset, time, type, key and value between tabs; what would break the line is escaped.

    Example:
        >>> as_text(Message(7, 1_500_000_000_000_000_000, 0, b"k", b"a\nb\xff"))
        '7\t2017-07-14T02:40:00.000000000Z\t0\tk\ta\\nb\\xff'
    """
    stamp = iso_time(message.timestamp) or "-"
    return f"{message.offset}\t{stamp}\t{message.type}\t{_line(message.key)}\t{_line(message.value)}"


def as_json(message: Message) -> str:
    """One JSON object; key and value are text where they are UTF-8, else ``key_b64`` and ``value_b64``.

    Example:
        >>> as_json(Message(7, NO_TIMESTAMP, 0, b"k", bytes([255])))
        '{"offset": 7, "timestamp_ns": null, "time": null, "type": 0, "key": "k", "value_b64": "/w=="}'
    """
    import base64
    import json

    stamp = None if message.timestamp == NO_TIMESTAMP else message.timestamp
    row: dict[str, Any] = {
        "offset": message.offset,
        "timestamp_ns": stamp,
        "time": iso_time(message.timestamp),
        "type": message.type,
    }
    for name, data in (("key", message.key), ("value", message.value)):
        try:
            row[name] = data.decode()
        except UnicodeDecodeError:
            row[f"{name}_b64"] = base64.b64encode(data).decode()
    return json.dumps(row, ensure_ascii=False)


def as_hex(message: Message) -> str:
    r"""One line as :func:`as_text`, with key and value in hexadecimal.

    Example:
        >>> as_hex(Message(7, 1_500_000_000_000_000_000, 0, b"k", b"a\nb\xff"))
        '7\t2017-07-14T02:40:00.000000000Z\t0\t6b\t610a62ff'
    """
    stamp = iso_time(message.timestamp) or "-"
    return f"{message.offset}\t{stamp}\t{message.type}\t{message.key.hex()}\t{message.value.hex()}"


FORMS: Final[dict[str, Callable[[Message], str]]] = {"text": as_text, "json": as_json, "hex": as_hex}
"""What ``--format`` takes."""


def print_messages(messages: Iterable[Message], form: str) -> None:
    """Write one line a message to standard output, in UTF-8 whatever the locale says; form: one of FORMS."""
    line = FORMS[form]
    out = sys.stdout.buffer
    for message in messages:
        out.write(line(message).encode() + b"\n")


def _line(data: bytes) -> str:
    try:
        return data.decode().translate(_ESCAPES)
    except UnicodeDecodeError:  # escape the text first: what is no text is escaped by the decoder
        return data.replace(b"\\", b"\\\\").decode(errors="backslashreplace").translate(_CONTROLS)


_CONTROLS: Final = {number: text for number, text in _ESCAPES.items() if number != ord("\\")}
