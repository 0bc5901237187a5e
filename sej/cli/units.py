"""What people type: durations, sizes, offsets and times, into numbers; and times as people read them. No I/O.

A time without a zone is UTC, as the command prints them.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from sej.codec.format import NO_TIMESTAMP

__all__ = ["Moment", "iso_time", "parse_duration", "parse_moment", "parse_place", "parse_size"]

_NS: Final = 1_000_000_000
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|sec|s|minutes?|min|m|hours?|h|days?|d|weeks?|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FRACTION: Final = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)")
_EPOCH: Final = re.compile(r"@(\d+)(?:\.(\d{1,9}))?")
_NEGATIVE: Final = re.compile(r"-\s*\d+(\.\d+)?")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d)?")
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(NamedTuple):
    """A point in time: ns since the epoch."""

    timestamp: int


def parse_duration(text: str) -> float:
    """Seconds: ``90``, ``90s``, ``36h``, ``1h30m``, ``7d``.

    Raises:
        ValueError: it is none.

    Example:
        >>> parse_duration("1h30m"), parse_duration("2 days")
        (5400.0, 172800.0)
    """
    text = text.strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        if not parts or _DURATION.sub("", text).strip():
            raise ValueError(f"{text!r} is no duration: 90s, 30m, 1h30m, 7d or 2w is meant") from None
        return float(sum(float(number) * _SECONDS[unit[0]] for number, unit in parts))
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is no duration: it must be 0 or more")
    return seconds


def parse_size(text: str) -> int:
    """Bytes: ``1000``, ``64K``, ``1.5G``; the letters are powers of 1024.

    Raises:
        ValueError: it is none.

    Example:
        >>> parse_size("64K"), parse_size("1.5 GiB")
        (65536, 1610612736)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: 1000, 64K, 100M or 1.5G is meant")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def parse_moment(text: str, now_ns: int) -> Moment:
    """A time as people write it.

    ``2026-01-31``, ``2026-01-31 12:00``, ``2026-01-31T12:00:00.000000001Z``, ``12:00`` (today), ``now``, ``today``,
    ``yesterday``, ``10m ago``, ``-10m``, ``@1500000000`` (seconds since the epoch).

    Raises:
        ValueError: it is none.

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
            f"{text!r} is no time: '2026-01-31 12:00', '2026-01-31T12:00:00Z', '10m ago' or 'yesterday' is meant"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    since = when - _ZERO
    nanoseconds = int(fraction[2].ljust(9, "0")) if fraction else since.microseconds * 1000
    return Moment((since.days * 86_400 + since.seconds) * _NS + nanoseconds)


def parse_place(text: str, now_ns: int) -> int | Moment:
    """An offset, where it is digits alone; else a time.

    Raises:
        ValueError: it is neither; a bare negative number could be meant as either, and is refused.

    Example:
        >>> parse_place("17", 0), parse_place("@17", 0)
        (17, Moment(timestamp=17000000000))
    """
    if _NEGATIVE.fullmatch(text.strip()):
        raise ValueError(
            f"{text!r} is not an offset: the first one is 0. A time before now has a unit: '{text.strip()}s' or"
            f" '{text.strip()[1:]}s ago'; the last messages are printed by `sej tail --count`"
        )
    return int(text) if text.isascii() and text.isdigit() else parse_moment(text, now_ns)


def iso_time(timestamp: int) -> str | None:
    """A timestamp (ns since the epoch) as people write it, to the nanosecond; None for NO_TIMESTAMP.

    Example:
        >>> iso_time(1_500_000_000_000_000_001)
        '2017-07-14T02:40:00.000000001Z'
    """
    if timestamp == NO_TIMESTAMP:
        return None
    seconds, rest = divmod(timestamp, _NS)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
