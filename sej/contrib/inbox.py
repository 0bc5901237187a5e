"""The inbox: a reader whose offset is stored in a database, in the transaction of its effects.

So an effect in this database happens exactly once for each message, however often the process is killed. The reader is
a :class:`sej.Consumer` of the same name, which delivers each message at least once. In each transaction the database's
offset decides which messages are new::

    consumer's offset     <= the database's, or the database lost commits: then the consumer goes back to it
    a message below it    was handled before, and is passed over
    a message from it on  its effect and the new offset are committed together

The journal is synced up to the new offset before the commit: otherwise a power failure could take messages whose effect
stays, and other messages would get their offsets and be passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from sej.checks import Seconds, handler_of, require
from sej.contrib.database import check_table, using
from sej.errors import JournalNotFoundError, OffsetBeyondEndError
from sej.journal.directory import Directory, journal_id
from sej.journal.tail import Tail, sync_up_to
from sej.message import FIRST, Message, Start
from sej.reading.consumer import Consumer
from sej.reading.offset import Offset
from sej.system.disk import OS

__all__ = ["Inbox"]

_TABLE: Final = "sej_inbox"


class Inbox:
    """Applies the messages of a journal to a database, exactly once.

    Attributes:
        name: the reader's name.

    Example:
        >>> import sqlite3, tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"3", b"4"])
        >>> db = sqlite3.connect(":memory:")
        >>> _ = db.execute("CREATE TABLE total (amount INTEGER)")
        >>> inbox = Inbox(db, path, "totals", timeout=0.0)
        >>> inbox.run(lambda db, message: db.execute("INSERT INTO total VALUES (?)", (int(message.value),)))
        2
        >>> db.execute("SELECT sum(amount) FROM total").fetchone()
        (7,)
        >>> db.close()
    """

    def __init__(
        self,
        connection: Any,
        path: str | os.PathLike[str],
        name: str,
        *,
        table: str = _TABLE,
        default: int | Start = FIRST,
        batch_messages: int = 100,
        max_attempts: int = 5,
        timeout: Seconds | None = None,
    ) -> None:
        """Set up a reader; nothing is opened before :meth:`run`.

        Args:
            connection: of :mod:`sqlite3` or psycopg 3, with no transaction under way. No other thread may use it
                during :meth:`run`.
            path: the SEJ directory.
            name: the reader's name; one process at a time may use it.
            table: the table of offsets, which is created if it is missing.
            default: where a reader starts that has no row there.
            batch_messages: the most messages of one transaction.
            max_attempts: how often a message is tried before :meth:`run` raises.
            timeout: seconds without a message after which :meth:`run` returns; None: only when stopped.

        Raises:
            TypeError: an argument has another type.
            ValueError: an argument is out of its range; InvalidNameError for the name and the table.
        """
        require(batch_messages=batch_messages)
        self._database = using(connection)
        self._table = check_table(table)
        self._consumer = Consumer(path, name, default=default, max_attempts=max_attempts, timeout=timeout)
        self._directory = Directory(path, OS)
        self._tail = Tail(self._directory)
        self._default = default
        self._batch_messages = batch_messages
        self.name = name

    def run(self, effect: Callable[[Any, Message], object]) -> int:
        """Apply messages until :meth:`stop`, or until none arrived for the timeout; return how many.

        Args:
            effect: called with the connection and a message, in a transaction. If it raises, the transaction is rolled
                back and tried again. It must not end the transaction.

        Raises:
            RetriesExhaustedError: a message failed max_attempts times; nothing of it was committed.
            OffsetTooSmallError: the message at the database's offset was deleted.
            OffsetBeyondEndError: the database's offset is past the journal's end.
            JournalNotFoundError: the journal does not exist, or is not the one whose offset the database has.
            SejError: as :meth:`sej.Consumer.run`.
        """
        require(effect=(effect, handler_of("connection", "message")))
        self._begin()
        return self._consumer.run_batches(
            lambda messages: self._apply(effect, messages), batch_messages=self._batch_messages
        )

    def stop(self) -> None:
        """Let :meth:`run` return after the current batch; called from any thread or signal handler."""
        self._consumer.stop()

    def _begin(self) -> None:
        """Create the row, or move the consumer to its offset."""
        database, table = self._database, self._table
        with Offset(self._directory.path, self.name, self._default) as kept:
            journal = (journal_id(self._directory) or b"").hex()
            with database.transaction():
                if not database.has(table):
                    database.execute(
                        f"CREATE TABLE IF NOT EXISTS {table} (reader TEXT PRIMARY KEY, journal TEXT NOT NULL,"
                        " next_offset BIGINT NOT NULL)"
                    )
                database.execute(
                    f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT DO NOTHING", self.name, journal, kept.value
                )
                ((known, due),) = database.execute(
                    f"SELECT journal, next_offset FROM {table} WHERE reader = ?", self.name
                )
            if known != journal:
                raise JournalNotFoundError(
                    f"the database has the offset of reader {self.name!r} in another journal, which had this path"
                    f" before: to apply this journal from its start, delete the reader's row from {table}",
                    path=self._directory.path,
                )
            end = self._tail.end_offset()
            if due > end:
                raise OffsetBeyondEndError(
                    f"the database has offset {due} for reader {self.name!r}, but the journal ends at {end}: it lost"
                    f" messages whose effects were committed; set next_offset in {table} to {end} to continue there",
                    path=self._directory.path,
                    offset=due,
                )
            if due != kept.value:
                kept.reset(due)

    def _apply(self, effect: Callable[[Any, Message], object], messages: list[Message]) -> None:
        """Commit the effects of the messages that are new, with the offset after them."""
        database, table, stop = self._database, self._table, messages[-1].offset + 1
        sync_up_to(self._directory, stop, self._tail)
        with database.transaction():
            select = f"SELECT next_offset FROM {table} WHERE reader = ?{database.for_update}"
            ((due,),) = database.execute(select, self.name)
            for message in messages:
                if message.offset >= due:
                    effect(database.connection, message)
                    database.require_transaction()
            if stop > due:
                database.execute(f"UPDATE {table} SET next_offset = ? WHERE reader = ?", stop, self.name)
