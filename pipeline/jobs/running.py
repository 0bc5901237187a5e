"""Running a stream until nothing is left, with a count on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["PER_TRIGGER", "Progress", "run_to_end"]

Progress = Callable[[int], None]
"""Called now and then with the messages so far."""
PER_TRIGGER = 1_000_000


def run_to_end(writer: DataStreamWriter, progress: Progress | None) -> int:
    """Run what is there now and stop; returns how many messages this run took.

    Raises:
        StreamingQueryException: it failed; run it again, it goes on where it stopped.
    """
    query = writer.trigger(availableNow=True).start()
    seen: dict[int, int] = {}

    def look() -> int:
        for batch in query.recentProgress:
            found: Any = batch
            seen[found.batchId] = found.numInputRows
        total = sum(seen.values())
        if progress is not None:
            progress(total)
        return total

    while not query.awaitTermination(1):
        look()
    return look()
