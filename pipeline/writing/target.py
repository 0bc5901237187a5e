"""The target of a sink: one SEJ directory, or a sharded journal below a root."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Final, NamedTuple

from pipeline.options import OptionError, Options
from pipeline.paths import is_address, local_path
from sej.errors import NotAJournalError
from sej.journal.directory import Directory, journals_in
from sej.system.disk import OS, absolute_path
from sej.writing.writer import Writer
from shard.names import Path
from shard.records import choose_hash, prepare, record_shard, refuse_second, remember_hash
from shard.routing import Hash

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
    if is_address(location) and not location.lower().startswith("file:"):
        return _hashed(location)
    path = os.path.abspath(local_path(location))
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return _hashed(json.load(file)["id"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return _hashed(path)


def _hashed(whose: str) -> str:
    return f"spark-{hashlib.sha256(whose.rstrip('/').encode()).hexdigest()[:20]}"
