"""The selection of a table: which rows, and how journals are read. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pipeline.connection import Remote
from pipeline.reading.conditions import Condition


class Way(NamedTuple):
    """How journals are read.

    Attributes:
        verify: check blocks against their checksums.
        on_corruption: raise, or skip and log.
        pattern: only directories whose name matches; None: all.
        clients: only these clients of a hub; None: all.
        remote: the hub to read through; None: files.
    """

    verify: bool = True
    on_corruption: Literal["raise", "skip"] = "raise"
    pattern: str | None = None
    clients: tuple[str, ...] | None = None
    remote: Remote | None = None


class Selection(NamedTuple):
    """Which rows a read returns.

    Attributes:
        bounds: of the arguments start and end.
        where: conditions that each row fulfils.
        hints: conditions that the caller tests itself; rows that do not fulfil them need not be returned.
        views: keys and values may be Arrow's views, which keep all bytes that were read in memory.
    """

    bounds: Sequence[Condition] = ()
    where: Sequence[Condition] = ()
    hints: Sequence[Condition] = ()
    views: bool = False

    @property
    def start(self) -> int | None:
        """The offset that was passed as start, or None."""
        return next((each.value for each in self.bounds if each[:2] == ("offset", ">=")), None)
