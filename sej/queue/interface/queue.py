"""The interface of every work queue: items are put, taken under a lease, and ended; and what opens one.

This module imports only the lowest layers: errors, file watching and the standard library, so that every package can
build on it.

A backend is a package's storage for a queue: a SEJ directory, a ``.tq`` file, a Kestrel journal. It is a function
``(path, name, **options) -> WorkQueue``, registered in the entry-point group ``sej.backends`` under the name that
``open_queue(..., backend=)`` takes.

With every backend, an item that was put is delivered until it is done or given up, and no other worker gets an item
during its lease. An operation that a backend does not support raises :class:`~sej.UnsupportedError` and is not in its
``can``.
"""

from __future__ import annotations

import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from sys import modules
from typing import Any, ClassVar, Final, NamedTuple, Self

from sej.checks import (
    ANY_SECONDS,
    FLAG,
    OFFSET,
    POSITIVE,
    POSITIVE_SECONDS,
    SECONDS,
    TEXT,
    WAIT,
    Seconds,
    between,
    instance_of,
    one_of,
    optional,
    refuse_pickling,
    refuse_type,
    require,
    seconds,
)
from sej.errors import (
    InvalidMessageError,
    ItemFailedError,
    LeaseLostError,
    QueueNotFoundError,
    ResultGoneError,
    UnsupportedError,
)
from sej.queue.interface.values import (
    ACTIVE,
    MAX_RESULT_BYTES,
    PAUSED,
    PLAIN,
    REMOVED,
    STATES,
    TRACED,
    Plan,
    PutOptions,
    QueuedItem,
    Schedule,
    Serializer,
    Stats,
    check_headers,
    decoded,
    plan_of,
    with_trace,
)
from sej.queue.interface.values import serializer as serializer_of
from sej.system.disk import OS
from sej.system.watch import Watch


class Item(ABC):
    """One item, leased to the worker that took it.

    End it with :meth:`done`, :meth:`retry` or :meth:`fail`, or use it as a context manager: ``done`` if the block
    succeeds, ``retry`` if it raises (the exception propagates). ``async with`` does the same in a thread. All of them
    raise :class:`~sej.LeaseLostError` if another worker may have the item, or if it was ended before.

    Attributes:
        message: the backend's own object, a :class:`sej.Message` on a journal.
        attempts: the number of attempts, including this one; at first 1.
        ended: True if done, retry or fail was called.
    """

    __reduce__ = refuse_pickling

    __slots__ = ("_queue", "attempts", "ended", "message")
    message: Any
    attempts: int
    ended: bool

    def __init__(self, queue: Any, message: Any, attempts: int) -> None:
        """Create an item that was taken from ``queue``."""
        self._queue = queue
        self.message = message
        self.attempts = attempts
        self.ended = False

    @property
    def _data(self) -> bytes:
        """Return the value as stored."""
        data: bytes = self.message.value
        return data

    @property
    def value(self) -> Any:
        """The value that was put, as bytes or as an object of the queue's serializer.

        Raises:
            InvalidMessageError: the serializer cannot decode it.
        """
        offset = getattr(self.message, "offset", None)
        return decoded(self._queue.serializer, self._data, self._queue.path, offset)

    @property
    def key(self) -> bytes:
        """The key that was put; empty if the backend has none."""
        return b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put, a new dict at each access; empty if there are none."""
        return {}

    @abstractmethod
    def done(self, result: Any = None) -> None:
        """Mark the item done: it is not delivered again.

        Args:
            result: for :meth:`WorkQueue.result`: bytes, or a value for the queue's serializer, of at most 16,384 bytes.
                It is kept if the item was put with ``keep_result``, and dropped otherwise.

        Raises:
            InvalidMessageError: the result is too large, and the item stays leased. Store it elsewhere, and pass where.
        """

    @abstractmethod
    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return the item to the queue; after max_attempts it becomes a dead letter.

        Args:
            delay_s: seconds until it may be taken again; None: longer with each attempt, with jitter, if the backend
                supports delays.
            reason: what went wrong, for the dead letter: a text, or an exception with its traceback.
        """

    def give_back(self) -> None:
        """Return the item to the queue immediately, not as an attempt if the backend can tell."""
        self.retry(0.0)

    @abstractmethod
    def fail(self, reason: str | BaseException = "") -> None:
        """Give the item up: it becomes a dead letter, with the reason as for :meth:`retry`."""

    @abstractmethod
    def extend(self, lease_s: Seconds) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""

    def __enter__(self) -> Self:
        """Return the item."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Call done, or retry after an exception; nothing if the block has ended the item itself."""
        if self.ended:
            return
        if error is None:
            self.done()
            return
        with suppress(LeaseLostError):  # the exception propagates, and another worker has the item
            self.retry(reason=error)

    async def __aenter__(self) -> Self:
        """Return the item."""
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the item in a thread, as the end of a ``with`` block does."""
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, trace)


OPENING: Final = ("backend", "serializer")
"""The options of :func:`sej.open_queue` that no backend gets; an error that lists the others names them too."""

CAPABILITIES: Final = (
    "keys",
    "headers",
    "delay",
    "priority",
    "expire",
    "dedupe",
    "maxsize",
    "retry_delay",
    "extend",
    "deadline",
    "processes",
    "dead_letters",
    "redrive",
    "requeue",
    "purge",
    "cancel",
    "look",
    "pause",
    "max_bytes",
    "order",
    "concurrency",
    "rate",
    "results",
    "schedules",
    "limit",
)
"""The features of backends: message keys; headers; put and retry with a delay; priorities; items that expire;
idempotent puts; a bound; extended leases; leases that end at a deadline and not only with their process; several
concurrent processes; dead letters, putting all of them back, or one; purging; removing one item; listing items without
taking them; pausing; a limit of the bytes of a batch; the order of keys; a limit of leased items; a limit of items in a
time; results of items; items that are put at given times; limits by kind.
"""
LOOK_S: Final = 0.002
"""Between two looks of one that waits for a result: a busy queue changes more often, and each look takes its lock."""
_LOOKS: Final = 8
"""So many looks come immediately: most items end soon."""
_PAUSE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05


def require_known(name: str, known: Collection[str], create: bool | None, path: str) -> None:
    """Check that opening a queue does not create one by mistake: every message is delivered again to a second queue.

    Args:
        name: the queue to open.
        known: the existing queues.
        create: None creates only the first queue; True creates any; False creates none.
        path: the path that holds the queues.

    Raises:
        QueueNotFoundError: the queue does not exist, and ``create`` does not allow creating it.
    """
    optional(FLAG)("create", create)
    if name in known or create or (create is None and not known):
        return
    names = sorted(known)
    if names:
        one = "" if len(names) == 1 else " one of them, as in"
        what = (
            f"no queue {name!r} in this journal; it has {', '.join(map(repr, names))}: use{one}"
            f" name={names[0]!r} (--name {names[0]}). create=True (--create) creates another queue, which gets every"
            " message of the journal again"
        )
    else:
        what = (
            f"no queue {name!r}: this journal has no queue; create=True (`sej queue put --create`) creates it, and"
            " every message of the journal is an item then"
        )
    raise QueueNotFoundError(what, path=path, names=names)


class Outcome(NamedTuple):
    """How an item ended.

    Attributes:
        data: its result; None: it was done without one.
        error: what to raise instead: it failed, or its result is gone.
    """

    data: bytes | None
    error: ItemFailedError | ResultGoneError | None = None


class ResultHandle(int):
    """The number of an item whose result is kept; another process passes the number to :meth:`WorkQueue.result`."""

    _queue: WorkQueue

    def __new__(cls, queue: WorkQueue, number: int) -> Self:
        """Create the handle of an item of a queue."""
        handle = super().__new__(cls, number)
        handle._queue = queue
        return handle

    def result(self, timeout: Seconds | None = None) -> Any:
        """Wait for the item's result, as :meth:`WorkQueue.result` does."""
        return self._queue.result(int(self), timeout)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle the number."""
        return int, (int(self),)


class Schedules:
    """The schedules of a queue, as :attr:`WorkQueue.schedules` returns them: to list, pause, resume and remove them.

    Example:
        >>> import tempfile, sej
        >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as q:
        ...     _ = q.put(b"report", every="15m", schedule="reports")
        ...     [(each.name, each.every_s) for each in q.schedules], q.schedules["reports"].value
        ...     q.schedules.pause("reports"), q.schedules.remove("reports"), q.schedules.remove("reports")
        ([('reports', 900.0)], b'report')
        (True, True, False)
    """

    __reduce__ = refuse_pickling

    def __init__(self, queue: WorkQueue) -> None:
        """Look at the schedules of a queue."""
        require_queue("queue", queue)
        self._queue = queue

    def __iter__(self) -> Iterator[Schedule]:
        """Yield the schedules, in the order of their names."""
        return iter(self._queue._schedules())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._queue._schedules())

    def __getitem__(self, name: str) -> Schedule:
        """Return the schedule of a name.

        Raises:
            KeyError: there is none.
        """
        for schedule in self._queue._schedules():
            if schedule.name == name:
                return schedule
        raise KeyError(name)

    def pause(self, name: str) -> bool:
        """Let the times of a schedule pass without items, until :meth:`resume`; items that were put stay.

        Returns:
            False if no schedule has this name.
        """
        return self._change(name, PAUSED)

    def resume(self, name: str) -> bool:
        """Put items again, from the next time on; return False if no schedule has this name."""
        return self._change(name, ACTIVE)

    def remove(self, name: str) -> bool:
        """Remove a schedule; items that were put stay. Return False if there is none of this name."""
        return self._change(name, REMOVED)

    def _change(self, name: str, state: int) -> bool:
        TEXT("name", name)
        return self._queue._change_schedule(name, state)


_PRIORITY: Final = between(-3, 3)
_NONE: Final = (None,) * 10
_BYTES: Final = instance_of(bytes)


class WorkQueue(ABC):
    """A work queue for any number of threads and, if ``can`` includes ``processes``, processes.

    Attributes:
        path: the path that was opened.
        name: the queue's name.
        can: the features of this backend, of ``keys``, ``headers``, ``delay``, ``priority``, ``expire``, ``dedupe``,
            ``maxsize``, ``retry_delay``, ``extend``, ``deadline``, ``processes``, ``dead_letters``, ``redrive``,
            ``requeue``, ``purge``, ``cancel``, ``look``, ``pause``, ``max_bytes``, ``order``, ``concurrency``,
            ``rate``, ``results``, ``schedules`` and ``limit``.
        serializer: turns values into bytes and back; None: values are bytes.
    """

    __reduce__ = refuse_pickling

    path: str
    name: str
    can: ClassVar[frozenset[str]]
    _instead: ClassVar[str] = ""
    serializer: Serializer | None = None

    # --- implemented by a backend

    @abstractmethod
    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        """Put many items, all or none; unsupported options were refused before. Return their numbers."""

    @abstractmethod
    def stats(self) -> Stats:
        """Return how many items there are."""

    @abstractmethod
    def close(self) -> None:
        """Return the items that this object holds to the queue, and close; a second call does nothing."""

    @abstractmethod
    def _take(self, n: int, max_bytes: int | None = None) -> list[Item]:
        """Return up to n items that are available now, without waiting; their values have at most max_bytes."""

    @abstractmethod
    def _wait(self, left_s: float | None) -> bool:
        """Wait so many seconds, None: without a limit, until an item may be available; False: only the time is over.

        What came before the first wait may be unreported: it returns immediately.
        """

    def _outcome(self, offset: int) -> Outcome | None:
        """Return how an item ended; None: it has not ended."""
        raise self._unsupported("results")

    def _ended(self, offsets: Collection[int]) -> set[int]:
        """Return which of these items have ended."""
        raise self._unsupported("results")

    def _result_watch(self) -> Watch:
        """Return a new watch that wakes when an item may have ended."""
        raise self._unsupported("results")

    def _schedule(self, plan: Plan, key: bytes, value: bytes) -> int:
        """Add a schedule; return when its first item is put."""
        raise self._unsupported("schedules")

    def _schedules(self) -> list[Schedule]:
        """Return the schedules, in the order of their names."""
        raise self._unsupported("schedules")

    def _change_schedule(self, name: str, state: int) -> bool:
        """Let a schedule be active, paused or removed; return False if there is none of this name."""
        raise self._unsupported("schedules")

    @property
    def schedules(self) -> Schedules:
        """The schedules, which ``put`` adds and changes."""
        return Schedules(self)

    def purge(self) -> int:
        """Remove every item that is not leased; return how many."""
        raise self._unsupported("purge")

    def redrive(self, limit: int | None = None) -> int:
        """Put this queue's dead letters back, oldest first, at most ``limit``; return how many."""
        raise self._unsupported("redrive")

    def requeue(self, offset: int) -> int | None:
        """Put one dead letter back, as :meth:`redrive` does.

        Args:
            offset: the number of the item that was given up.

        Returns:
            The number of the new item; None if the item has no letter, or its letter was put back before.
        """
        OFFSET("offset", offset)
        raise self._unsupported("requeue")

    def discard(self, offset: int) -> bool:
        """Remove one dead letter for good; backends with ``requeue`` can do it.

        Args:
            offset: the number of the item that was given up.

        Returns:
            True if it was removed; False if the item has no letter, or its letter was put back or removed before.
        """
        OFFSET("offset", offset)
        raise self._unsupported("requeue")

    def cancel(self, offset: int) -> bool:
        """Remove one item: no worker receives it again. It counts as done.

        If a worker holds the item, its lease ends: the worker's ``done`` raises :class:`~sej.LeaseLostError`.

        Args:
            offset: the number of the item.

        Returns:
            True if it was removed; False if it was done, dead or removed before, or was never put.
        """
        OFFSET("offset", offset)
        raise self._unsupported("cancel")

    def pause(self) -> None:
        """Deliver no item to any worker until :meth:`resume`; leased items stay leased. The pause is kept."""
        raise self._unsupported("pause")

    def resume(self) -> None:
        """Deliver items again after :meth:`pause`."""
        raise self._unsupported("pause")

    def peek(self, n: int = 1) -> list[QueuedItem]:
        """Return the next n items that can be taken now, in the order of their delivery, without taking them.

        Args:
            n: the most items to return; at least 1.
        """
        POSITIVE("n", n)
        raise self._unsupported("look")

    def items(
        self, state: str | None = None, *, limit: int | None = None, after: int | None = None
    ) -> list[QueuedItem]:
        """Return items in the order of their numbers, without taking them.

        Args:
            state: ``"ready"``, ``"delayed"``, ``"leased"`` or ``"dead"``; ``"waiting"`` is ready and delayed; None: all
                that are not dead.
            limit: the most items to return; None: all of them.
            after: only items with a higher number, to continue a list.
        """
        require_listing(state, limit, after)
        raise self._unsupported("look")

    def sync(self) -> None:
        """Sync to the disk what was put and ended through this object so far."""
        raise self._unsupported("sync")

    # --- shared by all backends

    def put(
        self,
        value: Any,
        key: bytes = b"",
        *,
        delay_s: Seconds = 0.0,
        priority: int = 0,
        expire_s: Seconds | None = None,
        dedupe_key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
        keep_result: Seconds | None = None,
        every: Seconds | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        schedule: str | None = None,
        missed: str | None = None,
    ) -> int:
        """Put an item; with ``every`` or ``cron``, one at each of these times, beginning with the next.

        Args:
            value: bytes, or a value for the queue's serializer.
            key: up to 127 bytes that are stored with it.
            delay_s: seconds until it may be taken, or a duration such as ``"5m"``.
            priority: -3 to 3; ready items with the highest priority are delivered first.
            expire_s: seconds after which it expires. It is then removed when it would be delivered, and counted until
                then.
            dedupe_key: a put with the same key within the queue's window puts nothing and returns the first one's
                number.
            headers: texts by name, kept with the item and not in its message: ``{"content-type": "image/png"}``. At
                most 8,192 bytes as JSON. If the program uses OpenTelemetry, ``traceparent`` of the current span is
                added.
            timeout: seconds to wait for room if the queue has a maxsize; None: without a limit.
            keep_result: how long its result is kept after it has ended, as in ``"1h"``; None: it has no result.
            every: the time between two items, as in ``"15m"``; at least 1 ms. The first one comes after that time.
            cron: minute, hour, day, month and weekday, as in ``"0 3 * * mon-fri"``, or a name as ``"@daily"``; needs
                the extra ``schedules``.
            timezone: the zone of the cron expression, as in ``"Europe/Berlin"``; None: UTC.
            schedule: the name of the schedule. A put with the name of another one changes it; with the same arguments,
                nothing changes. None: a name that follows from key and value.
            missed: what is put if several times have passed when a process calls ``get``: ``"one"`` item, for the
                first; ``"all"``: one for each; ``"skip"``: one for the first of the last minute, or none. None: one.

        Returns:
            Its number, the offset on a journal; with ``keep_result`` a :class:`sej.ResultHandle`, which is that number
            and has a method ``result()``. Of a schedule: its next time, nanoseconds since the epoch.

        Raises:
            QueueFullError: there was no room within the timeout.
            InvalidMessageError: the item does not fit the format, or the value of a schedule has over 16,384 bytes.
        """
        plain = delay_s == priority == 0 and (
            expire_s, dedupe_key, headers, timeout, keep_result, every, cron, timezone, schedule, missed
        ) == _NONE  # fmt: skip
        if not plain or TRACED in modules:
            dedupe_keys = None if dedupe_key is None else (dedupe_key,)
            options = self._options(delay_s, priority, expire_s, headers, keep_result, dedupe_keys, timeout)
            if (every, cron, timezone, schedule, missed) != _NONE[:5]:
                data = self._encoded("value", value)
                plan = plan_of(data, key, options, every, cron, timezone, schedule, missed)
                self._require(("schedules", True))
                return self._schedule(plan, key, data)
            number = self._put_all((value,), (key,) if key else None, options)[0]
            return number if keep_result is None else ResultHandle(self, number)
        if key:
            self._require(("keys", True))
        if self.serializer is not None:
            value = self.serializer.encode(value)
        try:
            return self._put((value,), (key,) if key else None, PLAIN)[0]
        except TypeError:
            _require_bytes("value", value)
            raise

    def put_many(
        self,
        values: Iterable[Any],
        keys: Iterable[bytes] | None = None,
        *,
        delay_s: Seconds = 0.0,
        priority: int = 0,
        expire_s: Seconds | None = None,
        dedupe_keys: Sequence[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
        keep_result: Seconds | None = None,
    ) -> Sequence[int]:
        """Put many items; all of them or, if one is invalid, none. See :meth:`put`; return their numbers.

        Each item has the same delay, priority, expiry, headers and time for which its result is kept.

        Raises:
            QueueFullError: there was no room for all of them within the timeout.
        """
        require(values=values, keys=keys, dedupe_keys=dedupe_keys)
        options = self._options(delay_s, priority, expire_s, headers, keep_result, dedupe_keys, timeout)
        return self._put_all(values, keys, options)

    def _options(
        self,
        delay_s: Seconds,
        priority: int,
        expire_s: Seconds | None,
        headers: Mapping[str, str] | None,
        keep_result: Seconds | None,
        dedupe_keys: Sequence[bytes] | None,
        timeout: Seconds | None,
    ) -> PutOptions:
        """Return the options of a put, checked."""
        delay_s, expire_s = seconds("delay_s", delay_s), seconds("expire_s", expire_s)
        keep_s, timeout = seconds("keep_result", keep_result), seconds("timeout", timeout)
        require(timeout=timeout, priority=(priority, _PRIORITY), expire_s=(expire_s, optional(ANY_SECONDS)))
        require(headers=(headers, optional(check_headers)), keep_result=(keep_s, optional(POSITIVE_SECONDS)))
        SECONDS("delay_s", delay_s)
        self._require(("delay", delay_s), ("priority", priority), ("expire", expire_s is not None))
        self._require(("headers", headers), ("results", keep_s is not None))
        if dedupe_keys is not None:
            dedupe_keys = list(dedupe_keys)
            for dedupe_key in dedupe_keys:
                _BYTES("dedupe_key", dedupe_key)
        return PutOptions(delay_s, priority, expire_s, dedupe_keys, timeout, headers, keep_s)

    def _put_all(self, values: Iterable[Any], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        self._require(("keys", keys is not None), ("dedupe", options.dedupe_keys is not None))
        if TRACED in modules and "headers" in self.can:
            options = options._replace(headers=with_trace(options.headers))
        if self.serializer is not None:
            values = map(self.serializer.encode, values)
        values = list(values)
        try:
            return self._put(values, keys, options)
        except TypeError:
            for value in values:
                _require_bytes("value", value)
            raise

    def result(self, offset: int, timeout: Seconds | None = None) -> Any:
        """Wait until an item that was put with ``keep_result`` has ended, in any process, and return its result.

        It waits through retries. An item that expired is removed only when it would be delivered: give a timeout.

        Args:
            offset: the number of the item.
            timeout: seconds to wait; 0 does not wait, None waits without a limit.

        Returns:
            What ``done(result=...)`` was called with, as bytes or as a value of the queue's serializer; None if it was
            called without one.

        Raises:
            ItemFailedError: the item became a dead letter.
            ResultGoneError: no result of this item is kept.
            TimeoutError: the item has not ended in time.
            InvalidMessageError: the serializer cannot decode the result.

        Example:
            >>> import tempfile, sej
            >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as q:
            ...     handle = q.put(b"6 * 7", keep_result="1h")
            ...     q.get().done(result=b"42")
            ...     handle.result(timeout=10), q.result(0)
            (b'42', b'42')
        """
        timeout = seconds("timeout", timeout)
        require(offset=offset, timeout=timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        found = self._outcome(offset)
        if found is None and timeout != 0:
            with self._result_watch() as watch:  # its own: a shared one would take the events of a thread in get()
                look_at, looks = 0.0, 0
                while (found := self._outcome(offset)) is None:
                    now, looks = time.monotonic(), looks + 1
                    left = None if deadline is None else deadline - now
                    if left is not None and left <= 0:
                        break
                    if looks > _LOOKS:
                        time.sleep(max(look_at - now, 0.0))
                    look_at = now + LOOK_S
                    watch.wait(left)
        if found is None:
            raise self._not_ended(offset, timeout)
        if found.error is not None:
            raise found.error
        return None if found.data is None else decoded(self.serializer, found.data, self.path, offset)

    def _not_ended(self, offset: int, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"item {offset} of queue {self.name!r} in {self.path} has not ended within {timeout:g} s")

    def result_data(self, result: Any) -> bytes:
        """Return a result as it is kept; see :meth:`Item.done`."""
        data = self._encoded("result", result)
        if len(data) > MAX_RESULT_BYTES:
            raise InvalidMessageError(
                f"result must have at most {MAX_RESULT_BYTES} bytes, got {len(data)}; store it elsewhere, and pass"
                " its place",
                path=self.path,
            )
        return data

    def get(self, timeout: Seconds | None = None) -> Item | None:
        """Take the next item.

        Args:
            timeout: seconds to wait for one; 0 does not wait, None waits without a limit.

        Returns:
            The item, or None after the timeout.
        """
        if timeout is not None and timeout != 0:
            timeout = seconds("timeout", timeout)
            SECONDS("timeout", timeout)
        found = self._take(1)
        if not found and timeout != 0:
            found = self._get_later(1, timeout, None)
        return found[0] if found else None

    def get_many(self, n: int, timeout: Seconds | None = None, *, max_bytes: int | None = None) -> list[Item]:
        """Take up to n items as soon as there is one; an empty list after the timeout.

        Args:
            n: the most items to take; at least 1.
            timeout: seconds to wait for the first; 0 does not wait, None waits without a limit.
            max_bytes: the most bytes of their values together; a larger item is taken alone. None: no limit.
        """
        POSITIVE("n", n)
        if max_bytes is not None:
            POSITIVE("max_bytes", max_bytes)
            self._require(("max_bytes", max_bytes))
        if timeout is not None and timeout != 0:
            timeout = seconds("timeout", timeout)
            SECONDS("timeout", timeout)
        found = self._take(n, max_bytes)
        if not found and timeout != 0:
            found = self._get_later(n, timeout, max_bytes)
        return found

    def _get_later(self, n: int, timeout: Any, max_bytes: int | None) -> list[Item]:
        """Wait for items."""
        found: list[Item] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while not found:
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left <= 0) or not self._wait(left):
                break
            found = self._take(n, max_bytes)
        return found

    @contextmanager
    def claim(self, timeout: Seconds | None = 0.0) -> Iterator[Item | None]:
        """Take the next item for a ``with`` block: None inside the block if there is none.

        The item is done if the block succeeds. If the block raises, the item is retried and the exception propagates.

        Args:
            timeout: as for :meth:`get`.

        Example:
            >>> import tempfile, sej
            >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as q, q.claim() as item:
            ...     print(item)
            None
        """
        item = self.get(timeout)
        if item is None:
            yield None
            return
        with item:
            yield item

    def wait_empty(self, timeout: Seconds | None = None) -> bool:
        """Wait until no item waits and no worker holds one.

        Args:
            timeout: seconds to wait; 0 does not wait, None waits without a limit.

        Returns:
            True if the queue is empty; False after the timeout.
        """
        timeout = seconds("timeout", timeout)
        WAIT("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause_s = _PAUSE_S
        while (stats := self.stats()).ready or stats.delayed or stats.leased:
            left = _PAUSE_MAX_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause_s, left))  # not on the watches: it would take the events of a thread in get()
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        return True

    def done_many(self, items: Iterable[Item]) -> None:
        """End many items; as many as possible are done before the first LeaseLostError is raised."""
        lost: LeaseLostError | None = None
        for item in items:
            try:
                item.done()
            except LeaseLostError as error:
                lost = lost or error
        if lost is not None:
            raise lost

    def __len__(self) -> int:
        """Return how many items wait: ready and delayed."""
        stats = self.stats()
        return stats.ready + stats.delayed

    def __bool__(self) -> bool:
        """Return True: an empty queue is still a queue."""
        return True

    def __iter__(self) -> Iterator[Item]:
        """Yield items until none is ready."""
        while (item := self.get(timeout=0)) is not None:
            yield item

    def __enter__(self) -> Self:
        """Return the queue."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the queue."""
        try:
            self.close()
        except BaseException:
            self.close()  # a signal handler interrupted it: nothing else would finish it
            raise

    def __repr__(self) -> str:
        """Show path and name."""
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.path!r} {self.name!r}>"

    def _encoded(self, what: str, value: Any) -> bytes:
        data = value if self.serializer is None else self.serializer.encode(value)
        _require_bytes(what, data)
        return bytes(data)

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"this backend does not support {what}; it supports:"
            f" {', '.join(sorted(self.can)) or 'only put, get and done'}{self._instead}",
            path=self.path,
        )

    def _require(self, *wanted: tuple[str, object]) -> None:
        """Raise an error if a requested option is not supported by this backend."""
        for capability, value in wanted:
            if value and capability not in self.can:
                raise self._unsupported(capability)


def _require_bytes(what: str, value: Any) -> None:
    """Refuse a value that is not bytes, with a suggestion."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"{what} must be bytes, got {type(value).__name__}; encode it, or open the queue with serializer='json'"
        ) from None


def require_queue(name: str, value: Any) -> None:
    """Allow a work queue of any backend."""
    if not isinstance(value, WorkQueue):
        refuse_type(name, "a work queue, as sej.open_queue returns it", value)


def require_listing(state: str | None, limit: int | None, after: int | None) -> None:
    """Check the arguments of :meth:`WorkQueue.items`."""
    require(after=after, state=(state, optional(one_of(STATES))), limit=(limit, optional(POSITIVE)))


_TEXT: Final = ".tq"
BACKENDS: Final = {
    "journal": "sej.queue.journal_queue:open_backend",
    "kestrel": "kestrel.backend:open_kestrel",
    "libkestrel": "kestrel.backend:open_libkestrel",
    "textqueue": "textqueue.backend:open_backend",
}
"""The backends of this distribution, as in its entry points.

Listed here because reading the metadata of all installed packages takes longer than opening a queue.
"""


def open_queue(
    path: str | os.PathLike[str],
    name: str = "queue",
    *,
    backend: str | None = None,
    serializer: str | None = None,
    create: bool | None = None,
    **options: Any,
) -> WorkQueue:
    """Open a work queue.

    Args:
        path: a SEJ directory (created if missing), a ``.tq`` file, or the path of another backend.
        name: the queue's name: several queues over one journal each get every message.
        backend: None: a ``.tq`` file, or a directory of them that is not a journal, is ``"textqueue"``. Everything else
            is ``"journal"``.
        serializer: ``"json"``, ``"msgspec"``, ``"pickle"``, or None: values are bytes.
        create: whether to create a missing queue. None: only if the journal has no queue yet, because every message is
            delivered again to a second queue; True: create it; False: create nothing.
        options: the backend's own: ``lease_s``, ``max_attempts`` and others; see
            :class:`sej.queue.journal_queue.JournalQueue` for the journal's.

    Raises:
        TypeError: an argument has the wrong type, or the backend has no such option.
        ValueError: an argument is out of its range, or there is no such backend or serializer.
        ImportError: the serializer's package is not installed.
        QueueNotFoundError: there is no queue of this name, and ``create`` does not allow creating it.
        SejError: as the backend.
    """
    require(path=path, name=name, backend=backend, create=create)
    if create is not None:
        options["create"] = create  # not passed to a backend that may not have the option
    kind = backend or ("textqueue" if _is_text(os.fspath(path)) else "journal")
    found = serializer_of(serializer)
    queue = _factory(kind)(os.fspath(path), name, **options)
    queue.serializer = found
    return queue


def _is_text(path: str) -> bool:
    """Whether it is a ``.tq`` file, or a directory of them."""
    if path.endswith(_TEXT):
        return True
    status = OS.status(path)
    if status is None or not status.is_dir:
        return False
    names = OS.list(path)
    return "jnl" not in names and any(name.endswith(_TEXT) and not name.startswith(".") for name in names)


def _factory(kind: str) -> Callable[..., WorkQueue]:
    target = BACKENDS.get(kind)
    if target is None:
        from importlib.metadata import entry_points

        registered = {point.name: point.value for point in entry_points(group="sej.backends")}
        target = registered.get(kind)
        if target is None:
            known = ", ".join(sorted({*BACKENDS, *registered}))
            raise ValueError(f"backend must be one of {known}, or registered by an installed package, got {kind!r}")
    module, _, function = target.partition(":")
    factory: Callable[..., WorkQueue] = getattr(importlib.import_module(module), function)
    return factory
