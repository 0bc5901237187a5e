"""SQL over tables, by DuckDB.

DuckDB takes a table as a dataset of Arrow: it asks for the columns that a query uses, and for the rows that fulfil its
conditions, as an Arrow expression. Comparisons of it limit what is read, as those of ``where``. The whole expression is
applied to each batch in any case.

In SQL a column of bytes is two: ``value`` is text, so that ``value->>'$.x'`` works, and ``value_bytes`` the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.columns import SEJ
from pipeline.options import OptionError
from pipeline.reading.conditions import Condition
from pipeline.tables.table import Table
from pipeline.tables.where import condition_of
from sej.errors import SejError

_BYTES: Final = "_bytes"
_PRUNING: Final = frozenset(SEJ) - {"type", "key", "value"}
_TERM: Final = re.compile(r"""\(*(\w+) (>=|<=|==|<|>) (?:(-?\d+)|"([^"\\]*)"|(\d{4}-\d\d-\d\d [\d:.]+Z))\)*""")
_FOREIGN_HINT: Final = re.compile(r'\nDid you mean "(?:duckdb|information_schema|pg|sqlite)_?[^\n]*')
"""DuckDB suggests tables of its own, too."""
_BATCH_ROWS: Final = 1 << 14


class Query:
    """Tables under names, for one query; a context manager.

    Example:
        >>> import tempfile, sej, pipeline
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b'{"x": 1}', b'{"x": 2}'])
        >>> with Query({"orders": pipeline.table(path)}) as query:
        ...     query.run("SELECT sum((value->>'$.x')::INT) AS x FROM orders").read_all().to_pylist()
        [{'x': Decimal('3')}]
    """

    def __init__(self, tables: Mapping[str, Table]) -> None:
        """Set the tables by name; nothing is read."""
        self._streams = {name: _Stream(table) for name, table in tables.items()}
        self._connection = duckdb.connect()

    def run(self, text: str) -> pa.RecordBatchReader:
        """Run the statements of a text; return the rows of the last one.

        Raises:
            OptionError: the text is not SQL, or names what does not exist.
            SejError: the query failed; or the error of reading a table, such as CorruptionError.
        """
        try:
            statements = duckdb.extract_statements(text)
            if not statements:
                raise OptionError("expected a query, as in SELECT count(*) FROM orders; got none")
            self._connection.execute(
                "SET TimeZone = 'UTC'; SET enable_progress_bar = false"
            )  # that would be in the output
            for name, stream in self._streams.items():
                self._connection.register(name, stream)
            for statement in statements[:-1]:
                done = self._connection.execute(statement)
                while done.fetchmany(_BATCH_ROWS):  # an open result refuses the next statement
                    pass
            relation: Any = self._connection.sql(statements[-1])
            if relation is None:  # a statement without rows
                return pa.RecordBatchReader.from_batches(pa.schema([]), [])
            return self._guarded(relation.to_arrow_reader(_BATCH_ROWS))
        except duckdb.Error as error:
            raise self._reason(error, text) from None

    def close(self) -> None:
        """End the query."""
        self._connection.close()

    def __enter__(self) -> Query:
        """Return the query."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def _guarded(self, found: pa.RecordBatchReader) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from found
            except (duckdb.Error, OSError, pa.ArrowException) as error:
                raise self._reason(error) from None

        names = _distinct(found.schema.names)
        schema = pa.schema([field.with_name(name) for field, name in zip(found.schema, names, strict=True)])
        return pa.RecordBatchReader.from_batches(schema, (batch.rename_columns(names) for batch in batches()))

    def _reason(self, error: Exception, text: str = "") -> Exception:
        """Return the error of a table if it caused this one; else one with DuckDB's words."""
        for stream in self._streams.values():
            if stream.failure is not None:
                return stream.failure
        words = str(error).strip()
        if isinstance(error, duckdb.ParserException) and re.search(r'(?<!["\w])offset(?!["\w])', text, re.IGNORECASE):
            words += '\nOFFSET is a word of SQL: write the column as "offset"'
        elif isinstance(error, duckdb.CatalogException):
            words = f"{_FOREIGN_HINT.sub('', words)}\nThe tables here are {', '.join(self._streams)}"
        wrong = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
        return OptionError(words) if isinstance(error, wrong) else SejError(words)


def _distinct(names: list[str]) -> list[str]:
    """Return the names of columns; of equal ones, as in a join, the later ones get a number."""
    found: list[str] = []
    for name in names:
        given, number = name, 0
        while name in found or (number and name in names):
            number += 1
            name = f"{given}_{number}"
        found.append(name)
    return found


def _hints(condition: str) -> list[Condition]:
    """Return the comparisons of an Arrow expression, if it is an AND of comparisons.

    Example:
        >>> _hints('((offset >= 3) and (client == "berlin"))')
        [Condition(column='offset', test='>=', value=3), Condition(column='client', test='=', value='berlin')]
    """
    found = []
    for term in condition.split(" and "):
        match = _TERM.fullmatch(term)
        if match is None:
            return []
        column, test, number, *texts = match.groups()
        if column in _PRUNING:
            value = int(number) if number else next(text for text in texts if text is not None)
            with suppress(OptionError):
                found.append(condition_of(column, "=" if test == "==" else test, value, SEJ))
    return found


class _Stream(ds.Dataset):  # type: ignore[misc]
    """A table as DuckDB reads it: each column of bytes as text too."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.failure: Exception | None = None
        fields = [pa.field(f.name, pa.string() if f.type == pa.binary() else f.type) for f in table.schema]
        fields += [pa.field(f.name + _BYTES, f.type) for f in table.schema if f.type == pa.binary()]
        self._fields = pa.schema(fields)

    @property
    def schema(self) -> pa.Schema:
        return self._fields

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> _Scan:
        return _Scan(self, list(self._fields.names if columns is None else columns), filter)

    def batches(self, columns: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fulfil a condition, with these columns."""
        words = re.findall(r"\w+", str(condition))
        made = [name for name in self._fields.names if name in columns or name in words]
        read = dict.fromkeys(name if name in self._table.schema.names else name.removesuffix(_BYTES) for name in made)
        names = self._table.schema.names
        cheapest = [name for name in ("offset", "ordinal", "position") if name in names] or names[:1]
        schema = pa.schema([self._fields.field(name) for name in made])

        def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = []
            for field in schema:
                column = batch.column(field.name if field.name in names else field.name.removesuffix(_BYTES))
                arrays.append(_text(column) if column.type == pa.binary() != field.type else column)
            found = pa.RecordBatch.from_arrays(arrays, schema=schema)
            return (found if condition is None else found.filter(condition)).select(columns)

        try:
            hints = [] if condition is None else _hints(str(condition))
            known = [hint for hint in hints if hint.column in names]
            yield from self._table.narrowed(list(read) or cheapest, known, whole)
        except (SejError, OSError, ValueError) as error:
            self.failure = error
            raise


class _Scan:
    """The rows that DuckDB requested."""

    def __init__(self, stream: _Stream, columns: list[str], condition: Any) -> None:
        self._stream, self._columns, self._condition = stream, columns, condition

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([self._stream.schema.field(name) for name in self._columns])
        return pa.RecordBatchReader.from_batches(schema, self._stream.batches(self._columns, self._condition))


def _text(column: pa.Array) -> pa.Array:
    r"""Return bytes as text; those that are not UTF-8 as ``\xff``, like `sej scan`.

    A cast would import pyarrow.compute, a tenth of the time of a short query.
    """
    text = column.view(pa.string())
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="backslashreplace") for value in column.to_pylist()], pa.string())
