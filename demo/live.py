"""Spark reads the hub's root as a stream, while the producers still write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Live:
    """A running stream that counts flights by airport.

    Attributes:
        counts: flights so far, by airport.
        batches: micro-batches so far.
    """

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path, progress: Callable[[int], None]) -> None:
        """Start it; it takes in what is there and what comes."""
        self.counts: dict[str, int] = {}
        self.batches = 0
        self._progress = progress
        flights = spark.readStream.format("sej").schema("client STRING").load(str(root))
        writer = flights.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self._query = writer.trigger(processingTime="500 milliseconds").start()

    @property
    def total(self) -> int:
        """Flights so far."""
        return sum(self.counts.values())

    def finish(self) -> None:
        """Wait, without a limit, until everything that the hub has at this moment is counted; then the stream ends.

        Raises:
            StreamingQueryException: the stream failed.
        """
        try:
            self._query.processAllAvailable()
        finally:
            self._query.stop()

    def _take(self, frame: DataFrame, batch: int) -> None:
        for row in frame.groupBy("client").count().collect():
            self.counts[row["client"]] = self.counts.get(row["client"], 0) + row["count"]
        self.batches += 1
        self._progress(self.total)
