"""The lag of streams: for people in the log, for monitoring as a text file.

Register it with a session: ``spark.streams.addListener(Lag(...))``. The lag of a directory is the difference between
its end and the end of the last micro-batch.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sej.checks import CALLABLE, PATH, optional, require

_log = logging.getLogger("pipeline.lag")


class Behind(NamedTuple):
    """One stream after a micro-batch.

    Attributes:
        query: its name, or its id if it has none.
        batch: the micro-batch's number.
        messages: messages in that micro-batch.
        rate: messages a second.
        lag: messages not read yet, by directory.
    """

    query: str
    batch: int
    messages: int
    rate: float
    lag: dict[str, int]

    @property
    def total(self) -> int:
        """Messages not read yet in all directories."""
        return sum(self.lag.values())

    def __str__(self) -> str:
        """Format as one line."""
        return (
            f"{self.query}: batch {self.batch}, {self.messages:,} messages, {self.rate:,.0f} a second,"
            f" {self.total:,} behind in {sum(count > 0 for count in self.lag.values())} of {len(self.lag)} directories"
        )


class Lag(StreamingQueryListener):
    """Reports the lag of every stream over journals."""

    def __init__(self, report: Callable[[Behind], None] | None = None, *, metrics: str | None = None) -> None:
        """Choose the output.

        Args:
            report: called after each micro-batch; None: a line in the log ``pipeline.lag``.
            metrics: a file that is replaced each time, in Prometheus' text format (for its textfile collector).
        """
        require(report=(report, optional(CALLABLE)), metrics=(metrics, optional(PATH)))
        self._report = report or (lambda behind: _log.info("%s", behind))
        self._metrics = metrics
        self.latest: dict[str, Behind] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report after a micro-batch."""
        progress = event.progress
        lag: dict[str, int] = {}
        for source in progress.sources:
            lag.update(_behind(_offsets(source.endOffset), _offsets(source.latestOffset)))
        name = progress.name or str(progress.id)
        rate = progress.processedRowsPerSecond or 0.0
        found = Behind(name, progress.batchId, progress.numInputRows, rate if rate == rate else 0.0, lag)
        self.latest[name] = found
        self._report(found)
        if self._metrics is not None:
            _export(self._metrics, self.latest)


def _offsets(text: Any) -> dict[str, int]:
    """Return a source's offset as (directory, next message); empty for another source."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
        return {name: entry["offset"] for name, entry in found.items()}
    except (TypeError, KeyError, AttributeError, ValueError):
        return {}


def _behind(end: Mapping[str, int], latest: Mapping[str, int]) -> dict[str, int]:
    return {name: max(offset - end.get(name, 0), 0) for name, offset in latest.items()}


def _export(path: str, latest: Mapping[str, Behind]) -> None:
    lines = ["# TYPE sej_stream_lag_messages gauge"]
    for behind in latest.values():
        for directory, count in sorted(behind.lag.items()):
            labels = f"query={json.dumps(behind.query)},directory={json.dumps(directory)}"
            lines.append(f"sej_stream_lag_messages{{{labels}}} {count}")
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(temporary, path)
