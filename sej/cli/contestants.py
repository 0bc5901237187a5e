"""What ``sej bench`` measures: this library's operations, bare system calls, and the peers that are installed.

Each contestant opens its files in an empty directory and gives two functions of a count: one that prepares so many
items, untimed, and one that handles so many, timed. What an acknowledged item survives is said as its library sets it
up by default, read from its source: SQLite in WAL mode syncs at every commit under ``synchronous=FULL``, its default,
and only at checkpoints under ``NORMAL``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

import sej
from sej.writing.writer import Durability

__all__ = ["CONTESTANTS", "Contestant", "Survives", "Work", "installed"]

Survives = Literal["clean close", "process death", "power loss"]
"""The worst that an item outlives once it is acknowledged."""
Work = tuple[Callable[[int], object], Callable[[int], object]]
"""Prepare so many items; handle so many."""

_BATCH: Final = 1000
_SURVIVES: Final[dict[Durability, Survives]] = {
    "buffer": "clean close",
    "os": "process death",
    "disk": "power loss",
}


class Contestant(NamedTuple):
    """One operation of one library.

    Attributes:
        operation: what is done to each item; those of one operation may be compared, where they survive the same.
        library: the import name; ``system`` for bare system calls.
        distribution: what it is installed as.
        call: what is called, for people.
        survives: see :data:`Survives`; of an operation that reads: None.
        begin: opens it in an empty directory, for items of this value.
    """

    operation: str
    library: str
    distribution: str
    call: str
    survives: Survives | None
    begin: Callable[[Path, bytes], AbstractContextManager[Work]]

    @property
    def version(self) -> str | None:
        """The library's version; None for system calls, and where nobody knows."""
        try:
            return version(self.distribution)
        except (PackageNotFoundError, ValueError):
            return None


def installed(contestant: Contestant) -> bool:
    """Whether it can take part."""
    return contestant.library == "system" or find_spec(contestant.library) is not None


def _nothing(count: int) -> None:
    """What has nothing to prepare."""


def _appending(durability: Durability) -> Callable[[Path, bytes], AbstractContextManager[Work]]:
    @contextmanager
    def begin(path: Path, value: bytes) -> Iterator[Work]:
        with sej.Writer(path / "j", durability=durability) as writer:
            yield _nothing, lambda count: _each(count, lambda: writer.append(value))

    return begin


def _batches(durability: Durability) -> Callable[[Path, bytes], AbstractContextManager[Work]]:
    @contextmanager
    def begin(path: Path, value: bytes) -> Iterator[Work]:
        with sej.Writer(path / "j", durability=durability) as writer:

            def work(count: int) -> None:
                for done in range(0, count, _BATCH):
                    writer.append_many([value] * min(_BATCH, count - done))

            yield _nothing, work

    return begin


@contextmanager
def _scanning(path: Path, value: bytes) -> Iterator[Work]:
    with sej.Writer(path / "j", durability="buffer") as writer, sej.Scanner(path / "j", 0) as scanner:

        def prepare(count: int) -> None:
            writer.append_many([value] * count)
            writer.flush()

        yield prepare, lambda count: sum(1 for _ in islice(scanner, count))


@contextmanager
def _putting(path: Path, value: bytes) -> Iterator[Work]:
    with sej.open_queue(path / "q") as queue:
        yield _nothing, lambda count: _each(count, lambda: queue.put(value))


@contextmanager
def _taking(path: Path, value: bytes) -> Iterator[Work]:
    with sej.open_queue(path / "q") as queue:

        def take() -> None:
            item = queue.get(timeout=0)
            assert item is not None
            item.done()

        yield lambda count: queue.put_many([value] * count), lambda count: _each(count, take)


def _writing(*, sync: bool) -> Callable[[Path, bytes], AbstractContextManager[Work]]:
    @contextmanager
    def begin(path: Path, value: bytes) -> Iterator[Work]:
        fd = os.open(path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write() -> None:
            os.write(fd, value)
            if sync:
                os.fdatasync(fd)

        try:
            yield _nothing, lambda count: _each(count, write)
        finally:
            os.close(fd)

    return begin


@contextmanager
def _queuelib(path: Path, value: bytes) -> Iterator[Work]:
    import queuelib

    with closing(queuelib.FifoDiskQueue(str(path / "q"))) as queue:
        yield _nothing, lambda count: _each(count, lambda: queue.push(value))


@contextmanager
def _queuelib_taking(path: Path, value: bytes) -> Iterator[Work]:
    import queuelib

    with closing(queuelib.FifoDiskQueue(str(path / "q"))) as queue:
        yield lambda count: _each(count, lambda: queue.push(value)), lambda count: _each(count, queue.pop)


@contextmanager
def _litequeue(path: Path, value: bytes) -> Iterator[Work]:
    from litequeue import LiteQueue

    queue, text = LiteQueue(str(path / "queue.db")), value.decode()
    with closing(queue if hasattr(queue, "close") else queue.conn):
        yield _nothing, lambda count: _each(count, lambda: queue.put(text))


@contextmanager
def _litequeue_taking(path: Path, value: bytes) -> Iterator[Work]:
    from litequeue import LiteQueue

    queue, text = LiteQueue(str(path / "queue.db")), value.decode()

    def prepare(count: int) -> None:
        with queue.transaction():
            _each(count, lambda: queue.put(text))

    def end() -> None:
        message = queue.pop()
        claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}  # from 0.10 on
        queue.done(message.message_id, **claim)

    with closing(queue if hasattr(queue, "close") else queue.conn):
        yield prepare, lambda count: _each(count, end)


@contextmanager
def _persist_file(path: Path, value: bytes) -> Iterator[Work]:
    from persistqueue import Queue

    queue = Queue(str(path / "q"), tempdir=str(path))
    with closing(queue.headf), closing(queue.tailf):  # it has no close of its own
        yield _nothing, lambda count: _each(count, lambda: queue.put(value))


@contextmanager
def _persist_sqlite(path: Path, value: bytes) -> Iterator[Work]:
    from persistqueue import SQLiteAckQueue

    with closing(SQLiteAckQueue(str(path / "q"), auto_commit=True)) as queue:
        yield _nothing, lambda count: _each(count, lambda: queue.put(value))


@contextmanager
def _persist_sqlite_taking(path: Path, value: bytes) -> Iterator[Work]:
    from persistqueue import SQLiteAckQueue

    with closing(SQLiteAckQueue(str(path / "q"), auto_commit=True)) as queue:

        def prepare(count: int) -> None:
            _each(count, lambda: queue.put(value))

        yield prepare, lambda count: _each(count, lambda: queue.ack(queue.get(block=False)))


@contextmanager
def _huey(path: Path, value: bytes) -> Iterator[Work]:
    from huey.storage import SqliteStorage

    with closing(SqliteStorage(filename=str(path / "huey.db"))) as queue:
        yield _nothing, lambda count: _each(count, lambda: queue.enqueue(value))


@contextmanager
def _huey_taking(path: Path, value: bytes) -> Iterator[Work]:
    from huey.storage import SqliteStorage

    with closing(SqliteStorage(filename=str(path / "huey.db"))) as queue:
        yield lambda count: _each(count, lambda: queue.enqueue(value)), lambda count: _each(count, queue.dequeue)


@contextmanager
def _diskcache(path: Path, value: bytes) -> Iterator[Work]:
    from diskcache import Deque

    queue = Deque(directory=str(path / "q"))
    with queue.cache:
        yield _nothing, lambda count: _each(count, lambda: queue.append(value))


@contextmanager
def _diskcache_taking(path: Path, value: bytes) -> Iterator[Work]:
    from diskcache import Deque

    queue = Deque(directory=str(path / "q"))
    with queue.cache:

        def prepare(count: int) -> None:
            with queue.transact():
                queue.extend([value] * count)

        yield prepare, lambda count: _each(count, queue.popleft)


def _each(count: int, call: Callable[[], object]) -> None:
    for _ in range(count):
        call()


def _ours(operation: str, call: str, durability: Durability | None, begin: _Begin) -> Contestant:
    survives = None if durability is None else _SURVIVES[durability]
    words = call if durability is None else f"{call}, durability={durability!r}"
    return Contestant(operation, "sej", "sej-journals", words, survives, begin)


_Begin = Callable[[Path, bytes], AbstractContextManager[Work]]
_PUT: Final = "put, one by one"
_GET: Final = "get and confirm, one by one"

CONTESTANTS: Final = (
    Contestant(_PUT, "system", "", "os.write", "process death", _writing(sync=False)),
    Contestant(_PUT, "system", "", "os.write + os.fdatasync", "power loss", _writing(sync=True)),
    _ours(_PUT, "Writer.append", "buffer", _appending("buffer")),
    _ours(_PUT, "Writer.append", "os", _appending("os")),
    _ours(_PUT, "Writer.append", "disk", _appending("disk")),
    _ours(_PUT, "open_queue().put", "os", _putting),
    Contestant(_PUT, "queuelib", "queuelib", "FifoDiskQueue.push", "clean close", _queuelib),
    Contestant(_PUT, "litequeue", "litequeue", "LiteQueue.put", "process death", _litequeue),
    Contestant(_PUT, "persistqueue", "persist-queue", "Queue.put", "process death", _persist_file),
    Contestant(_PUT, "persistqueue", "persist-queue", "SQLiteAckQueue.put", "power loss", _persist_sqlite),
    Contestant(_PUT, "huey", "huey", "SqliteStorage.enqueue", "power loss", _huey),
    Contestant(_PUT, "diskcache", "diskcache", "Deque.append", "process death", _diskcache),
    _ours("put, batches of 1,000", "Writer.append_many", "os", _batches("os")),
    _ours("put, batches of 1,000", "Writer.append_many", "disk", _batches("disk")),
    _ours(_GET, "open_queue().get, Item.done", "os", _taking),
    Contestant(_GET, "queuelib", "queuelib", "FifoDiskQueue.pop (no confirmation)", "clean close", _queuelib_taking),
    Contestant(_GET, "litequeue", "litequeue", "LiteQueue.pop, done", "process death", _litequeue_taking),
    Contestant(_GET, "persistqueue", "persist-queue", "SQLiteAckQueue.get, ack", "power loss", _persist_sqlite_taking),
    Contestant(_GET, "huey", "huey", "SqliteStorage.dequeue (no confirmation)", "power loss", _huey_taking),
    Contestant(_GET, "diskcache", "diskcache", "Deque.popleft (no confirmation)", "process death", _diskcache_taking),
    _ours("read in order", "Scanner", None, _scanning),
)
"""All of them; see :func:`installed`."""
