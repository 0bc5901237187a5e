"""Messages as lines: text or hexadecimal for people, JSON for programs, optionally with decoded values.

No I/O except writing lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from sej.cli.shared.units import iso_time
from sej.codec.format import NO_TIMESTAMP
from sej.message import Message

_ESCAPES: Final = (
    {number: f"\\x{number:02x}" for number in (*range(32), 127)}
    | {
        number: f"\\u{number:04x}"
        for number in range(128, 160)  # a terminal may obey these too
    }
    | {
        ord("\n"): "\\n",
        ord("\r"): "\\r",
        ord("\t"): "\\t",
        ord("\\"): "\\\\",
    }
)


def counted(count: int, what: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "segment"), counted(2, "segment")
        ('1 segment', '2 segments')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def as_text(message: Message) -> str:
    r"""Return one line: offset, time, type, key and value separated by tabs, with control characters escaped.

    Example:
        >>> as_text(Message(7, 1_500_000_000_000_000_000, 0, b"k", b"a\nb\xff"))
        '7\t2017-07-14T02:40:00.000000000Z\t0\tk\ta\\nb\\xff'
    """
    stamp = iso_time(message.timestamp) or "-"
    return f"{message.offset}\t{stamp}\t{message.type}\t{_line(message.key)}\t{_line(message.value)}"


def as_json(message: Message) -> str:
    """Return one JSON object; key and value are text if they are UTF-8, else ``key_b64`` and ``value_b64``.

    Example:
        >>> as_json(Message(7, NO_TIMESTAMP, 0, b"k", bytes([255])))
        '{"offset": 7, "timestamp_ns": null, "time": null, "type": 0, "key": "k", "value_b64": "/w=="}'
    """
    return _encoder()(_row(message) | text_or_b64("value", message.value))


def as_hex(message: Message) -> str:
    r"""Return one line like :func:`as_text`, with key and value in hexadecimal.

    Example:
        >>> as_hex(Message(7, 1_500_000_000_000_000_000, 0, b"k", b"a\nb\xff"))
        '7\t2017-07-14T02:40:00.000000000Z\t0\t6b\t610a62ff'
    """
    stamp = iso_time(message.timestamp) or "-"
    return f"{message.offset}\t{stamp}\t{message.type}\t{message.key.hex()}\t{message.value.hex()}"


_LINES: Final[dict[str, Callable[[Message], str]]] = {"text": as_text, "json": as_json, "hex": as_hex}
FORMS: Final = (*_LINES, "msgpack", "bson", "raw")
"""The values of ``--format``."""


def form_named(form: str) -> Callable[[Message], bytes]:
    """Return the function that encodes a message, as one line or raw, for one of FORMS.

    Raises:
        ImportError: the library that decodes such values is not installed.
    """
    if form == "raw":
        return lambda message: message.value
    if form in _LINES:
        text = _LINES[form]
        return lambda message: text(message).encode() + b"\n"
    from sej.cli.shared.decoding import decoder

    decode, encode = decoder(form), _encoder()

    def line(message: Message) -> bytes:
        """Format as JSON with the decoded value; a value that cannot be decoded stays, next to the error."""
        row = _row(message)
        try:
            value = decode(message.value)
        except ValueError as error:
            return encode(row | text_or_b64("value", message.value) | {"error": str(error)}).encode() + b"\n"
        return f'{encode(row)[:-1]}, "value": {value}}}\n'.encode()

    return line


def print_messages(messages: Iterable[Message], form: str) -> None:
    """Write messages to standard output, in UTF-8 in every locale; form: one of FORMS."""
    encode = form_named(form)
    out = sys.stdout.buffer
    for message in messages:
        out.write(encode(message))


@lru_cache(maxsize=1)
def _encoder() -> Callable[[Any], str]:
    """Return the JSON encoder for all lines: making one costs as much as using it."""
    import json

    return json.JSONEncoder(ensure_ascii=False).encode


def _row(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message, except its value."""
    return {
        "offset": message.offset,
        "timestamp_ns": None if message.timestamp == NO_TIMESTAMP else message.timestamp,
        "time": iso_time(message.timestamp),
        "type": message.type,
        **text_or_b64("key", message.key),
    }


def text_or_b64(name: str, data: bytes) -> dict[str, str]:
    """Return the JSON field of bytes: ``name`` if they are UTF-8, else ``name_b64``."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_b64": base64.b64encode(data).decode()}


def _line(data: bytes) -> str:
    try:
        return data.decode().translate(_ESCAPES)
    except UnicodeDecodeError:  # escape the text first: the decoder escapes what is not UTF-8
        return data.replace(b"\\", b"\\\\").decode(errors="backslashreplace").translate(_CONTROLS)


_CONTROLS: Final = {number: text for number, text in _ESCAPES.items() if number != ord("\\")}


def shown(text: str) -> str:
    r"""Return a name or a text of a file for the terminal: on one line, with control characters escaped.

    A program of the original may give a reader any name. A terminal would obey what is in it.

    Example:
        >>> shown("a\n\x1b[2Jb")
        'a\\n\\x1b[2Jb'
    """
    return text.translate(_CONTROLS)


def coloured(text: str, colour: str) -> str:
    """Colour a text if standard output is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    import click

    return click.style(text, fg=colour)
