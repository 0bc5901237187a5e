"""The source ``sej`` in batch mode: the driver plans slices, each task reads its own.

Spark pickles these objects: they hold text, and open no file until a method needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.connection import Remote
from pipeline.options import Options
from pipeline.reading.planning import cores, extents_of, pack
from pipeline.reading.positions import slices
from pipeline.reading.task import read, task_options
from pipeline.schema import arrow_schema, check_projection

if TYPE_CHECKING:
    import pyarrow as pa


class SejReader(DataSourceReader):
    """Reads journals in batch mode: plans on the driver, reads in the tasks."""

    def __init__(self, paths: list[str], options: Options, schema: StructType, parallelism: int | None = None) -> None:
        """Store the arguments; nothing is opened. parallelism: tasks at the same time, None: unknown."""
        self._parallelism = parallelism
        self._paths = paths
        self._options = options
        self._schema = check_projection(schema)

    def partitions(self) -> list[InputPartition]:
        """Return the slices of each task; empty if there is nothing to read."""
        options = self._options
        extents = list(
            extents_of(
                self._paths,
                Remote.of(options),
                layout=options["layout"],
                pattern=options["pattern"],
                on_corruption=options["onCorruption"],
            )
        )
        packed = pack(
            slices(extents, options),
            {extent.origin.name: extent for extent in extents},
            at_least=options["minPartitions"],
            at_most=options["maxPartitions"],
            at_once=cores(self._parallelism),
        )
        return [InputPartition(part) for part in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the partition of one task. Spark passes None if there are no partitions."""
        return read(partition.value or (), arrow_schema(self._schema), task_options(self._options))
