"""Durations as people write them: ``"3s"``, ``"1h30m"``; how long to wait after failures. No I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import random


def backoff(failures: int, first_s: float, longest_s: float, rng: random.Random | None = None) -> float:
    """Return the seconds to wait after this many failures in a row: half of the doubled wait, or more."""
    import random  # here, because few processes wait

    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s) * (rng or random).uniform(0.5, 1.0)


class Span(Protocol):
    """A :class:`datetime.timedelta`, or an object with its method."""

    def total_seconds(self) -> float:
        """Return the seconds."""


Seconds = float | str | Span
"""A number of seconds, a duration such as ``"3s"``, ``"1h30m"`` or ``"7d"``, or a :class:`datetime.timedelta`."""

_DURATION: Final = r"(\d+(?:\.\d+)?)\s*(seconds?|sec|s|minutes?|min|m|hours?|h|days?|d|weeks?|w)"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_T = TypeVar("_T")


def parse_duration(text: str) -> float:
    """Return seconds: ``90``, ``90s``, ``36h``, ``1h30m``, ``7d``.

    Raises:
        ValueError: the text is not a duration.

    Example:
        >>> parse_duration("1h30m"), parse_duration("2 days")
        (5400.0, 172800.0)
    """
    text = text.strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(_DURATION, text)
        if not parts or re.sub(_DURATION, "", text).strip():
            raise ValueError(f"{text!r} is not a duration; expected 90s, 30m, 1h30m, 7d or 2w") from None
        return float(sum(float(number) * _SECONDS[unit[0]] for number, unit in parts))
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is not a duration: it must be at least 0")
    return seconds


def seconds(name: str, value: str | Span | _T) -> float | _T:
    """Return the seconds of an argument that is a duration; any other value is returned as it is, for a rule to check.

    Raises:
        ValueError: it is a text and not a duration.

    Example:
        >>> seconds("timeout", "3s"), seconds("timeout", 0.5), seconds("timeout", None)
        (3.0, 0.5, None)
        >>> seconds("timeout", "soon")
        Traceback (most recent call last):
            ...
        ValueError: timeout must be a number of seconds, or a duration such as '90s', '1h30m' or '7d', got 'soon'
    """
    if not isinstance(value, str):
        span = getattr(value, "total_seconds", None)
        return value if span is None else span()  # type: ignore[return-value]
    try:
        return parse_duration(value)
    except ValueError:
        shown = repr(value[:80])
        raise ValueError(
            f"{name} must be a number of seconds, or a duration such as '90s', '1h30m' or '7d', got {shown}"
        ) from None
