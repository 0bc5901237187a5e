"""What the jobs share: what they read, and a stream that is run to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.connection import ANSWER_S, RETRY_S, Line, Remote
from pipeline.options import OptionError
from pipeline.paths import local_path
from pipeline.reading.discovery import Origin as Place
from pipeline.reading.discovery import discover
from pipeline.reading.remote import matching

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hub.wire import ClientTLS

Progress = Callable[[int], None]
"""Called from time to time with the messages so far."""
PER_TRIGGER: Final = 1_000_000


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
