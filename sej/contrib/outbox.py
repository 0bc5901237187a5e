"""The outbox: a program writes messages in the transaction of its own database, and a relay moves them to a journal.

A row is moved if and only if the transaction that wrote it was committed, and exactly once. The journal may be that of
a work queue: each row is an item then. A batch of rows takes these steps, each durable before the next:

1. In one transaction, the rows get the number of the next batch. It is one above the journal's last batch of this
   relay.
2. ``append_once`` appends them under this number.
3. The rows are deleted.

=============  ======================  =============================================================
killed         what is found           what the next run does
=============  ======================  =============================================================
before 1       rows without a number   begins with 1
before 2       rows with a number      appends them
within 2       as above, or appended   append_once appends what is missing, or nothing
before 3       as above                append_once appends nothing; the rows are deleted
=============  ======================  =============================================================

The relay has the journal's writer lock from 1 to 3, so two relays of one table take turns.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from typing import Any, Final

from sej.checks import Seconds, backoff, instance_of, optional, require, seconds
from sej.codec.arguments import as_bytes, check_message
from sej.contrib.database import Postgres, Sqlite, check_table, connect, failure_of, using
from sej.errors import LockedError
from sej.message import BytesLike
from sej.system.disk import absolute_path
from sej.system.logs import WARNING, record
from sej.writing.writer import Writer, check_options

__all__ = ["Outbox", "Relay"]

_TABLE: Final = "sej_outbox"
_BATCH_ROWS: Final = 1000
_SLICE_S: Final = 0.5
"""So often a relay that waits looks whether it was stopped."""
_LOOK_S: Final = 5.0
"""So often it looks for rows without having been notified."""
_BACKOFF_S: Final = (0.1, 10.0)


class Outbox:
    """The table of messages that wait to be moved.

    Attributes:
        table: its name.

    Example:
        >>> import os, sqlite3, tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> outbox = Outbox()
        >>> db = sqlite3.connect(os.path.join(path, "shop.db"))
        >>> with db:
        ...     outbox.create(db)
        ...     outbox.put(db, b"order 17", b"alice")  # in the transaction that stores the order
        >>> Relay(os.path.join(path, "shop.db"), os.path.join(path, "orders")).run_once()
        1
        >>> sej.Journal(os.path.join(path, "orders")).tail(1)[0].value
        b'order 17'
        >>> db.close()
    """

    def __init__(self, table: str = _TABLE) -> None:
        """Name the table; nothing is opened.

        Raises:
            InvalidNameError: it is not at most 40 lower-case letters, digits and ``_``.
        """
        self.table = check_table(table)

    def create(self, connection: Any) -> None:
        """Create the table if it is missing, in the transaction of a connection.

        Args:
            connection: of :mod:`sqlite3` or psycopg 3.
        """
        database, table = using(connection), self.table
        if database.has(f"{table}_name"):
            return  # creating what exists would wait for transactions that use it
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id {database.row}, key {database.binary} NOT NULL,"
            f" value {database.binary} NOT NULL, type INTEGER NOT NULL, batch BIGINT)"
        )
        database.execute(f"CREATE INDEX IF NOT EXISTS {table}_batch ON {table} (batch) WHERE batch IS NOT NULL")
        database.execute(f"CREATE TABLE IF NOT EXISTS {table}_name (one INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        # Two databases that are moved to one journal number their batches under different names.
        name = os.urandom(8).hex()
        database.execute(f"INSERT INTO {table}_name (one, name) VALUES (1, ?) ON CONFLICT DO NOTHING", name)
        database.notify(table)

    def put(self, connection: Any, value: BytesLike, key: BytesLike = b"", type: int = 0) -> None:
        """Write a message in the transaction of a connection. It is moved after the transaction was committed.

        Args:
            connection: of :mod:`sqlite3` or psycopg 3; committing is the caller's.
            value: the payload, as bytes.
            key: up to 127 bytes.
            type: 0 to 255.

        Raises:
            InvalidMessageError: a journal cannot hold the message.
            TypeError: an argument has another type.
        """
        value, key = as_bytes(value, "value"), as_bytes(key, "key")
        check_message(key, value, type, 0)
        using(connection).execute(f"INSERT INTO {self.table} (key, value, type) VALUES (?, ?, ?)", key, value, type)


class Relay:
    """Moves the rows of an outbox to a journal, exactly once.

    Rows of one transaction are moved in their order. With SQLite all rows are moved in the order of the transactions;
    with PostgreSQL, transactions that overlap may be moved in another order than they were committed. The rows of one
    table are moved to one journal: use a table for each journal.

    Attributes:
        path: the journal.
    """

    def __init__(
        self,
        database: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        table: str = _TABLE,
        batch_rows: int = _BATCH_ROWS,
        lock_timeout: Seconds | None = 10.0,
        **options: Any,
    ) -> None:
        """Set up a relay; nothing is opened.

        Args:
            database: the path of a database of SQLite, or the ``postgresql://`` URL of one of PostgreSQL.
            path: the SEJ directory, which is created if it is missing.
            table: the outbox.
            batch_rows: the most rows of one batch.
            lock_timeout: seconds to wait while another writer has the journal; None waits without a limit.
            options: of :class:`sej.Writer`, such as ``segment_bytes`` and ``retention``.

        Raises:
            TypeError: an argument has another type.
            ValueError: an argument is out of its range; InvalidNameError for the table.
        """
        require(database=database, path=path, batch_rows=batch_rows)
        options["lock_timeout"] = seconds("lock_timeout", lock_timeout)
        check_options(**options)
        self.path = absolute_path(path)
        self._database = os.fspath(database)
        self._outbox = Outbox(table)
        self._batch_rows = batch_rows
        self._options = options

    def run_once(self) -> int:
        """Move all rows that are committed, and return how many.

        Raises:
            LockedError: another writer has the journal.
            SejError: as :class:`sej.Writer`; the rows stay.
        """
        with closing(self._open()) as database:
            return self._move(database)

    def run(self, *, stop: threading.Event | None = None) -> None:
        """Move rows when they are committed, until a stop is requested.

        If the database cannot be reached, or another writer has the journal, the logger of this module warns, and the
        relay tries again after a while.

        Args:
            stop: an event that ends it within half a second; None: it runs until it raises.

        Raises:
            SejError: the journal failed, or has another batch under the number of these rows.
            ImportError: psycopg is missing.
        """
        require(stop=(stop, optional(instance_of(threading.Event))))
        stop = stop or threading.Event()
        failures = 0
        transient = (LockedError, failure_of(self._database))
        while not stop.is_set():
            try:
                with closing(self._open()) as database:
                    look_at, woken = 0.0, False
                    while not stop.is_set():
                        if woken or time.monotonic() >= look_at:
                            self._move(database)
                            failures, look_at = 0, time.monotonic() + _LOOK_S
                        woken = database.wait(self._outbox.table, _SLICE_S)
            except transient as error:
                failures += 1
                text = "%s: rows of table %s wait, because its database or the journal cannot be used: %s"
                record(__name__, WARNING, text, self.path, self._outbox.table, error)
                stop.wait(backoff(failures, *_BACKOFF_S))

    def _open(self) -> Sqlite | Postgres:
        database = connect(self._database)
        try:
            if not database.has(f"{self._outbox.table}_name"):
                with database.transaction():
                    self._outbox.create(database.connection)
        except BaseException:
            database.close()
            raise
        return database

    def _move(self, database: Sqlite | Postgres) -> int:
        """Move all rows that are committed."""
        table, moved = self._outbox.table, 0
        if not database.execute(f"SELECT 1 FROM {table} LIMIT 1"):
            return 0
        name = f"{table}-{database.execute(f'SELECT name FROM {table}_name')[0][0]}"
        with Writer(self.path, **self._options) as writer:
            while rows := self._number(database, writer, name):
                numbers, keys, values, types = zip(*rows, strict=True)
                writer.append_once(name, numbers[0], values, keys, types)
                database.execute(f"DELETE FROM {table} WHERE batch = ?", numbers[0])
                moved += len(rows)
        return moved

    def _number(self, database: Sqlite | Postgres, writer: Writer, name: str) -> list[Any]:
        """Return the batch that was begun, or begin the next one."""
        table = self._outbox.table
        select = f"SELECT batch, key, value, type FROM {table} WHERE batch IS NOT NULL ORDER BY id"
        with database.transaction():
            if not (rows := database.execute(select)):
                next_rows = f"SELECT id FROM {table} ORDER BY id LIMIT {self._batch_rows}"
                number = (writer.end.last_batch(name) or 0) + 1
                database.execute(f"UPDATE {table} SET batch = ? WHERE id IN ({next_rows})", number)
                rows = database.execute(select)
        return rows
