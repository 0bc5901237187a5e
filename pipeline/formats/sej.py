"""The source ``sej``: implements Spark's interface with the other modules.

Spark creates these objects in several processes and pickles them: they hold text, and open no file until a method needs
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pipeline.columns import ONE_SOURCE, SEJ, ddl
from pipeline.formats.rows import RefusedReader
from pipeline.options import READ, STREAM, WRITE, OptionError, Options, parse
from pipeline.paths import paths_of
from pipeline.reading.discovery import name_several
from pipeline.reading.stream import FilteringSejReader, SejReader, SejStreamReader
from pipeline.writing.sink import SejStreamWriter, SejWriter
from sej.errors import SejError


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

    def schema(self) -> str:
        """Return all columns; without paths, which Spark does not pass for a table of its catalogue, those of one."""
        paths = [] if self.options.get("hub") else paths_of(self.options, may_be_none=True)
        return ddl(SEJ if name_several(paths) else ONE_SOURCE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        options = parse(READ, self.options)
        kind = FilteringSejReader if options["pushFilters"] else SejReader
        return kind(_paths(self.options, options), options, schema, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader; it raises if options or paths are wrong."""
        try:
            options = parse(STREAM, self.options)
            return SejStreamReader(_paths(self.options, options), options, schema, self.parallelism)
        except (SejError, OSError) as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        options = parse(WRITE, self.options)
        return SejWriter(_one_path(self.options, options), options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a stream writer."""
        checkpoint = self.options.get("checkpointLocation")
        options = parse(WRITE, self.options)
        return SejStreamWriter(_one_path(self.options, options), options, schema, overwrite, checkpoint)


def _paths(given: Mapping[str, str], options: Options) -> list[str]:
    return paths_of(given, may_be_none=bool(options["hub"]), local=not options["hub"])


def _one_path(given: Mapping[str, str], options: Options) -> str:
    paths = paths_of(given, local=not options["hub"])
    if len(paths) != 1:
        raise OptionError(f"expected one path to write to, got {len(paths)}")
    return paths[0]
