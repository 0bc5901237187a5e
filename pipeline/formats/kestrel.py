"""The source ``kestrel``: the items of Kestrel 2 and libkestrel queues as a table. It changes no file.

Used as ``load(directory)`` with the option ``queue``. The format is detected from the files' first bytes, or set by
``kind``. With ``reader``, a libkestrel queue shows the items that this reader has not confirmed.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

from pipeline.columns import KESTREL
from pipeline.formats.rows import RowReader, no_stream
from pipeline.options import KESTREL_READ, OptionError, parse
from pipeline.paths import paths_of
from pipeline.reading.kestrel_items import KestrelItems
from pipeline.schema import check_projection, spark_columns

_COLUMNS: Final = spark_columns(KESTREL)
_SCHEMA: Final = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])


class KestrelSource(DataSource):
    """The source for Kestrel's queues."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kestrel"

    def schema(self) -> StructType:
        """Return all columns."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        options = parse(KESTREL_READ, self.options, "kestrel")
        if options["queue"] is None:
            raise OptionError("the option queue is required: the name of a queue in the directory")
        how = (options[name] for name in ("queue", "kind", "reader", "onCorruption"))
        return RowReader(KestrelItems(paths_of(self.options), *how), check_projection(schema, _COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader that raises: this source is a table only."""
        return no_stream("kestrel")
