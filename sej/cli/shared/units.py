"""Parse sizes, offsets and times from the command line; format times, sizes and durations for people.

No I/O.

A time without a zone is UTC, both when it is parsed and when it is printed.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from sej.codec.format import NO_TIMESTAMP
from sej.durations import parse_duration

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
