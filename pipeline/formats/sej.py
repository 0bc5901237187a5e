"""The source ``sej``: implements Spark's interface with the other modules.

Spark creates these objects in several processes and pickles them: they hold text, and open no file until a method needs
it.

Spark passes the options of ``CREATE TABLE`` only to :meth:`SejSource.schema`, and later only the schema that this has
returned. So the schema of a table has the options in the metadata of its column ``offset``. They propagate with the
column to other tables and files: secrets are refused, and so is a column with them in what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.columns import ONE_SOURCE, SEJ, arrow_schema, ddl
from pipeline.formats.rows import RefusedReader
from pipeline.options import READ, STREAM, WRITE, Fields, OptionError, Options, parse
from pipeline.paths import local_path, paths_of
from pipeline.reading.discovery import name_several, with_roots
from pipeline.reading.stream import FilteringSejReader, SejReader, SejStreamReader
from pipeline.schemas import kept_schema
from pipeline.values import value_columns
from pipeline.writing.sink import batch_sink, stream_sink
from sej.errors import SejError
from sej.system.disk import absolute_path

_CREATED: Final = "provider"
"""Spark adds this member to the options of ``CREATE TABLE``."""
_GIVEN: Final = "option."
_METADATA: Final = "sejOptions"
_SECRET: Final = ("hubToken", "hubKey")


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
