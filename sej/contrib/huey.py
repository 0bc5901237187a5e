"""huey on work queues: tasks and schedule are journals, and results, locks and counters are huey's own SQLite file.

A task belongs to the worker that took it until it has run. If the worker is killed, another one runs it again: other
storages of huey have removed it by then. What huey reads from the schedule stays there until it is in the queue.

=========================  ===================================================================================
killed                     what happens
=========================  ===================================================================================
before a task has run      its lease ends with the process, and another worker runs it
after, before it is done   the same: at least once
within the schedule        tasks that were read are read again; one may then be in the queue twice
=========================  ===================================================================================
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final

from huey import signals
from huey.api import Huey
from huey.storage import BaseStorage, SqliteStorage

from sej.checks import require
from sej.contrib.opened import PerProcess, queues_in
from sej.journal.directory import check_name
from sej.queue.interface.queue import Item
from sej.system.disk import absolute_path

__all__ = ["SejHuey", "SejStorage"]

_WAIT_S: Final = 0.5
"""So long a worker waits for a task before it looks whether it was stopped."""
_MOST: Final = 1000


def _kept(name: str) -> Any:
    """Return a method of results, locks or counters, which huey's own storage has."""

    def call(self: SejStorage, *args: Any, **more: Any) -> Any:
        return getattr(self._kept["huey.db"], name)(*args, **more)

    return call


class SejStorage(BaseStorage):
    """A storage of huey in a directory: ``NAME/`` and ``NAME-schedule/`` are journals, ``huey.db`` is a database."""

    blocking = True
    priority = True

    def __init__(self, name: str = "huey", directory: str = "huey", *, utc: bool = True, **options: Any) -> None:
        """Name the directory; journals are created at their first use.

        Args:
            name: the queue's name.
            directory: where everything is, on a disk of this machine.
            utc: whether times without a zone are UTC, as the option of :class:`huey.Huey`.
            options: of :func:`sej.open_queue`, such as ``durability`` and ``max_attempts``.
        """
        require(name=name, utc=utc)
        super().__init__(check_name(name, "a queue's name"))
        root = absolute_path(directory)
        self._queues = queues_in(root, **options)
        self._schedule = f"{name}-schedule"
        self._utc = utc
        self._mine = threading.local()
        self._moved: dict[tuple[int, int], list[Item]] = {}

        def database(file: str) -> SqliteStorage:
            os.makedirs(root, exist_ok=True)
            return SqliteStorage(name, os.path.join(root, file), timeout=30)

        self._kept = PerProcess(database)

    def close(self) -> None:
        """Return the tasks that this process holds, and close all files."""
        self._moved, self._mine = {}, threading.local()
        self._queues.close()
        self._kept.close()

    # --- the queue

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Put a task. A queue has seven priorities: up to 0, 1, 2 to 3, 4 to 5, 6 to 7, 8 to 9, and from 10 on."""
        level = min(max(int(priority or 0), 0), 10)
        self._queues[self.name].put(data, priority=level - 3 if level < 2 else level // 2 - 2)

    def dequeue(self) -> bytes | None:
        """Take a task. What this thread took before is done, unless :class:`SejHuey` has ended it."""
        self.finish()
        item = self._queues[self.name].get(_WAIT_S)
        self._mine.item = item
        return None if item is None else item.value

    def finish(self, *, ran: bool = True) -> None:
        """End the task that this thread took last: it has run, or should run again."""
        if (item := self._taken()) is not None:
            item.done() if ran else item.give_back()

    def fail(self, error: Exception) -> None:
        """Make the task that this thread took last a dead letter: huey cannot read it."""
        if (item := self._taken()) is not None:
            item.fail(error)

    def _taken(self) -> Item | None:
        item, self._mine.item = getattr(self._mine, "item", None), None
        return item

    def queue_size(self) -> int:
        """Return how many tasks wait."""
        return len(self._queues[self.name])

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Return tasks that wait, the next one first."""
        queue = self._queues[self.name]
        return [item.value for item in queue.peek(limit or max(len(queue), 1))]

    def flush_queue(self) -> None:
        """Remove the tasks that wait."""
        self._queues[self.name].purge()

    # --- the schedule

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        """Put a task that is read from its time on."""
        at = self._seconds(ts)
        self._queues[self._schedule].put(data, b"%.6f" % at, delay_s=max(at - time.time(), 0.0))

    def read_schedule(self, ts: datetime) -> list[bytes]:
        """Return the tasks whose time has come, the earliest first. They are removed at this thread's next call."""
        schedule, me = self._queues[self._schedule], (os.getpid(), threading.get_ident())
        schedule.done_many(self._moved.pop(me, []))
        now = self._seconds(ts)
        found = sorted(schedule.get_many(_MOST, timeout=0), key=lambda item: float(item.key))
        self._moved[me] = [item for item in found if float(item.key) <= now]
        for item in found[len(self._moved[me]) :]:
            item.give_back()
        return [item.value for item in self._moved[me]]

    def schedule_size(self) -> int:
        """Return how many tasks are in the schedule."""
        return len(self._queues[self._schedule])

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Return tasks of the schedule, the earliest first."""
        found = sorted(self._queues[self._schedule].items("waiting"), key=lambda item: float(item.key))
        return [item.value for item in found[:limit]]

    def flush_schedule(self) -> None:
        """Remove the tasks of the schedule."""
        self._queues[self._schedule].purge()

    def _seconds(self, ts: datetime) -> float:
        return (ts.replace(tzinfo=UTC) if self._utc and ts.tzinfo is None else ts).timestamp()


for _name in (
    *("put_data", "peek_data", "peek_many", "pop_data", "delete_data", "has_data_for_key", "put_if_empty"),
    *("incr", "delete_counter", "flush_counters", "result_store_size", "result_items", "flush_results"),
):
    setattr(SejStorage, _name, _kept(_name))


class SejHuey(Huey):
    """huey with a :class:`SejStorage`, which ends each task when it has run.

    A task that was interrupted by the end of the consumer runs again. One that huey cannot read becomes a dead letter.

    Example:
        >>> import tempfile
        >>> huey = SejHuey("mail", directory=tempfile.mkdtemp())
        >>> @huey.task()
        ... def add(a, b):
        ...     return a + b
        >>> result = add(1, 2)
        >>> huey.execute(huey.dequeue())
        3
        >>> result()
        3
        >>> huey.storage.close()
    """

    storage_class = SejStorage

    def __init__(self, *args: Any, **options: Any) -> None:
        """Create it. Arguments are those of :class:`huey.Huey` and of :class:`SejStorage`."""
        super().__init__(*args, **options)
        self._interrupted: set[str] = set()
        self.signal(signals.SIGNAL_INTERRUPTED)(lambda _, task: self._interrupted.add(task.id))

    def get_storage(self, **options: Any) -> Any:
        """Create the storage."""
        return super().get_storage(utc=self.utc, **options)

    def dequeue(self) -> Any:
        """Take a task."""
        try:
            return super().dequeue()
        except Exception as error:
            if isinstance(self.storage, SejStorage):
                self.storage.fail(error)
            raise

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        """Run a task, and end it."""
        ran = False
        try:
            value = super().execute(task, timestamp)
            ran = task.id not in self._interrupted
            self._interrupted.discard(task.id)
            return value
        finally:
            if isinstance(self.storage, SejStorage):
                self.storage.finish(ran=ran)
