"""A transport of kombu, and so of Celery: ``sej://DIRECTORY``. Each queue is a journal, and each message is an item.

Import this module where the application is made, and the URL is known. A message stays leased to its worker until it is
acknowledged or the process dies. Celery acknowledges a task before it runs, unless ``task_acks_late`` is set. Without
it, the task of a killed worker is lost, with every broker.

::

    DIRECTORY/queues/NAME      a work queue
    DIRECTORY/temporary/NAME   one that belongs to a process, such as for replies; removed when no process has it open
    DIRECTORY/bindings         a journal: which queue is bound to which exchange; the newest message about it counts
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty
from typing import Any, Final
from urllib.parse import quote, unquote

from kombu.transport import TRANSPORT_ALIASES, virtual

import sej
from sej.contrib.opened import PREFETCHED, READER, PerProcess, open_at
from sej.errors import ClosedError, LeaseLostError, LockedError
from sej.queue.interface.queue import Item, WorkQueue
from sej.system.disk import absolute_path
from sej.system.locks import Lock
from sej.system.watch import Watch, wait_any

__all__ = ["Channel", "Transport"]

_SCHEME: Final = "sej://"
_LOOK_S: Final = 0.5
"""So often a consumer looks for messages without having been woken: for those of workers that died, and for queues that
another process has created."""
_UNREAD: Final = 1000
"""A temporary queue with so many messages has no reader: they are removed."""
_SWEEPS: Final = 20
_SWEEP_S: Final = 0.05
_TEMPORARY: Final = "temporary"
_BOUND, _UNBOUND = 0, 1


def _file_of(queue: str) -> str:
    """Return the directory of a queue, which has any characters.

    Example:
        >>> _file_of("celery@a.b"), _file_of(".."), _file_of("a/b")
        ('celery@a.b', '%2E.', 'a%2Fb')
    """
    name = quote(queue, safe="@")
    return f"%2E{name[1:]}" if name.startswith(".") else name


class _Bindings:
    """The bindings of all exchanges, as this process has read them."""

    def __init__(self, path: str) -> None:
        self._writer = sej.SharedWriter(path)
        self._scanner = sej.Scanner(path, timeout=0.0)
        self._lock = threading.Lock()
        self._found: dict[str, dict[tuple[str, ...], None]] = {}

    def of(self, exchange: str) -> list[tuple[str, ...]]:
        """Return routing key, pattern and queue of each binding."""
        with self._lock:
            self._read()
            return list(self._found.get(exchange, ()))

    def remove(self, queue: str) -> None:
        """Remove all bindings of a queue."""
        with self._lock:
            self._read()
            rows = [(exchange, row) for exchange, rows in self._found.items() for row in rows if row[-1] == queue]
        for exchange, row in rows:
            self.change(exchange, row, bound=False)

    def _read(self) -> None:
        while messages := self._scanner.read(1000, timeout=0.0):
            for message in messages:
                exchange, *row = json.loads(message.value)
                rows = self._found.setdefault(exchange, {})
                if message.type == _BOUND:
                    rows[tuple(row)] = None
                else:
                    rows.pop(tuple(row), None)

    def change(self, exchange: str, row: Iterable[str | None], *, bound: bool) -> None:
        """Add or remove a binding."""
        row = tuple(each or "" for each in row)
        if (row in self.of(exchange)) != bound:
            value = json.dumps([exchange, *row]).encode()
            self._writer.append(value, type=_BOUND if bound else _UNBOUND)

    def close(self) -> None:
        """Close the files."""
        self._scanner.close()
        self._writer.close()


class _QoS(virtual.QoS):
    """Ends the items of messages."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.end(delivery_tag, lambda item: item.done())
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.end(delivery_tag, lambda item: item.give_back() if requeue else item.fail("rejected"))
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    """A channel. Its messages are items that this process holds, by their delivery tags."""

    QoS = _QoS
    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        """Open nothing: journals are created at their first use."""
        super().__init__(connection, **options)
        self._items: dict[str, Item] = {}

    # --- messages

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        band = math.ceil(self._get_message_priority(message) / 3)  # 0 is the default: the queue's log need not keep it
        found = self._queue(queue)
        if os.path.basename(os.path.dirname(found.path)) == _TEMPORARY and len(found) >= _UNREAD:
            found.purge()
        found.put(json.dumps(message).encode(), priority=band)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        for *_, queue in self.get_table(exchange):
            self._put(queue, message, **options)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        item = self._queue(queue).get(timeout or 0)
        if item is None:
            raise Empty
        try:
            message: dict[str, Any] = json.loads(item.value)
            properties = message["properties"]
            properties["delivery_info"]["redelivered"] = item.attempts > 1
            # A fanout has put copies of one message into several queues.
            properties["delivery_tag"] = tag = self._next_delivery_tag()
            self._items[tag] = item
        except (ValueError, KeyError, TypeError) as error:
            item.fail(error)
            raise Empty from error
        return message

    def end(self, tag: str, how: Callable[[Item], None]) -> None:
        """End the item of a message. One that this process does not hold any more is with another worker, or ended."""
        item = self._items.pop(tag, None)
        if item is not None and self.connection.queues.owned:
            try:
                how(item)
            except (LeaseLostError, ClosedError):
                return

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.end(message.delivery_tag, lambda item: item.done())
        return message

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Consume from a queue."""

        def called(message: Any) -> Any:
            if no_ack:
                self.end(message.delivery_tag, lambda item: item.done())
            return callback(message)

        super().basic_consume(queue, no_ack, called, consumer_tag, **options)

    def _restore(self, message: Any) -> None:
        self.end(message.delivery_tag, lambda item: item.give_back())

    # --- queues

    def _queue(self, name: str) -> WorkQueue:
        found: WorkQueue = self.connection.queues[name]
        return found

    def _new_queue(self, queue: str, auto_delete: bool = False, arguments: Any = None, **_: Any) -> None:
        if auto_delete or "x-expires" in (arguments or {}):
            os.makedirs(self.connection.path_of(queue, temporary=True), exist_ok=True)
        self._queue(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return os.path.isdir(self.connection.path_of(queue))

    def _size(self, queue: str) -> int:
        return len(self._queue(queue))

    def _purge(self, queue: str) -> int:
        return self._queue(queue).purge()

    def _delete(self, queue: str, exchange: str, *meta: Any, **_: Any) -> None:
        self.connection.bindings.change(exchange, meta, bound=False)
        self._purge(queue)

    # --- exchanges

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        """Return the bindings of an exchange."""
        found: list[tuple[str, ...]] = self.connection.bindings.of(exchange)
        return found

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        self.connection.bindings.change(exchange, (routing_key, pattern, queue), bound=True)


class Transport(virtual.Transport):
    """The transport. ``broker_transport_options`` may have ``queue``, options of :func:`sej.open_queue`.

    There are four priorities, as with Redis: 0, 1 to 3, 4 to 6, and 7 to 9. The highest is delivered first, as with
    RabbitMQ.

    Example:
        >>> import tempfile, kombu
        >>> with kombu.Connection(f"sej://{tempfile.mkdtemp()}") as connection:
        ...     with connection.SimpleQueue("mail") as queue:
        ...         queue.put({"to": "alice"})
        ...         message = queue.get(timeout=10)
        ...         message.ack()
        ...         message.payload
        {'to': 'alice'}
    """

    Channel = Channel
    connection_errors = (*virtual.Transport.connection_errors, sej.SejError, OSError)
    can_parse_url = True
    driver_type = driver_name = "sej"
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Any, **options: Any) -> None:
        """Name the directory; nothing is opened.

        Raises:
            ValueError: the URL has no directory, or there are several.
        """
        super().__init__(client, **options)
        directory = unquote((client.hostname or "").removeprefix(_SCHEME))
        if not directory or client.alt:
            raise ValueError(f"the URL must have one directory, as in {_SCHEME}/var/lib/shop/tasks")
        self._root = absolute_path(directory)
        opening = {"max_attempts": PREFETCHED, **client.transport_options.get("queue", {})}

        def open_(name: str) -> WorkQueue:
            for _ in range(_SWEEPS):
                try:
                    return open_at(self.path_of(name), **opening)
                except LockedError:  # another process is removing this temporary queue
                    time.sleep(_SWEEP_S)
            return open_at(self.path_of(name), **opening)

        self.queues = PerProcess(open_)
        self._bindings = PerProcess(_Bindings)
        self._watches: dict[str, Watch] = {}

    @property
    def bindings(self) -> _Bindings:
        """The bindings of all exchanges."""
        return self._bindings[os.path.join(self._root, "bindings")]

    def path_of(self, queue: str, *, temporary: bool = False) -> str:
        """Return the journal of a queue."""
        found = os.path.join(self._root, _TEMPORARY, _file_of(queue))
        return found if temporary or os.path.isdir(found) else os.path.join(self._root, "queues", _file_of(queue))

    def establish_connection(self) -> Any:
        """Remove temporary queues that no process has open, and connect."""
        folder = os.path.join(self._root, _TEMPORARY)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            lock = os.path.join(path, "ofs", f"{READER}.lck")
            try:
                if os.path.exists(lock):
                    with Lock(lock, what=f"queue {name}").acquire():
                        self.bindings.remove(unquote(name))
                        shutil.rmtree(path)
            except LockedError:
                continue
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Return what the channels hold, and close all files."""
        super().close_connection(connection)
        self.queues.close()
        self._bindings.close()
        while self._watches:
            self._watches.popitem()[1].close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message, which may be a moment away.

        Raises:
            TimeoutError: there was none within the timeout, in seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            watches = self._watched()  # first: a message that comes between the two looks wakes
            try:
                self.cycle.get(self._deliver, timeout=timeout)
            except Empty:
                left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"no message within {timeout} s") from None
                if watches:
                    wait_any(watches, left)
                else:
                    time.sleep(left)
            else:
                return

    def _watched(self) -> list[Watch]:
        """Return watches of the queues that are consumed."""
        wanted = {queue for channel in self.channels for queue in channel._active_queues}
        for queue in wanted - self._watches.keys():
            self._watches[queue] = Watch(os.path.join(self.queues[queue].path, "jnl"))
        return [self._watches[queue] for queue in wanted]


TRANSPORT_ALIASES.update(sej=f"{__name__}:Transport")
