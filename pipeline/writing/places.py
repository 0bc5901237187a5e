"""Where a sink's rows go: a disk or a hub; and the target on a disk, one SEJ directory or a sharded journal.

On a hub, the driver and the executors need no common disk. A task sends its rows in parts, each with its position in
the task's file, so that a part whose answer was lost is sent again. The driver sends only the list of files. Each call
is repeated until the hub answers, for ``hubRetryFor``, except the one that removes the rows of a job that failed: the
hub removes them by itself when they are a day old.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hub.errors import UnavailableError
from hub.jobs import Staged
from hub.naming import check_client
from pipeline.connection import Line, Remote
from pipeline.options import WRITE, OptionError, Options, parse
from pipeline.paths import file_system, local_path
from sej.errors import NotAJournalError
from sej.journal.directory import Directory, journals_in
from sej.system.disk import OS, absolute_path
from sej.system.locks import host_name
from sej.writing.writer import Writer
from shard.committing import ANONYMOUS, Job, check_readers, commit, is_decided
from shard.names import Path
from shard.records import choose_hash, prepare, record_shard, refuse_second, remember_hash
from shard.routing import Hash
from shard.staging import Owner, Rows, RowsBuffer, Stage, forget, identity, require_identity

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
_OPEN_MAX: Final = 256


class Target(NamedTuple):
    """The journals of a sink. They are created when they are opened.

    Attributes:
        root: the path that was passed.
        prefix: prefix of the shards; if bits is None too, the root is the journal.
        bits: bits of the shards.
        segment_bytes: as for the writer.
        lock_timeout: seconds to wait for another writer.
    """

    root: str
    prefix: str | None
    bits: int | None
    segment_bytes: int = 1 << 30
    lock_timeout: float = 60.0

    @classmethod
    def of(cls, root: str, options: Options) -> Target:
        """Return the target of the options.

        Raises:
            InvalidNameError: the prefix has characters that are not allowed.
            OptionError: bits 0 without a prefix, or the path is not on a local disk.
            RouteError: the prefix has shards of another number of bits.
            NotAJournalError: the path is a file, or holds journals of another layout.
        """
        prefix, bits = options["prefix"], options["bits"]
        target = cls(absolute_path(local_path(root)), prefix, bits, options["segmentBytes"], options["lockTimeout"])
        there = OS.status(target.root)
        if there is not None and not there.is_dir:
            raise NotAJournalError("this is a file; expected a directory", path=target.root)
        inside = OS.status(os.path.join(target.root, "jnl")) is not None
        if target.tree is not None and inside:
            raise NotAJournalError(
                "this is one SEJ directory; leave prefix and bits out, or name the root of a sharded journal",
                path=target.root,
            )
        if target.tree is not None:
            refuse_second(target.tree)
        if target.tree is None and there is not None and not inside and journals_in(OS, target.root):
            raise OptionError(
                f"{target.root} holds SEJ directories; set prefix and bits to write to shards below it, or use a"
                " directory of its own"
            )
        return target

    @property
    def open_max(self) -> int:
        """How many writers a commit holds together."""
        return _OPEN_MAX

    def key(self, name: str) -> str:
        """Return the key of a job's name: a root may hold several sharded journals, and a name may count in each."""
        return name if self.tree is None else f"{self.tree.name}/{name}"

    def described(self) -> dict[str, Any]:
        """Return what a decision records of it."""
        return {"prefix": self.prefix, "bits": self.bits}

    def again(self, found: dict[str, Any]) -> Target:
        """Return the target of a decision in this root, and remove its members."""
        return self._replace(prefix=found.pop("prefix"), bits=found.pop("bits"))

    def waits_for(self, job: str) -> bool:
        """Return whether a decided job that cannot be finished stops the jobs of this target: each one does."""
        return True

    @property
    def tree(self) -> Path | None:
        """The sharded journal, or None if the root is the journal."""
        if self.prefix is None and self.bits is None:
            return None
        return Path(self.root, self.prefix or "", self.bits or 0)

    @property
    def staging(self) -> str:
        """The folder for staged rows; on the journals' own disk, and ignored by readers."""
        return os.path.join(self.root, "tmp", "staging") if self.tree is None else os.path.join(self.root, ".staging")

    def hash(self, *, replaces: bool) -> Hash:
        """The hash that routes the keys: the one that the sharded journal remembers, or else Spark's own.

        Args:
            replaces: whether the job replaces all messages that are there.

        Raises:
            RouteError: the keys that are there were routed in another way.
        """
        tree = self.tree
        if tree is None:
            return "xxh64"
        name = choose_hash(tree, None, OS, replaces=replaces)
        remember_hash(tree, name, OS)
        return name

    def directory(self, shard: int) -> Directory:
        """Return a journal's directory, whether or not it exists."""
        tree = self.tree
        return Directory(self.root if tree is None else tree.dir(shard), OS)

    def existing(self) -> list[int]:
        """Return the shards that exist."""
        tree = self.tree
        count = 1 if tree is None else tree.count
        return [shard for shard in range(count) if OS.status(self.directory(shard).jnl) is not None]

    def prepare(self) -> None:
        """Create what a reader recognises even if no message is ever written."""
        tree = self.tree
        if tree is None:
            self.open(0).close()
        else:
            prepare(tree)

    def open(self, shard: int) -> Writer:
        """Open a journal's writer; the journal is created if it is missing.

        Raises:
            LockedError: another writer held it for lock_timeout.
        """
        tree = self.tree
        if tree is not None:
            prepare(tree)
            record_shard(tree, shard)
        path = self.directory(shard).path
        return Writer(path, segment_bytes=self.segment_bytes, lock_timeout=self.lock_timeout)


def batch_name(options: Options) -> str | None:
    """Return the name under which a batch job is counted; None: it has none.

    Raises:
        OptionError: txnAppId without txnVersion, or the reverse.
    """
    name: str | None = options["txnAppId"]
    if (name is None) != (options["txnVersion"] is None):
        raise OptionError("txnAppId and txnVersion need each other: the job's name, and a number that increases")
    return name


def stream_name(options: Options, checkpoint: str | None) -> str:
    """Return the name under which the batches of a stream are counted.

    Raises:
        OptionError: nothing names the stream.
    """
    if options["txnAppId"] is not None:
        return str(options["txnAppId"])
    if not checkpoint:
        raise OptionError(
            "set the option checkpointLocation on the stream itself, or txnAppId, the name under which its batches are"
            " counted"
        )
    return by_checkpoint(checkpoint)


def by_checkpoint(location: str) -> str:
    """Return the name for a stream with this checkpoint.

    If the folder is not on a local disk, the name is derived from its address.
    """
    if file_system(location) is not None:
        return _hashed(location)
    path = os.path.abspath(local_path(location))
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return _hashed(json.load(file)["id"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return _hashed(path)


def _hashed(whose: str) -> str:
    return f"spark-{hashlib.sha256(whose.rstrip('/').encode()).hexdigest()[:20]}"


class OnDisk:
    """A place for a job's rows; pickled with the writer.

    Attributes:
        bits: bits of the shards; None: one journal.
        hash: routes the keys.
    """

    def __init__(self, root: str, options: Options, *, overwrite: bool) -> None:
        """Check everything that can be checked before a row is written."""
        self._target = Target.of(root, options)
        self._options = options
        self._overwrite = overwrite
        self._owner = Owner.here()
        self.bits = self._target.bits
        self.hash = self._target.hash(replaces=overwrite)
        if overwrite:
            check_readers(self._target, options["discardReaders"])
        self._disk = str(identity(self._target.staging, create=True))

    def stage(self, job: str, partition: int | None) -> Stage:
        """Return the files of one task."""
        task = f"{'?' if partition is None else partition} on host {host_name()}"
        require_identity(self._target.staging, self._disk, task)
        return Stage(self._target.staging, job, self._owner, task)

    def commit(self, job: str, name: str | None, number: int | None, rows: Sequence[Rows]) -> None:
        """Commit the rows of all tasks to the journals."""
        discard, expected = self._options["discardReaders"], self._options["expectedOffsets"]
        commit(self._target, Job(job, name or ANONYMOUS, number, list(rows), self._overwrite, discard, expected))

    def abort(self, job: str) -> None:
        """Remove a job's files; if it is decided, the next job finishes it."""
        if not is_decided(self._target, job):
            forget(self._target.staging, job)


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
