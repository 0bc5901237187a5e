"""The sinks of ``sej``: rows into a journal or a tree of shards, exactly once.

Tasks encode and stage (:mod:`pipeline.writing.staging`), the driver commits (:mod:`pipeline.writing.committing`).
Columns: ``key`` and ``value``, bytes or text; ``type`` and ``timestamp_ns`` where given (``timestamp`` serves where
that is missing). The other columns of the source are passed over, so that what was read can be written: offsets are new
in a new place.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.options import OptionError, Options
from pipeline.schema import COLUMNS
from pipeline.writing.checkpoint import by_checkpoint
from pipeline.writing.committing import ANONYMOUS, Job, check_readers, commit, is_decided
from pipeline.writing.staging import Owner, Rows, Stage, forget
from pipeline.writing.target import Target
from sej.journal.directory import check_name
from shard.routing import group

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SejStreamWriter", "SejWriter", "Staged"]

_KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "type": ("tinyint", "smallint", "int", "bigint"),
    "timestamp_ns": ("bigint",),
    "timestamp": ("timestamp",),
}


@dataclass
class Staged(WriterCommitMessage):
    """What one task left.

    Attributes:
        job: the job's id.
        rows: its files.
    """

    job: str
    rows: list[Rows]


class _Sink:
    """What batch and stream share: the tasks' part."""

    def __init__(self, root: str, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check everything that can be checked before a row is written."""
        self._columns = _check_columns(schema)
        self._target = Target.of(root, options)
        self._hash = self._target.hash()
        self._options = options
        self._overwrite = overwrite
        self._job = uuid.uuid4().hex
        self._owner = Owner.here()
        if overwrite:
            check_readers(self._target, options["discardReaders"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task: encode and stage."""
        stage = Stage(self._target.staging, self._job, self._owner)
        try:
            for batch in iterator:
                self._stage(stage, batch)
            return Staged(self._job, stage.finish())
        except BaseException:
            stage.drop()
            raise

    def _stage(self, stage: Stage, batch: pa.RecordBatch) -> None:
        columns = self._columns
        values = _bytes(batch.column(columns["value"]))
        keys = _bytes(batch.column(columns["key"])) if "key" in columns else [b""] * batch.num_rows
        types: Any = _numbers(batch.column(columns["type"]), 0) if "type" in columns else 0
        times: Any = time.time_ns()
        if "timestamp_ns" in columns:
            times = _numbers(batch.column(columns["timestamp_ns"]), times)
        elif "timestamp" in columns:
            times = _micros(batch.column(columns["timestamp"]), times)
        if not self._target.bits:
            stage.append(0, values, keys, types, times)
            return
        single = isinstance(types, int) and isinstance(times, int)
        for shard, (some, labels, places) in group(
            values, keys, self._target.bits, None, not single, self._hash
        ).items():
            kinds = types if isinstance(types, int) else [types[place] for place in places]
            stamps = times if isinstance(times, int) else [times[place] for place in places]
            stage.append(shard, some, labels, kinds, stamps)  # type: ignore[arg-type]

    def _commit(self, messages: list[WriterCommitMessage | None], name: str, number: int | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        job = staged[0].job if staged else self._job
        rows = [row for message in staged for row in message.rows]
        discard, expected = self._options["discardReaders"], self._options["expectedOffsets"]
        commit(self._target, Job(job, name, number, rows, self._overwrite, discard, expected))

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        for job in {self._job, *(message.job for message in messages if isinstance(message, Staged))}:
            if not is_decided(self._target, job):  # else the next job finishes it
                forget(self._target.staging, job)


class SejWriter(_Sink, DataSourceArrowWriter):
    """A batch job."""

    def __init__(self, root: str, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check.

        Raises:
            OptionError: txnAppId without txnVersion, or the other way round.
        """
        if (options["txnAppId"] is None) != (options["txnVersion"] is None):
            raise OptionError("txnAppId and txnVersion belong together: the job's name, and a number that rises")
        self._name = ANONYMOUS if options["txnAppId"] is None else check_name(options["txnAppId"], "txnAppId")
        super().__init__(root, options, schema, overwrite)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: put their rows into the journals."""
        self._commit(messages, self._name, self._options["txnVersion"])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed: leave nothing."""
        self._abort(messages)


class SejStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """A stream."""

    def __init__(
        self, root: str, options: Options, schema: StructType, overwrite: bool, checkpoint: str | None
    ) -> None:
        """Check.

        Raises:
            OptionError: nothing says who counts the batches, or txnVersion was given.
        """
        if options["txnVersion"] is not None:
            raise OptionError("txnVersion is for batch jobs: a stream's batches are counted by Spark")
        if options["txnAppId"] is not None:
            self._name = check_name(options["txnAppId"], "txnAppId")
        elif checkpoint:
            self._name = by_checkpoint(checkpoint)
        else:
            raise OptionError(
                "give the option checkpointLocation at the stream itself, or txnAppId: the name under which its batches"
                " are counted"
            )
        super().__init__(root, options, schema, overwrite)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch are done; a batch that is there already is dropped."""
        self._commit(messages, self._name, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The micro-batch failed: leave nothing."""
        self._abort(messages)


def _check_columns(schema: StructType) -> dict[str, int]:
    """Where the columns are that are written.

    Raises:
        OptionError: there is no value, a column that a journal has no place for, or one of another type.
    """
    found = {}
    for place, field in enumerate(schema.fields):
        kinds = _KINDS.get(field.name)
        if kinds is None:
            if field.name in COLUMNS:
                continue
            raise OptionError(
                f"a journal has no place for column {field.name!r}: select key, value, and type and timestamp_ns where"
                " given; put the rest into the value, for example with to_json"
            )
        if field.dataType.simpleString() not in kinds:
            raise OptionError(
                f"column {field.name!r} is {field.dataType.simpleString()}; {' or '.join(kinds)} is due: cast it"
            )
        found[field.name] = place
    if "value" not in found:
        raise OptionError(f"there is no column 'value' among {', '.join(schema.names)}: a message is its value")
    return found


def _bytes(column: pa.Array) -> list[bytes]:
    """Bytes; text as UTF-8, null as none."""
    import pyarrow as pa

    if column.type != pa.binary():
        column = column.cast(pa.binary())
    if column.null_count:
        column = column.fill_null(b"")
    found: list[bytes] = column.to_pylist()
    return found


def _numbers(column: pa.Array, default: int) -> list[int]:
    import pyarrow as pa

    found: list[int] = column.cast(pa.int64()).fill_null(default).to_pylist()
    return found


def _micros(column: pa.Array, default: int) -> list[int]:
    import pyarrow as pa

    micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return [default if stamp is None else stamp * 1000 for stamp in micros.to_pylist()]
