"""Texts: sizes, offsets and times of the command line and for people, and messages as lines.

A line has text or hexadecimal for people, JSON for programs, and optionally a decoded value. A time without a zone is
UTC, both when it is parsed and when it is printed. No I/O except writing lines.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sej.checks import parse_duration
from sej.codec.format import NO_TIMESTAMP
from sej.message import Message, text_or_b64

_NS: Final = 1_000_000_000
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FRACTION: Final = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)")
_EPOCH: Final = re.compile(r"@(\d+)(?:\.(\d{1,9}))?")
_NEGATIVE: Final = re.compile(r"-\s*\d+(\.\d+)?")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d)?")
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(NamedTuple):
    """A point in time, in nanoseconds since the epoch."""

    timestamp: int


def parse_size(text: str) -> int:
    """Return bytes: ``1000``, ``64K``, ``1.5G``; the letters are powers of 1024.

    Raises:
        ValueError: the text is not a size.

    Example:
        >>> parse_size("64K"), parse_size("1.5 GiB")
        (65536, 1610612736)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; expected 1000, 64K, 100M or 1.5G")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def parse_moment(text: str, now_ns: int) -> Moment:
    """Parse a time.

    ``2026-01-31``, ``2026-01-31 12:00``, ``2026-01-31T12:00:00.000000001Z``, ``12:00`` (today), ``now``, ``today``,
    ``yesterday``, ``10m ago``, ``-10m``, ``@1500000000`` (seconds since the epoch).

    Raises:
        ValueError: the text is not a time.

    Example:
        >>> parse_moment("1970-01-02", 0).timestamp // 10**9, parse_moment("10m ago", 700 * 10**9).timestamp // 10**9
        (86400, 100)
    """
    words = text.strip()
    lower = words.lower()
    midnight = now_ns - now_ns % (86_400 * _NS)
    named = {"now": now_ns, "today": midnight, "yesterday": midnight - 86_400 * _NS}
    if lower in named:
        return Moment(named[lower])
    if lower.endswith("ago") or lower.startswith("-"):
        return Moment(now_ns - round(parse_duration(lower.removesuffix("ago").removeprefix("-")) * _NS))
    epoch = _EPOCH.fullmatch(words)
    if epoch:
        return Moment(int(epoch[1]) * _NS + int((epoch[2] or "").ljust(9, "0")))
    if _CLOCK.fullmatch(words):
        words = f"{(_ZERO + timedelta(seconds=midnight // _NS)).date()}T{words}"
    fraction = _FRACTION.fullmatch(words)
    try:
        when = datetime.fromisoformat(fraction[1] + fraction[3] if fraction else words)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; expected '2026-01-31 12:00', '2026-01-31T12:00:00Z', '10m ago' or 'yesterday'"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    since = when - _ZERO
    nanoseconds = int(fraction[2].ljust(9, "0")) if fraction else since.microseconds * 1000
    return Moment((since.days * 86_400 + since.seconds) * _NS + nanoseconds)


def parse_place(text: str, now_ns: int) -> int | Moment:
    """Parse an offset (digits only) or a time.

    Raises:
        ValueError: the text is neither; a bare negative number is refused, because it could be either.

    Example:
        >>> parse_place("17", 0), parse_place("@17", 0)
        (17, Moment(timestamp=17000000000))
    """
    if _NEGATIVE.fullmatch(text.strip()):
        raise ValueError(
            f"{text!r} is not an offset: offsets begin at 0. For a time in the past write '{text.strip()}s' or"
            f" '{text.strip()[1:]}s ago'; `sej tail --count` prints the last messages"
        )
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_moment(text, now_ns)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an offset or a time; expected 17, '2026-01-31 12:00', '2026-01-31T12:00:00Z', '10m ago'"
            " or 'yesterday'"
        ) from None


def iso_time(timestamp: int) -> str | None:
    """Format a timestamp (ns since the epoch) to the nanosecond; None for NO_TIMESTAMP.

    Example:
        >>> iso_time(1_500_000_000_000_000_001)
        '2017-07-14T02:40:00.000000001Z'
    """
    if timestamp == NO_TIMESTAMP:
        return None
    seconds, rest = divmod(timestamp, _NS)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def human_size(size: float) -> str:
    """Format a size for people.

    Example:
        >>> human_size(96), human_size(1536), human_size(64 << 30)
        ('96 B', '1.5 KiB', '64 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size / 1024:.1f}".removesuffix(".0") + " TiB"


def human_duration(seconds: float) -> str:
    """Format a duration for people.

    Example:
        >>> human_duration(45), human_duration(1560), human_duration(3 * 86_400)
        ('45 s', '26 min', '3 days')
    """
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_ESCAPES: Final = (
    {number: f"\\x{number:02x}" for number in (*range(32), 127)}
    | {
        number: f"\\u{number:04x}"
        for number in range(128, 160)  # a terminal may obey these too
    }
    | {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord("\\"): "\\\\"}
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
    return _encoder()(json_row(message))


def json_row(message: Message) -> dict[str, Any]:
    """Return the fields of :func:`as_json`."""
    return _row(message) | text_or_b64("value", message.value)


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


def decoder(form: str) -> Callable[[bytes], str]:
    """Return a function that turns one value into JSON text, or raises ValueError if it cannot be decoded.

    Args:
        form: ``msgpack`` or ``bson``; the library, of the extra ``formats``, is imported now.

    Bytes become ``{"b64": ...}``. Other types that JSON lacks become objects with the type's name; for BSON these are
    MongoDB's Extended JSON.

    Raises:
        ImportError: the library is not installed; the command names the extra that installs it.

    Example:
        >>> decoder("msgpack")(bytes([0x82, 0xA1, 0x61, 0x01, 0x07, 0xC4, 0x01, 0xFF]))
        '{"a": 1, "7": {"b64": "/w=="}}'
    """
    return {"msgpack": _msgpack, "bson": _bson}[form]()


def _msgpack() -> Callable[[bytes], str]:
    import math

    import msgpack

    text = _encoder()

    def decode(value: bytes) -> str:
        try:
            return text(plain(msgpack.unpackb(value, strict_map_key=False, unicode_errors="backslashreplace")))
        except Exception as error:  # its own errors, those of what it calls, and times out of range
            raise ValueError(f"not MessagePack: {str(error) or type(error).__name__}") from None

    def plain(found: Any) -> Any:
        match found:
            case dict():
                return {key if isinstance(key, str) else text(plain(key)): plain(one) for key, one in found.items()}
            case list() | tuple() if not isinstance(found, msgpack.ExtType):
                return [plain(one) for one in found]
            case bytes():
                return _b64(found)
            case float() if not math.isfinite(found):
                return str(found)
            case msgpack.Timestamp():
                return iso_time(found.to_unix_nano())
            case msgpack.ExtType():
                return {"ext": found.code, **_b64(found.data)}
        return found

    return decode


def _bson() -> Callable[[bytes], str]:
    import bson
    from bson import json_util
    from bson.codec_options import DatetimeConversion

    options: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(
        tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
    )

    def decode(value: bytes) -> str:
        try:
            found = bson.decode(value, options)
            return json_util.dumps(found, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False)
        except Exception as error:  # InvalidBSON, and errors that it does not wrap
            raise ValueError(f"not BSON: {error}") from None

    return decode


def _b64(data: bytes) -> dict[str, str]:
    import base64

    return {"b64": base64.b64encode(data).decode()}
