"""Rows of a job staged and committed on a hub: the driver and the executors need no common disk.

A task sends its rows in parts, each with its position in the task's file, so that a part whose answer was lost is sent
again. The driver sends only the list of files. Each call is repeated until the hub answers, for ``hubRetryFor``, except
the one that removes the rows of a job that failed: the hub removes them by itself when they are a day old.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hub.errors import UnavailableError
from hub.jobs import Staged
from hub.naming import check_client
from pipeline.connection import Line, Remote
from pipeline.options import WRITE, OptionError, Options, parse
from shard.names import Path
from shard.routing import Hash
from shard.staging import RowsBuffer

if TYPE_CHECKING:
    from hub.wire import Client
    from hub.wire.client import JobCalls

_log = logging.getLogger("pipeline")
_PART_BYTES: Final = 1 << 20
_FEW_BITS: Final = 3
"""Up to so many bits of the shards, a part is twice as large: fewer calls. A task holds one part for each shard."""
_SOON_S: Final = 2.0
"""How long a hub may be out of reach for calls that can be left out: Spark waits for them when a query is stopped."""
_LOCAL: Final = ("segmentBytes", "lockTimeout", "discardReaders", "expectedOffsets")


class OnHub:
    """A place for a job's rows; pickled with the writer.

    Attributes:
        bits: bits of the shards.
        hash: routes the keys.
    """

    hash: Hash = "xxh64"

    def __init__(self, client: str, remote: Remote, options: Options, *, overwrite: bool, stream: bool) -> None:
        """Check everything that can be checked before a row is written; the hub is asked too.

        Args:
            client: the client on the hub.
            remote: how to reach the hub.
            options: of the sink.
            overwrite: whether the mode is overwrite, which a hub refuses.
            stream: whether Spark makes the writer again for each commit and abort of a stream. Then a hub that is out
                of reach is not waited for here: the tasks and the commit wait for it.

        Raises:
            OptionError: an option or a mode that a hub does not have.
            AccessError: the token does not allow to append.
            NotSupportedError: the hub is an original one, or an older version.
        """
        if overwrite:
            raise OptionError("a hub's journals cannot be overwritten; use the mode append")
        usual = parse(WRITE, {})
        for name in _LOCAL:
            if options[name] != usual[name]:
                raise OptionError(f"the option {name} applies to a path; leave it out with the option hub")
        if options["prefix"] is None and options["bits"] is None:
            raise OptionError(
                "set prefix, or prefix and bits: the journals on a hub are CLIENT.PREFIX.BITS.SHARD, or CLIENT.PREFIX"
            )
        self.bits = options["bits"] or 0
        self._prefix = options["prefix"] or ""
        Path(".", self._prefix, self.bits)
        self._client = check_client(client)
        self._remote = remote
        try:
            self._remove(uuid.uuid4().hex, _SOON_S if stream else remote.retry_s)  # does the hub take jobs?
        except UnavailableError:
            if not stream:
                raise

    def stage(self, job: str, _: int | None) -> _Stage:
        """Return the files of one task."""
        return _Stage(self._line(), job, _PART_BYTES << (self.bits <= _FEW_BITS))

    def commit(self, job: str, name: str | None, number: int | None, rows: Sequence[Staged]) -> None:
        """Commit the rows of all tasks to the journals."""
        with self._line() as line:
            line.ask(
                lambda client: _jobs(client).commit(job, self._prefix, self.bits, rows, name=name, number=number or 0)
            )

    def abort(self, job: str) -> None:
        """Remove a job's files, unless it is decided; a hub that is out of reach does so later."""
        try:
            self._remove(job, _SOON_S)
        except UnavailableError as error:
            _log.warning("the hub will remove the staged rows of job %s when they are a day old: %s", job, error)

    def _remove(self, job: str, retry_s: float) -> None:
        with Line(self._remote._replace(retry_s=min(retry_s, self._remote.retry_s)), self._client) as line:
            line.ask(lambda client: _jobs(client).abort(job))

    def _line(self) -> Line:
        return Line(self._remote, self._client)


class _Stage:
    """The files of one task."""

    def __init__(self, line: Line, job: str, part_bytes: int) -> None:
        self._line = line
        self._job = job
        self._part_bytes = part_bytes
        self._task = uuid.uuid4().hex
        self._files: dict[int, RowsBuffer] = {}

    def append(self, shard: int, values: list[bytes], keys: list[bytes], types: Any, timestamps: Any) -> None:
        """Encode messages for a shard, and send full parts."""
        if shard not in self._files:
            self._files[shard] = RowsBuffer(partial(self._send, shard), self._part_bytes)
        self._files[shard].append(values, keys, types, timestamps)

    def finish(self) -> list[Staged]:
        """Send the rest; return the files, which are durable on the hub."""
        found = []
        for shard, rows in self._files.items():
            rows.flush()
            found.append(Staged(self._task, shard, rows.messages, rows.size, rows.crc32c))
        if found:
            self._line.ask(lambda client: _jobs(client).seal(self._job, found))
        self._line.close()
        return found

    def drop(self) -> None:
        """Disconnect. The driver commits the job without these files, or aborts it: either removes them."""
        self._line.close()

    def _send(self, shard: int, part: memoryview) -> None:
        at = self._files[shard].size
        self._line.ask(lambda client: _jobs(client).stage(self._job, self._task, shard, at, part))


def _jobs(client: Client) -> JobCalls:
    from hub.wire.client import JobCalls

    return JobCalls(client)
