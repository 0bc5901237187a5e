"""Run a stream to its end, or a batch job, with progress."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.connection import ANSWER_S, RETRY_S, Line, Remote
from pipeline.needs import is_connect
from pipeline.options import OptionError
from pipeline.paths import local_path
from pipeline.reading.discovery import Origin as Place
from pipeline.reading.discovery import discover
from pipeline.reading.remote import matching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hub.wire import ClientTLS

Progress = Callable[[int], None]
"""Called from time to time with the messages so far."""
PER_TRIGGER: Final = 1_000_000
_LOOK_S: Final = 0.5


_NO_HUB: Final = {
    "restore": "restore writes journals on a local disk; to write them through a hub, pass the archive to Spark's sink,"
    " as in spark.read.parquet(archive).write.format('sej').option('hub', address)",
    "import-kestrel": "import-kestrel writes journals on a local disk; import into one, and copy it to the hub with"
    " `sej hub push`",
    "finish": "a hub finishes its own jobs when it starts; finish is for the root of journals on a local disk",
}


def refuse_hub(job: str, hub: object) -> None:
    """Refuse the address of a hub for a job that takes none.

    Raises:
        OptionError: one was passed.
    """
    if hub is not None:
        raise OptionError(_NO_HUB[job])


class Origin(NamedTuple):
    """What a job reads: a path, or journals on a hub.

    Attributes:
        name: the argument of ``load``.
        options: how to reach the hub.
        described: an absolute path, or hub and name: the same for each run, in whatever order addresses are passed.
        remote: the hub, or None.
    """

    name: str
    options: dict[str, str]
    described: str
    remote: Remote | None = None

    @classmethod
    def of(
        cls,
        root: str | os.PathLike[str],
        hub: str | Sequence[str] | None,
        token: str | None,
        tls: ClientTLS | None,
    ) -> Origin:
        """Check and return the arguments of a job.

        Raises:
            OptionError: the path is not local, or the hub is not an address.
        """
        remote = Remote.named(hub, token, tls)
        if remote is None:
            path = local_path(root)
            return cls(path, {}, os.path.realpath(path))
        remote = remote._replace(retry_s=RETRY_S)  # a job takes long, and would have to read again
        name = os.fspath(root)
        return cls(name, remote.options(), f"hub {','.join(sorted(remote.addresses))} {name}", remote)

    def require_distinct(self) -> None:
        """Refuse journals that have the same client, prefix and shard: a job would take them for one.

        Raises:
            OptionError: there are such journals, as two of one client that are not shards.
        """
        if self.remote is None:
            there: Iterable[Place] = discover([self.name])
        else:
            with Line(self.remote._replace(retry_s=ANSWER_S)) as line:
                there = matching(line, [self.name], None)
        known: dict[tuple[object, ...], str] = {}
        for place in there:
            first = known.setdefault(place[2:], place.name)
            if first != place.name:
                raise OptionError(
                    f"this job cannot tell {first!r} and {place.name!r} apart: they have the same client, prefix and"
                    " shard; run it for one of them, or for some other part of these journals, at a time"
                )


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
        progress: called with the messages so far, in a thread of its own. With Spark Connect it is called at the end.
    """
    if progress is None:
        yield
        return
    if is_connect(spark):
        yield
        progress(total())
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
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # removes it
        done.set()
        thread.join()
    progress(messages)
