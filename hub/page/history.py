"""Short histories of numbers, and their drawing as a line."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LENGTH: Final = 120
"""Numbers that a history keeps."""
WIDTH: Final = 120
HEIGHT: Final = 24
"""The size of a drawing, in its own units."""


class History:
    """The last numbers of a series, oldest first; its memory does not grow.

    Example:
        >>> history = History()
        >>> history.add(1.0)
        >>> history.add(2.0)
        >>> history.values
        [1.0, 2.0]
    """

    __slots__ = ("_at", "_ring")

    def __init__(self) -> None:
        """Create an empty history."""
        self._ring = array("d")
        self._at = 0

    def add(self, value: float) -> None:
        """Add a number; the oldest is dropped if there are too many."""
        if len(self._ring) < LENGTH:
            self._ring.append(value)
        else:
            self._ring[self._at] = value
            self._at = (self._at + 1) % LENGTH

    @property
    def values(self) -> list[float]:
        """The numbers, oldest first."""
        return [*self._ring[self._at :], *self._ring[: self._at]]


def points(values: Sequence[float]) -> str:
    """Return the points of an SVG line through the numbers, the newest at the right; empty for less than two.

    Example:
        >>> points([0.0, 5.0])
        '119.0,23.0 120.0,1.0'
    """
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    step = WIDTH / LENGTH
    left = WIDTH - (len(values) - 1) * step
    low, high = HEIGHT - 1.0, HEIGHT - 2.0
    return " ".join(
        f"{left + at * step:.1f},{low - max(value, 0.0) / top * high:.1f}" for at, value in enumerate(values)
    )
