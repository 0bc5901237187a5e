"""Run a stream to its end, or a batch job, with progress."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["PER_TRIGGER", "Progress", "run_to_end", "watched"]

Progress = Callable[[int], None]
"""Called from time to time with the messages so far."""
PER_TRIGGER: Final = 1_000_000
_LOOK_S: Final = 0.5


def run_to_end(writer: DataStreamWriter, progress: Progress | None) -> int:
    """Process the existing messages and stop; return how many this run took.

    Raises:
        StreamingQueryException: it failed; the next run continues where it stopped.
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


@contextmanager
def watched(spark: SparkSession, total: Callable[[], int], progress: Progress | None) -> Iterator[None]:
    """Report the progress of the jobs in the block: their finished tasks, as a share of all messages.

    Args:
        spark: the session.
        total: returns how many messages there are; called once, and only for progress.
        progress: called with the messages so far, in a thread of its own.
    """
    if progress is None:
        yield
        return
    context, group, messages = spark.sparkContext, uuid.uuid4().hex, total()
    done = threading.Event()

    def look() -> None:
        tracker, so_far = context.statusTracker(), 0
        while not done.wait(_LOOK_S):
            infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
            tasks = sum(stage.numTasks for stage in stages if stage)
            if tasks:
                finished = sum(stage.numCompletedTasks for stage in stages if stage)
                so_far = max(so_far, messages * finished // tasks)
                progress(so_far)

    context.setJobGroup(group, "a job over journals")
    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        done.set()
        thread.join()
    progress(messages)
