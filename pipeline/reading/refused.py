"""A stream reader that cannot read: it raises why, at its first call.

PySpark's process for stream readers hides an error of ``streamReader``: it then calls ``stop`` of the reader that does
not exist, and the query ends with an ``UnboundLocalError``. An error of a method is reported as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pipeline.options import OptionError
from sej.errors import SejError


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error in every method that Spark calls."""

    def __init__(self, error: Exception) -> None:
        """Set the error."""
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error


def reader_or_refusal(create: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return the reader, or one that raises why it could not be created."""
    try:
        return create()
    except (SejError, OSError) as error:
        return RefusedReader(error)


def no_stream(source: str) -> RefusedReader:
    """Return the reader of a source that has no stream."""
    return RefusedReader(
        OptionError(f"the source {source!r} cannot be read as a stream; read it as a table, with spark.read")
    )
