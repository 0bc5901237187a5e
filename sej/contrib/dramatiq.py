"""A broker of dramatiq on work queues: each of its queues is a journal, and each message is an item.

A message stays leased to its worker until it is acknowledged. If the worker is killed, another one gets it. A message
that dramatiq rejects is a dead letter of the queue, with the exception. Delays are those of the work queue: dramatiq's
queues for delayed messages do not exist here, so that a delayed message needs no place in a worker's memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Final

from dramatiq import errors
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.message import Message

from sej.contrib.opened import PREFETCHED, queues_in
from sej.journal.directory import check_name
from sej.queue.interface.queue import Item, WorkQueue

__all__ = ["SejBroker"]

_PRIORITY: Final = "broker_priority"
_join_timeout: Any = errors.QueueJoinTimeout
_not_found: Any = errors.QueueNotFound


class SejBroker(Broker):
    """Keeps messages in the journals of a directory.

    The option ``broker_priority`` of an actor or message, -3 to 3, says which message a worker gets first: that with
    the highest one. The option ``priority`` of an actor orders the messages that one worker has, as ever.

    Example:
        >>> import dramatiq, tempfile
        >>> broker = SejBroker(tempfile.mkdtemp())
        >>> dramatiq.set_broker(broker)
        >>> @dramatiq.actor(queue_name="mail")
        ... def send(to):
        ...     print("sent to", to)
        >>> _ = send.send("alice")
        >>> worker = dramatiq.Worker(broker, worker_timeout=100)
        >>> worker.start(); broker.join("mail"); worker.stop()
        sent to alice
        >>> broker.close()
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, middleware: list[Any] | None = None, **options: Any
    ) -> None:
        """Name the directory; a journal is created when its queue is first used.

        Args:
            directory: where the journals are, on a disk of this machine.
            middleware: that of dramatiq; None: its default.
            options: of :func:`sej.open_queue`, such as ``durability`` and ``max_attempts``.
        """
        super().__init__(middleware)
        self.actor_options |= {_PRIORITY}
        self._queues = queues_in(directory, **{"max_attempts": PREFETCHED, **options})

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its name has the characters of a reader's.

        Raises:
            InvalidNameError: it has others.
        """
        if queue_name not in self.queues:
            self.emit_before("declare_queue", check_name(queue_name, "a queue's name"))
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Put a message; it is in the journal when this returns.

        Args:
            message: the message.
            delay: milliseconds until a worker may get it.

        Raises:
            QueueNotFound: its queue is not declared.
            ValueError: its ``broker_priority`` is not -3 to 3.
        """
        queue = self._queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        actor = self.actors.get(message.actor_name)
        priority = message.options.get(_PRIORITY, 0 if actor is None else actor.options.get(_PRIORITY, 0))
        queue.put(message.encode(), delay_s=(delay or 0) / 1000, priority=priority)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Return a consumer of a queue.

        Raises:
            QueueNotFound: it is not declared.
        """
        return _Consumer(self._queue(queue_name), prefetch, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Remove the messages of a queue that no worker has."""
        self._queue(queue_name).purge()

    def flush_all(self) -> None:
        """Remove the messages of all queues that no worker has."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no message that waits, is delayed, or is with a worker.

        Raises:
            QueueJoinTimeout: it still has some after the timeout, in milliseconds.
            QueueNotFound: it is not declared.
        """
        if not self._queue(queue_name).wait_empty(None if timeout is None else timeout / 1000):
            raise _join_timeout(f"queue {queue_name!r} is not empty after {timeout} ms")

    def close(self) -> None:
        """Close the journals; the next use opens them again. Messages that this process has are returned."""
        self._queues.close()

    def _queue(self, name: str) -> WorkQueue:
        if name not in self.queues:
            raise _not_found(name)
        return self._queues[name]


class _Taken(MessageProxy):
    """A message with its item."""

    def __init__(self, item: Item) -> None:
        super().__init__(Message.decode(item.value))
        self.item = item


class _Consumer(Consumer):
    def __init__(self, queue: WorkQueue, prefetch: int, timeout_s: float) -> None:
        self._queue = queue
        self._timeout_s = timeout_s
        self._room = threading.Semaphore(prefetch)

    def __next__(self) -> MessageProxy | None:
        if not self._room.acquire(timeout=self._timeout_s):
            return None
        item = self._queue.get(self._timeout_s)
        if item is not None:
            try:
                return _Taken(item)
            except errors.DecodeError as error:
                item.fail(error)
        self._room.release()
        return None

    def ack(self, message: Any) -> None:
        self._room.release()
        message.item.done()

    def nack(self, message: Any) -> None:
        self._room.release()
        message.item.fail(message._exception or "dramatiq has rejected the message")

    def requeue(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._room.release()
            message.item.give_back()
