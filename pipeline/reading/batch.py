"""The source ``sej`` in batch mode: the driver plans slices, each task reads its own.

Spark pickles these objects: they hold text, and open no file until a method needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from pipeline.connection import Remote
from pipeline.options import Options
from pipeline.reading.conditions import Chosen, Condition, narrow
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
        self._chosen = Chosen()

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
                chosen=self._chosen,
            )
        )
        parts = slices(extents, options, self._chosen.low, self._chosen.high)
        by_name = {extent.origin.name: extent for extent in extents}
        since = self._chosen.since
        if since is not None:
            parts = [
                by_name[part.origin.name].slice(max(part.start, by_name[part.origin.name].find_time(since)), part.stop)
                for part in parts
            ]
        packed = pack(
            [part for part in parts if part.start < part.stop],
            by_name,
            at_least=options["minPartitions"],
            at_most=options["maxPartitions"],
            at_once=cores(self._parallelism),
        )
        return [InputPartition(part) for part in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the partition of one task. Spark passes None if there are no partitions."""
        way = task_options(self._options)._replace(since=self._chosen.since, until=self._chosen.until)
        return read(partition.value or (), arrow_schema(self._schema), way)


class FilteringSejReader(SejReader):
    """The same reader with filters; used only if requested, and for one query.

    Spark 4.3 keeps the plan with the filters of one query in the table's object, and reads the same partitions in the
    next query of that DataFrame, or in the other side of a join. It also refuses a reader with this method if its
    setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accept the filters that limit what is read; return the others."""
        self._chosen, rest = choose(filters)
        return rest


_TESTS: Final[dict[type[Filter], Any]] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    IsNull: "is null",
    IsNotNull: "is not null",
}


def choose(filters: Iterable[Filter]) -> tuple[Chosen, list[Filter]]:
    """Return what filters leave to read, and the filters that Spark must still apply."""
    chosen, rest = Chosen(), []
    for given in filters:
        condition, done = _condition(given), False
        if condition is not None:
            chosen, done = narrow(chosen, condition)
        if not done:
            rest.append(given)
    return chosen, rest


def _condition(given: Filter) -> Condition | None:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    test = _TESTS.get(type(given))
    if len(attribute) != 1 or test is None:
        return None
    return Condition(attribute[0], test, getattr(given, "value", None))
