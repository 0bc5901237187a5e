"""Rows of a job staged and committed on a disk that the driver and all executors share."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.options import Options
from pipeline.writing.target import Target
from sej.system.locks import host_name
from shard.committing import ANONYMOUS, Job, check_readers, commit, is_decided
from shard.staging import Owner, Rows, Stage, forget, identity, require_identity


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
