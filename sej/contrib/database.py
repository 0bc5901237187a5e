"""The two databases of the outbox and the inbox: SQLite, and PostgreSQL through psycopg 3. What differs between them.

A transaction here is one of the database's own. It is committed when its block ends, and rolled back if that raises.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Self
from urllib.parse import quote

from sej.errors import InvalidNameError, SejError
from sej.journal.directory import check_name
from sej.system.watch import Watch

_URLS: Final = ("postgresql://", "postgres://")
_BUSY_S: Final = 30.0
_PAUSE_S: Final = 0.001


class Sqlite:
    """A connection of the standard library's :mod:`sqlite3`.

    Attributes:
        connection: the connection.
        row: the column of a table for the number of its rows.
        binary: the type of a column for bytes.
        for_update: the end of a SELECT whose rows stay as they are until the transaction ends.
    """

    row: Final = "INTEGER PRIMARY KEY AUTOINCREMENT"
    binary: Final = "BLOB"
    for_update: Final = ""  # a transaction here excludes every other one that writes

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Use a connection, which stays the caller's."""
        self.connection = connection
        self._watch: Watch | None = None
        self._pause_s = _PAUSE_S

    @classmethod
    def connect(cls, path: str) -> Self:
        """Open a database that exists. A commit is on the disk when it returns."""
        try:
            connection = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise sqlite3.OperationalError(f"{path}: {error}") from None
        connection.execute("PRAGMA synchronous = FULL")  # with NORMAL, a power failure takes commits of a WAL back
        return cls(connection)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement with ``?`` for each value, and return its rows."""
        return self.connection.execute(statement, values).fetchall()

    def has(self, table: str) -> bool:
        """Return whether a table exists."""
        return bool(self.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", table))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction that may write, and end it with the block."""
        if not self.connection.in_transaction:
            self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.commit()
        except BaseException:
            self.connection.rollback()
            raise

    def require_transaction(self) -> None:
        """Check that code of the caller has not ended the transaction.

        Raises:
            SejError: it has.
        """
        if not self.connection.in_transaction:
            raise SejError("the transaction was ended inside its block: call neither commit nor rollback there")

    def notify(self, table: str) -> None:
        """Do nothing: a commit changes the files of the database, which :meth:`wait` sees."""

    def wait(self, table: str, timeout_s: float) -> bool:
        """Wait for a commit of another connection; return whether there may have been one since the last call."""
        if self._watch is None:
            file = self.execute("PRAGMA database_list")[0][2]
            self._watch = Watch(os.path.dirname(file))
            return True
        # A commit writes the WAL, syncs it, and only then becomes visible: look again in pauses that grow.
        pause_s = self._pause_s
        if self._watch.wait(min(pause_s, timeout_s)):
            self._pause_s = _PAUSE_S
            return True
        self._pause_s = pause_s * 2
        return pause_s < timeout_s

    def close(self) -> None:
        """Close the connection."""
        if self._watch is not None:
            self._watch.close()
        self.connection.close()


class Postgres:
    """A connection of psycopg 3. Attributes as for :class:`Sqlite`."""

    row: Final = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    binary: Final = "BYTEA"
    for_update: Final = " FOR UPDATE"

    def __init__(self, connection: Any) -> None:
        """Use a connection, which stays the caller's."""
        self.connection = connection
        self._listens = False

    @classmethod
    def connect(cls, url: str) -> Self:
        """Open a connection. A commit is on the disk when it returns."""
        found = cls(_psycopg().connect(url, autocommit=True))
        found.execute("SET synchronous_commit = on")
        return found

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement with ``?`` for each value, and return its rows."""
        cursor = self.connection.cursor(row_factory=import_module("psycopg.rows").tuple_row)
        cursor.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description else []

    def has(self, table: str) -> bool:
        """Return whether a table exists."""
        return self.execute("SELECT to_regclass(?)", table) != [(None,)]

    def transaction(self) -> Any:
        """Begin a transaction, and end it with the block.

        Raises:
            SejError: one is under way, so the block's end would commit nothing.
        """
        if self.connection.info.transaction_status:
            raise SejError("a transaction of this connection is under way: commit it first, or use another connection")
        return self.connection.transaction()

    def require_transaction(self) -> None:
        """Do nothing: psycopg refuses a commit inside the block."""

    def notify(self, table: str) -> None:
        """Let each transaction that inserts rows notify :meth:`wait` when it commits."""
        self.execute(
            f"CREATE OR REPLACE FUNCTION {table}_notify() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_notify('{table}', ''); RETURN NULL; END $$"
        )
        self.execute(
            f"CREATE OR REPLACE TRIGGER {table}_notify AFTER INSERT ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {table}_notify()"
        )

    def wait(self, table: str, timeout_s: float) -> bool:
        """Wait for a commit of another connection; return whether there may have been one since the last call."""
        if not self._listens:
            self.execute(f"LISTEN {table}")
            self._listens = True
            return True
        return any(True for _ in self.connection.notifies(timeout=timeout_s, stop_after=1))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ModuleNotFoundError as error:
        raise ImportError("PostgreSQL needs psycopg: pip install 'sej-journals[postgres]'", name="psycopg") from error


def connect(database: str | os.PathLike[str]) -> Sqlite | Postgres:
    """Open a database: the path of one of SQLite, which must exist, or a ``postgresql://`` URL.

    Raises:
        ImportError: psycopg is missing.
    """
    text = os.fspath(database)
    return Postgres.connect(text) if text.startswith(_URLS) else Sqlite.connect(text)


def failure_of(database: str) -> type[Exception]:
    """Return the error of a database after which another connection may succeed."""
    library: Any = _psycopg() if database.startswith(_URLS) else sqlite3
    found: type[Exception] = library.OperationalError
    return found


def using(connection: Any) -> Sqlite | Postgres:
    """Use a connection of the caller.

    Raises:
        TypeError: it is not one of sqlite3 or psycopg 3.
    """
    if isinstance(connection, sqlite3.Connection):
        return Sqlite(connection)
    if not hasattr(connection, "pgconn"):
        raise TypeError(f"connection must be one of sqlite3 or psycopg 3, got {type(connection).__name__}")
    return Postgres(connection)


def check_table(table: str) -> str:
    """Check the name of a table, which becomes a part of statements.

    Raises:
        InvalidNameError: it is not a plain SQL name.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", check_name(table, "table")):
        raise InvalidNameError(f"table must be at most 40 lower-case letters, digits and '_', got {table!r}")
    return table
