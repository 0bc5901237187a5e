"""Spark's formats ``sej``, ``textqueue`` and ``kestrel``: Spark's interface, implemented with the other modules.

Spark creates these objects in several processes and pickles them: they hold text, and open no file until a method needs
it.

Spark passes the options of ``CREATE TABLE`` only to :meth:`SejSource.schema`, and later only the schema that this has
returned. So the schema of a table has the options in the metadata of its column ``offset``. They propagate with the
column to other tables and files: secrets are refused, and so is a column with them in what is written.

PySpark's process for stream readers hides an error of ``streamReader``: it then calls ``stop`` of the reader that does
not exist, and the query ends with an ``UnboundLocalError``. An error of a method is reported as it is, so
:class:`RefusedReader` raises it at its first call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructType

from pipeline.columns import KESTREL, ONE_SOURCE, SEJ, TEXTQUEUE, arrow_schema, arrow_schema_of, check_projection, ddl
from pipeline.daemon import end_quietly
from pipeline.options import (
    KESTREL_READ,
    READ,
    STREAM,
    TEXTQUEUE_READ,
    TEXTQUEUE_WRITE,
    WRITE,
    Fields,
    OptionError,
    Options,
    parse,
)
from pipeline.paths import local_path, paths_of, unseen
from pipeline.reading.discovery import name_several, with_roots
from pipeline.reading.rows import KestrelItems, RowSource, TextEntries, batches_of
from pipeline.reading.stream import FilteringSejReader, SejReader, SejStreamReader
from pipeline.schemas import kept_schema
from pipeline.values import value_columns
from pipeline.writing.places import batch_name, stream_name
from pipeline.writing.sink import BatchSink, Columns, StreamSink, batch_sink, stream_sink
from sej.errors import SejError
from sej.system.disk import OS, absolute_path

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.writing.on_file import OnFile

_main = sys.modules["__main__"]
if getattr(_main.__spec__, "name", None) == "pyspark.daemon":  # a worker that plans
    end_quietly(_main)

_CREATED: Final = "provider"
"""Spark adds this member to the options of ``CREATE TABLE``."""
_GIVEN: Final = "option."
_METADATA: Final = "sejOptions"
_SECRET: Final = ("hubToken", "hubKey")


class RowReader(DataSourceReader):
    """Reads small files as rows; a file or queue is a partition."""

    def __init__(self, source: RowSource, schema: StructType) -> None:
        """List the files."""
        self._source = source
        self._schema = schema
        self._parts = source.parts()

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each file or queue."""
        return [InputPartition([part]) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            SejError: this host does not have a path.
        """
        for part in partition.value or ():
            if OS.status(part[0]) is None:  # a queue that is opened would be created
                raise SejError(unseen(), path=part[0])
            yield from batches_of(self._source, part, arrow_schema_of(self._schema))


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error in every method that Spark calls."""

    def __init__(self, error: Exception) -> None:
        """Set the error."""
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = _refuse  # type: ignore[assignment]  # noqa: N815
    prepareForTriggerAvailableNow = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815


def no_stream(source: str) -> RefusedReader:
    """Return the reader of a source that has no stream."""
    return RefusedReader(
        OptionError(f"the source {source!r} cannot be read as a stream; read it as a table, with spark.read")
    )


class SejSource(DataSource):
    """The source and sink ``sej``.

    Attributes:
        parallelism: how many tasks the cluster runs at the same time; None: unknown. Only the driver knows it, and not
            the processes that plan: :func:`pipeline.register` registers a class that carries it to them.
    """

    parallelism: ClassVar[int | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "sej"

    def schema(self) -> str | StructType:
        """Return all columns; for a table of Spark's catalogue with its options."""
        options = self.options if _CREATED not in self.options else _of_table(self.options)
        paths = [] if options.get("hub") else paths_of(options, may_be_none=True)
        columns = SEJ if name_several(paths) else ONE_SOURCE
        if fields := _fields(options):
            columns = {**columns, **value_columns(fields)}
        if options is self.options:
            return ddl(columns)
        found = from_arrow_schema(arrow_schema(columns, columns))
        found["offset"].metadata = {_METADATA: dict(options)}
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        given = self._options(schema)
        options = parse(READ, given)
        kind = FilteringSejReader if options["pushFilters"] else SejReader
        return kind(_paths(given, options), options, schema, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader; it raises if options or paths are wrong."""
        try:
            given = self._options(schema)
            options = parse(STREAM, given)
            return SejStreamReader(_paths(given, options), options, schema, self.parallelism)
        except (SejError, OSError) as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        options = parse(WRITE, self.options)
        return batch_sink(_one_path(self.options, options, schema), options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a stream writer."""
        checkpoint = self.options.get("checkpointLocation")
        options = parse(WRITE, self.options)
        return stream_sink(_one_path(self.options, options, schema), options, schema, overwrite, checkpoint)

    def _options(self, schema: StructType) -> Mapping[str, str]:
        """Return the options of a read, with those of its table and of the kept schema if it does not have them."""
        given: Mapping[str, str] = self.options
        if not {"path", "paths", "hub"} & given.keys():
            given = {**_kept(schema), **given}
        fields = _fields(given)
        if fields is None:
            return given
        kept = {"valueFormat": fields.format, "valueDefinition": fields.definition}
        return {**given, **{name: text for name, text in kept.items() if text is not None}}


def _of_table(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of ``CREATE TABLE`` from the properties of the table.

    Raises:
        OptionError: an option is wrong, or must not be readable for all who can read the catalogue.
    """
    found = {name.removeprefix(_GIVEN): text for name, text in properties.items() if name.startswith(_GIVEN)}
    for name in _SECRET:
        if name.lower() in found:
            raise OptionError(
                f"{name} would be readable in the catalogue; leave it out of the table, and pass it in each query:"
                f" SELECT ... FROM t WITH ('{name}' = '...')"
            )
    path = properties.get("location")
    if "hub" in found and path is not None:
        raise OptionError("a table on a hub has no path; name what it reads as in OPTIONS (paths '[\"berlin\"]')")
    if path is not None:
        found["path"] = absolute_path(local_path(path))
    parse(READ, found)
    return found


def _fields(options: Mapping[str, str]) -> Fields | None:
    """Return the schema of the values that is kept with the journals; None if the options say what the values are."""
    given = {name.lower(): text for name, text in options.items()}
    if "valueformat" in given or "hub" in given:
        return None
    kept = kept_schema(with_roots(paths_of(given, may_be_none=True)))
    return None if kept is None else kept._replace(mode=given.get("valuemode", kept.mode).lower())


def _kept(schema: StructType) -> Mapping[str, str]:
    """Return the options of the table that the column ``offset`` belongs to; empty if it is not of a table."""
    metadata = [field.metadata for field in schema.fields if field.name == "offset"]
    kept: Mapping[str, str] = metadata[0].get(_METADATA, {}) if metadata else {}
    return kept


def _paths(given: Mapping[str, str], options: Options) -> list[str]:
    return paths_of(given, may_be_none=bool(options["hub"]), local=not options["hub"])


def _one_path(given: Mapping[str, str], options: Options, schema: StructType) -> str:
    if _kept(schema):
        raise OptionError(
            "the column 'offset' belongs to a table in the catalogue, which INSERT cannot write to: select the columns"
            " key and value, and write them with df.write.format('sej').save(path)"
        )
    paths = paths_of(given, local=not options["hub"])
    if len(paths) != 1:
        raise OptionError(f"expected one path to write to, got {len(paths)}")
    return paths[0]


class TextQueueSource(DataSource):
    """The source and sink for ``.tq`` files, which people edit.

    Every entry is a row, with any status; the column ``status`` has it. Reading marks nothing.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "textqueue"

    def schema(self) -> str:
        """Return all columns."""
        return ddl(TEXTQUEUE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        parse(TEXTQUEUE_READ, self.options, "textqueue")
        return RowReader(TextEntries(paths_of(self.options)), check_projection(schema, TEXTQUEUE))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader that raises: this source is a table only."""
        return no_stream("textqueue")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        options = parse(TEXTQUEUE_WRITE, self.options, "textqueue")
        place = _on_file(self.options, overwrite)
        return BatchSink(_check_text(schema), place, batch_name(options), options["txnVersion"])

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a stream writer."""
        options = parse(TEXTQUEUE_WRITE, self.options, "textqueue")
        name = stream_name(options, self.options.get("checkpointLocation"))
        return StreamSink(_check_text(schema), _on_file(self.options, overwrite), name)


def _check_text(schema: StructType) -> Columns:
    for name in schema.names:
        if name != "value":
            raise OptionError(
                f"column {name!r} cannot be written: a row becomes one queued message, whose text is its value;"
                " select the column value only"
            )
    if not isinstance(schema["value"].dataType, StringType):
        raise OptionError(f"column 'value' must be string, got {schema['value'].dataType.simpleString()}; cast it")
    return Columns({"value": 0})


def _on_file(options: Mapping[str, str], overwrite: bool) -> OnFile:
    from pipeline.writing.on_file import OnFile

    paths = paths_of(options)
    if len(paths) != 1:
        raise OptionError(f"expected one .tq file to write to, got {len(paths)}")
    if overwrite:
        raise OptionError("a .tq file cannot be overwritten, because people edit it; append, or write to another file")
    return OnFile(absolute_path(paths[0]))  # the same file for jobs that spell its path differently


class KestrelSource(DataSource):
    """The source for Kestrel's queues: ``load(directory)`` with the option ``queue``.

    The format is detected from the files' first bytes, or set by ``kind``. With ``reader``, a libkestrel queue shows
    the items that this reader has not confirmed.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kestrel"

    def schema(self) -> str:
        """Return all columns."""
        return ddl(KESTREL)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        options = parse(KESTREL_READ, self.options, "kestrel")
        if options["queue"] is None:
            raise OptionError("the option queue is required: the name of a queue in the directory")
        how = (options[name] for name in ("queue", "kind", "reader", "onCorruption"))
        return RowReader(KestrelItems(paths_of(self.options), *how), check_projection(schema, KESTREL))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader that raises: this source is a table only."""
        return no_stream("kestrel")
