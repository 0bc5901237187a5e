"""The queues that the section measures, each with the few verbs that are timed.

Equal durability: "os" for the journal's queue (a confirmed operation survives SIGKILL). SQLite in WAL mode with
synchronous NORMAL, as litequeue sets it, survives as much; those that leave it at FULL are set to it. persist-queue's
file Queue syncs when it saves its place, at each task_done, and cannot do without; a batch of it is many gets and one
task_done. A verb that a peer does not have is None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sej

VALUE = b"v" * 100
BATCH = 100


class Peer(ABC):
    """One open queue."""

    processes = True
    """Whether several processes may work at it."""
    put_many: Callable[[int], object] | None = None
    """Put so many with one write."""
    end_many: Callable[[int], object] | None = None
    """Take so many and end them, with as few writes as there can be."""

    @abstractmethod
    def put(self) -> object:
        """Put one."""

    @abstractmethod
    def end(self) -> object:
        """Take one and end it."""

    @abstractmethod
    def ready(self) -> int:
        """How many wait."""

    @abstractmethod
    def close(self) -> None:
        """Close."""

    def fill(self, count: int) -> None:
        """Put so many as fast as it can."""
        if self.put_many is not None:
            self.put_many(count)
        else:
            for _ in range(count):
                self.put()


class Sej(Peer):
    """The journal's queue."""

    def __init__(self, path: Path) -> None:
        self._queue = sej.open_queue(path)
        self.put_many = lambda count: self._queue.put_many([VALUE] * count)
        self.end_many = lambda count: self._queue.done_many(self._queue.get_many(count, timeout=0))

    def put(self) -> object:
        return self._queue.put(VALUE)

    def end(self) -> object:
        item = self._queue.get(timeout=0)
        assert item is not None
        return item.done()

    def ready(self) -> int:
        return self._queue.stats().ready

    def close(self) -> None:
        self._queue.close()


class Litequeue(Peer):
    """pop + done; a batch of puts is a transaction, a pop has one of its own."""

    def __init__(self, path: Path) -> None:
        from litequeue import LiteQueue

        self._queue: Any = LiteQueue(str(path / "queue.db"), timeout=60)
        self.put_many = self._put_many

    def put(self) -> object:
        return self._queue.put(VALUE.decode())

    def end(self) -> object:
        message = self._queue.pop()
        if hasattr(message, "claim_id"):  # from 0.10 on
            return self._queue.done(message.message_id, claim_id=message.claim_id)
        return self._queue.done(message.message_id)

    def ready(self) -> int:
        return int(self._queue.qsize())

    def close(self) -> None:
        getattr(self._queue, "close", self._queue.conn.close)()

    def _put_many(self, count: int) -> None:
        with self._queue.transaction():
            for _ in range(count):
                self.put()


class PersistSqlite(Peer):
    """SQLiteAckQueue: get + ack. It keeps the items in progress in the process, so one process uses it."""

    processes = False

    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue: Any = SQLiteAckQueue(str(path), auto_commit=True)
        self._queue._conn.execute("PRAGMA synchronous = NORMAL")

    def put(self) -> object:
        return self._queue.put(VALUE)

    def end(self) -> object:
        return self._queue.ack(self._queue.get(block=False))

    def ready(self) -> int:
        return int(self._queue.qsize())

    def close(self) -> None:
        self._queue.close()


class PersistFile(Peer):
    """Queue: get + task_done. For the threads of one process."""

    processes = False

    def __init__(self, path: Path) -> None:
        from persistqueue import Queue

        self._queue: Any = Queue(str(path))
        self.end_many = self._end_many

    def put(self) -> object:
        return self._queue.put(VALUE)

    def end(self) -> object:
        self._queue.get(block=False)
        return self._queue.task_done()

    def ready(self) -> int:
        return int(self._queue.qsize())

    def close(self) -> None:
        """It has nothing to close."""

    def _end_many(self, count: int) -> None:
        for _ in range(count):
            self._queue.get(block=False)
        self._queue.task_done()


class Huey(Peer):
    """SqliteStorage: dequeue removes the item, there is no acknowledgement: a process that dies loses it."""

    def __init__(self, path: Path) -> None:
        from huey.storage import SqliteStorage

        self._queue: Any = SqliteStorage(filename=str(path / "huey.db"), timeout=60)
        self._queue.conn.execute("PRAGMA synchronous = NORMAL")

    def put(self) -> object:
        return self._queue.enqueue(VALUE)

    def end(self) -> object:
        found = self._queue.dequeue()
        assert found is not None
        return found

    def ready(self) -> int:
        return int(self._queue.queue_size())

    def close(self) -> None:
        self._queue.close()


PEERS: dict[str, Callable[[Path], Peer]] = {
    "litequeue": Litequeue,
    "persist-queue SQLiteAckQueue": PersistSqlite,
    "persist-queue Queue": PersistFile,
    "huey SqliteStorage (no ack)": Huey,
    "sej": Sej,
}
