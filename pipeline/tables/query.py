"""SQL over tables, by DuckDB.

DuckDB takes Arrow streams, but hands them no columns and no conditions. So a query is planned twice. The first plan is
over empty tables of DuckDB with the same columns. Its scans tell which columns the query uses, and which conditions
each row must fulfil. The second plan runs over the streams, which have only these columns; the others are null. If the
first plan cannot be made or read, everything is read.

In SQL a column of bytes is two: ``value`` is text, so that ``value->>'$.x'`` works, and ``value_bytes`` the bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import duckdb
import pyarrow as pa

from pipeline.options import OptionError
from pipeline.reading.discovery import Condition
from pipeline.tables.table import Table
from pipeline.tables.where import hint_of
from sej.errors import SejError

_BYTES: Final = "_bytes"
_TERM: Final = re.compile(r"""\(*"?(\w+)"? ?(>=|<=|=|<|>) ?(-?\d+|'(?:[^']|'')*')(?:::[A-Z ]+)?\)*""")
_WORD: Final = re.compile(r"\w+")
_FOREIGN_HINT: Final = re.compile(r'\nDid you mean "(?:duckdb|information_schema|pg|sqlite)_?[^\n]*')
"""DuckDB suggests tables of its own, too."""
_NO_ROWS: Final = "sej_no_rows"
_PADDING_ROWS: Final = 1 << 14
_OVER_EMPTY_TABLES: Final = "statistics_propagation,empty_result_pullup"
"""Optimizers that would leave out the scans of empty tables."""


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
            statements = self._connection.extract_statements(text)  # duckdb's own function would open a database
            if not statements:
                raise OptionError("expected a query, as in SELECT count(*) FROM orders; got none")
            self._connection.execute(
                "SET TimeZone = 'UTC'; SET enable_progress_bar = false"
            )  # that would be in the output
            if len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT:
                self._narrow(text)
            for name, stream in self._streams.items():
                self._connection.register(name, stream)
            for statement in statements[:-1]:
                done = self._connection.execute(statement)
                while done.fetchmany(_PADDING_ROWS):  # an open result refuses the next statement
                    pass
            relation: Any = self._connection.sql(statements[-1])
            if relation is None:  # a statement without rows
                return pa.RecordBatchReader.from_batches(pa.schema([]), [])
            return self._guarded(relation.to_arrow_reader(_PADDING_ROWS))
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

    def _narrow(self, text: str) -> None:
        """Plan the query over empty tables, and limit each stream to what it uses."""
        with suppress(duckdb.Error, ValueError, KeyError, TypeError), self._empty_tables() as planner:
            planner.execute(f"SET disabled_optimizers = '{_OVER_EMPTY_TABLES}'")
            row: Any = planner.execute(f"EXPLAIN (FORMAT json) {text}").fetchone()
            planned = [scan for plan in json.loads(row[1]) for scan in _scans(plan)]
            for name, stream in self._streams.items():
                scans = [(columns, filters) for table, columns, filters in planned if table == name]
                # A scan lists the columns that are used after its filters; each filter names its own.
                named = {word for _, filters in scans for text in filters for word in _WORD.findall(text)}
                hints = [hint for text in scans[0][1] for hint in _hints(text)] if len(scans) == 1 else []
                stream.limit({column for columns, _ in scans for column in columns} | named, hints)

    @contextmanager
    def _empty_tables(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return the connection, with empty tables in the place of the streams; remove them again.

        A second database would cost more than a small query.
        """
        made = []
        try:
            for name, stream in self._streams.items():
                self._connection.unregister(name)  # of an earlier query
                self._connection.register(_NO_ROWS, pa.RecordBatchReader.from_batches(stream.schema, []))
                self._connection.execute(f'CREATE TABLE "{name}" AS FROM {_NO_ROWS}')
                made.append(name)
            yield self._connection
        finally:
            self._connection.unregister(_NO_ROWS)
            self._connection.execute("RESET disabled_optimizers")
            for name in made:
                self._connection.execute(f'DROP TABLE "{name}"')


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


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the table, the columns and the filters of each scan in a plan."""
    info = node["extra_info"]
    if "Table" in info:
        name = info["Table"].rpartition(".")[2].strip('"')
        yield name, _texts(info.get("Projections", "")), _texts(info.get("Filters", ""))
    for child in node["children"]:
        yield from _scans(child)


def _texts(given: str | list[str]) -> list[str]:
    found = given.split("\n") if isinstance(given, str) else given
    return [text for text in found if text]


def _hints(text: str) -> Iterator[Condition]:
    """Yield the comparisons of one filter of a plan, if it is an AND of comparisons."""
    found = [_TERM.fullmatch(term) for term in text.split(" AND ")]
    for column, test, literal in [match.groups() for match in found if match] if all(found) else []:
        value = literal[1:-1].replace("''", "'") if literal.startswith("'") else int(literal)
        yield from hint_of(column, test, value)


class _Stream:
    """A table as DuckDB reads it: each column of bytes as text too, and unused columns null."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._hints: list[Condition] = []
        self._padding: dict[str, pa.Array] = {}
        self.failure: Exception | None = None
        of_bytes = [field for field in table.schema if field.type == pa.binary()]
        texts = [field.with_type(pa.string()) if field in of_bytes else field for field in table.schema]
        self.schema = pa.schema([*texts, *(field.with_name(field.name + _BYTES) for field in of_bytes)])
        self._used = set(self.schema.names)

    def limit(self, columns: set[str], hints: list[Condition]) -> None:
        """Read only these columns, and perhaps only rows with these conditions."""
        self._used = columns & set(self.schema.names)
        self._hints = hints if set(self._table.schema.names) >= {hint.column for hint in hints} else []

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        names = self._table.schema.names
        wanted = [name for name in names if name in self._used or name + _BYTES in self._used]
        cheapest = [name for name in ("offset", "ordinal", "position") if name in names] or names[:1]
        try:
            yield from self._table.narrowed(wanted or cheapest, self._hints, self._whole)
        except (SejError, OSError, ValueError) as error:
            self.failure = error
            raise

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with all columns: unused ones are null."""
        arrays = []
        for field in self.schema:
            name = field.name if field.name in batch.schema.names else field.name.removesuffix(_BYTES)
            if field.name not in self._used:
                arrays.append(self._nulls(field, batch.num_rows))
            elif field.type == pa.string() and batch.schema.field(name).type == pa.binary():
                arrays.append(_text(batch.column(name)))
            else:
                arrays.append(batch.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _nulls(self, field: pa.Field, count: int) -> pa.Array:
        known = self._padding.get(field.name)
        if known is None or len(known) < count:
            known = self._padding[field.name] = pa.nulls(max(count, _PADDING_ROWS), field.type)
        return known[:count]


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
