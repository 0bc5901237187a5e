"""The sinks: rows into a journal, a sharded journal or a text queue, exactly once.

Tasks encode and stage (:mod:`shard.staging`), the driver commits (:mod:`shard.committing`).
Columns: ``key`` and ``value``, bytes or text; optionally ``type`` and ``timestamp_ns`` (or else ``timestamp``). The
source's other columns are ignored, so that rows that were read can be written; they get new offsets. With the option
``valueFormat``, tasks make the value of all columns that a journal does not have.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pipeline.columns import SEJ
from pipeline.connection import Remote
from pipeline.options import Fields, OptionError, Options
from pipeline.values import ValueFormat, value_format
from pipeline.writing.places import OnDisk, OnHub, batch_name, stream_name
from shard.committing import check_job_name
from shard.routing import group

if TYPE_CHECKING:
    import pyarrow as pa


_KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "type": ("tinyint", "smallint", "int", "bigint"),
    "timestamp_ns": ("bigint",),
    "timestamp": ("timestamp",),
}


@dataclass
class Staged(WriterCommitMessage):
    """The files of one task.

    Attributes:
        job: the job's id.
        rows: its files.
    """

    job: str
    rows: list[Any]


class Columns(NamedTuple):
    """What rows are made of.

    Attributes:
        places: the positions of the columns key, value, type, and timestamp or timestamp_ns, by name.
        fields: the positions of the columns that are fields of the value.
        values: what the value is, if it has fields; None: the column value has it.
    """

    places: Mapping[str, int]
    fields: Sequence[int] = ()
    values: ValueFormat | None = None


class _Sink:
    """Shared by batch and stream: tasks write, the driver commits or aborts.

    Args:
        columns: what the rows are made of.
        place: stages the rows of tasks and commits those of a job: a disk, a hub or a ``.tq`` file; pickled with this.
        name: the name under which the job's batches are counted, or None.
        number: of a batch job, among those of its name.
    """

    def __init__(self, columns: Columns, place: Any, name: str | None, number: int | None = None) -> None:
        self._columns, self._fields, self._values = columns
        self._place = place
        self._name = name
        self._number = number
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode and stage the rows of one task."""
        context = TaskContext.get()
        stage = self._place.stage(self._job, None if context is None else context.partitionId())
        try:
            for batch in iterator:
                self._stage(stage, batch)
            return Staged(self._job, [*stage.finish()])
        except BaseException:
            stage.drop()
            raise

    def _stage(self, stage: Any, batch: pa.RecordBatch) -> None:
        columns = self._columns
        values = (
            _bytes(batch.column(columns["value"]))
            if self._values is None
            else self._values.encoded(batch.select(self._fields))
        )
        keys = _bytes(batch.column(columns["key"])) if "key" in columns else [b""] * batch.num_rows
        types: Any = _numbers(batch.column(columns["type"]), 0) if "type" in columns else 0
        times: Any = time.time_ns()
        if "timestamp_ns" in columns:
            times = _numbers(batch.column(columns["timestamp_ns"]), times)
        elif "timestamp" in columns:
            times = _micros(batch.column(columns["timestamp"]), times)
        if not self._place.bits:
            stage.append(0, values, keys, types, times)
            return
        single = isinstance(types, int) and isinstance(times, int)
        for shard, (some, labels, places) in group(
            values, keys, self._place.bits, None, not single, self._place.hash
        ).items():
            kinds = types if isinstance(types, int) else list(map(types.__getitem__, places))
            stamps = times if isinstance(times, int) else list(map(times.__getitem__, places))
            stage.append(shard, some, labels, kinds, stamps)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Commit the rows of all tasks; a numbered batch that was committed before is dropped."""
        staged = [message for message in messages if isinstance(message, Staged)]
        job = staged[0].job if staged else self._job
        number = self._number if batchId is None else batchId
        self._place.commit(job, self._name, number, [row for message in staged for row in message.rows])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """The job or micro-batch failed: remove its files."""
        for job in {self._job, *(message.job for message in messages if isinstance(message, Staged))}:
            self._place.abort(job)


class BatchSink(_Sink, DataSourceArrowWriter):
    """A batch job."""


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """A stream, whose batches Spark counts."""


def batch_sink(path: str, options: Options, schema: StructType, overwrite: bool) -> BatchSink:
    """Check everything that can be checked before a row is written, and return the writer of a batch job.

    Raises:
        OptionError: txnAppId without txnVersion, or the reverse; or as :func:`_place`.
    """
    name = batch_name(options)
    checked = None if name is None else check_job_name(name, "txnAppId")
    columns = _columns(schema, options)
    return BatchSink(columns, _place(path, options, overwrite, stream=False), checked, options["txnVersion"])


def stream_sink(path: str, options: Options, schema: StructType, overwrite: bool, checkpoint: str | None) -> StreamSink:
    """Check everything that can be checked before a row is written, and return the writer of a stream.

    Raises:
        OptionError: nothing names the stream, or txnVersion is set; or as :func:`_place`.
    """
    if options["txnVersion"] is not None:
        raise OptionError("txnVersion is for batch jobs: leave it out of a stream, whose batches Spark counts")
    name = check_job_name(stream_name(options, checkpoint), "txnAppId")
    return StreamSink(_columns(schema, options), _place(path, options, overwrite, stream=True), name)


def _place(path: str, options: Options, overwrite: bool, *, stream: bool) -> OnDisk | OnHub:
    remote = Remote.of(options)
    if remote is None:
        return OnDisk(path, options, overwrite=overwrite)
    return OnHub(path, remote, options, overwrite=overwrite, stream=stream)


def _columns(schema: StructType, options: Options) -> Columns:
    form = options["valueFormat"]
    places = _check_columns(schema, typed=form is not None)
    if form is None:
        return Columns(places)
    fields = Fields(None, form, options["valueDefinition"])
    of_values = [place for place, name in enumerate(schema.names) if name not in SEJ]
    return Columns(places, of_values, value_format(fields, ("valueFormat", "valueDefinition")))


def _check_columns(schema: StructType, *, typed: bool) -> dict[str, int]:
    """Return the positions of the journal's columns that are written; if typed, the others are fields of the value.

    Raises:
        OptionError: there is no value, a column that a journal cannot store, or one of another type.
    """
    found = {}
    for place, field in enumerate(schema.fields):
        kinds = _KINDS.get(field.name)
        if kinds is None:
            if field.name in SEJ or typed:
                continue
            raise OptionError(
                f"a journal cannot store column {field.name!r}; select key, value, and optionally type and"
                " timestamp_ns, and put other columns into the value, with to_json or the option valueFormat"
            )
        if field.dataType.simpleString() not in kinds:
            raise OptionError(
                f"column {field.name!r} must be {' or '.join(kinds)}, got {field.dataType.simpleString()}; cast it"
            )
        found[field.name] = place
    if typed:
        if "value" in found or not set(schema.names) - set(SEJ):
            raise OptionError(
                "valueFormat makes the value of the columns that a journal does not have: leave out the column value,"
                f" and select the fields; got {', '.join(schema.names)}"
            )
    elif "value" not in found:
        raise OptionError(f"there is no column 'value' among {', '.join(schema.names)}; a message needs a value")
    return found


def _bytes(column: pa.Array) -> list[bytes]:
    """Return bytes; text as UTF-8, null as empty."""
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
