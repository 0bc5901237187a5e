"""Other interfaces to a work queue: that of ``queue.Queue`` for existing code, and one for asyncio.

Both use only :class:`WorkQueue`, so they work with every backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from sej.checks import Seconds, refuse_pickling, require, seconds
from sej.errors import ClosedError, InvalidMessageError, LeaseLostError, QueueFullError
from sej.queue.interface.queue import LOOK_S, Item, WorkQueue, require_queue
from sej.queue.interface.values import Stats
from sej.system.watch import Watch

_SLICE_S: Final = 0.5
_PAUSE_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05
_T = TypeVar("_T")


class QueueAdapter:
    """A work queue with the methods and exceptions of :class:`queue.Queue`.

    ``get`` returns values; ``task_done`` ends the oldest value that this thread got and did not end. The difference: a
    value that was never ended is delivered again when its lease is over, here or in another process.

    Example:
        >>> import tempfile, sej
        >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as work:
        ...     q = QueueAdapter(work)
        ...     q.put(b"job")
        ...     print(q.get(), q.qsize())
        ...     q.task_done()
        ...     q.join()
        b'job' 0
    """

    __reduce__ = refuse_pickling

    def __init__(self, work: WorkQueue) -> None:
        """Wrap a queue; the caller closes it."""
        require_queue("work", work)
        self.work = work
        self._held = threading.local()

    def put(self, item: Any, block: bool = True, timeout: Seconds | None = None) -> None:
        """Put a value.

        Args:
            item: bytes, or a value for the queue's serializer.
            block: whether to wait for room.
            timeout: seconds to wait at most; None: without a limit.

        Raises:
            queue.Full: the queue has a maxsize, and there was no room in time.
        """
        try:
            self.work.put(item, timeout=_wait(block, timeout))
        except QueueFullError as error:
            raise queue.Full from error

    def put_nowait(self, item: Any) -> None:
        """Put without waiting."""
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Any:
        """Take a value.

        Args:
            block: whether to wait for a value.
            timeout: seconds to wait at most; None: without a limit.

        Raises:
            queue.Empty: there was no value in time.
            InvalidMessageError: the serializer cannot decode it; it was returned to the queue as a failed attempt.
        """
        item = self.work.get(timeout=_wait(block, timeout))
        if item is None:
            raise queue.Empty
        try:
            value = item.value
        except InvalidMessageError as error:
            item.retry(reason=error)
            raise
        self._items().append(item)
        return value

    def get_nowait(self) -> Any:
        """Take without waiting."""
        return self.get(block=False)

    def task_done(self) -> None:
        """End the oldest value that this thread got.

        Raises:
            ValueError: this thread has no value.
            LeaseLostError: its lease was over.
        """
        items = self._items()
        if not items:
            raise ValueError("task_done() called too often: this thread holds no item")
        items.popleft().done()

    def join(self, timeout: Seconds | None = None) -> None:
        """Wait until every item of any holder is done or dead, at most ``timeout`` seconds."""
        self.work.wait_empty(timeout)

    def qsize(self) -> int:
        """Return how many items wait."""
        return len(self.work)

    def empty(self) -> bool:
        """Return whether no item waits."""
        return len(self.work) == 0

    def full(self) -> bool:
        """Return whether a put would have to wait."""
        maxsize = getattr(self.work, "maxsize", 0)
        return bool(maxsize) and len(self.work) >= maxsize

    def _items(self) -> deque[Item]:
        items: deque[Item] | None = getattr(self._held, "items", None)
        if items is None:
            items = self._held.items = deque()
        return items


def _wait(block: bool, timeout: Seconds | None) -> float | None:
    timeout = seconds("timeout", timeout)
    require(block=block, timeout=timeout)
    return timeout if block else 0.0


class _Hand:
    """Takes items in a thread, for a task that may be cancelled; then the items are returned to the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Item] = []
        self._away = False

    def take(self, work: WorkQueue, n: int, timeout: float) -> list[Item]:
        found = work.get_many(n, timeout)
        with self._lock:
            if not self._away:
                self._found = found
                return found
        _give_back(found)
        return []

    def turn_away(self) -> list[Item]:
        """Refuse items from now on; return those that were taken already."""
        with self._lock:
            self._away = True
            return self._found


def _give_back(items: list[Item]) -> None:
    for item in items:
        with contextlib.suppress(LeaseLostError, ClosedError):  # closing returns items too
            item.give_back()


class _Turns(NamedTuple):
    """Among the waiting tasks of one loop, one waits for all: a thread for each would use up the threads."""

    loop: asyncio.AbstractEventLoop
    get: asyncio.Lock
    put: asyncio.Lock


async def _acquired(lock: asyncio.Lock, end: float | None) -> bool:
    """Acquire the lock; return False if the time is over first."""
    try:
        async with asyncio.timeout_at(end):
            return await lock.acquire()
    except TimeoutError:
        return False


class AsyncQueue:
    """A work queue for coroutines: each call runs in a thread and does not block the loop.

    All tasks that wait for items together use one thread. It waits in slices of half a second: a cancelled task ends
    within one slice, and an item that arrived in the meantime is returned to the queue. A task that is cancelled while
    it waits for room has put nothing, unless room became free at that moment: a put that has started is finished.

    Example:
        >>> import asyncio, tempfile, sej
        >>> async def main(work: sej.WorkQueue) -> None:
        ...     q = AsyncQueue(work)
        ...     await q.put(b"job")
        ...     item = await q.get()
        ...     print(item.value)
        ...     await q.done(item)
        >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as work:
        ...     asyncio.run(main(work))
        b'job'
    """

    __reduce__ = refuse_pickling

    def __init__(self, work: WorkQueue) -> None:
        """Wrap a queue; the caller closes it."""
        require_queue("work", work)
        self.work = work
        # Its thread is started by the first wait, and ended by close. Later calls raise in a thread of the loop.
        self._waiting: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "sej-queue")
        self._watching: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "sej-results")
        self._watch: Watch | None = None
        self._awaited: Counter[int] = Counter()
        self._look_at = 0.0
        self._look: asyncio.Future[set[int]] | None = None
        self._last_turns: _Turns | None = None

    async def put(self, value: Any, key: bytes = b"", *, timeout: Seconds | None = None, **options: Any) -> int:  # noqa: ASYNC109
        """Put an item, like :meth:`sej.WorkQueue.put`."""
        return await self._put(partial(self.work.put, value, key, **options), timeout)

    async def put_many(
        self,
        values: Iterable[Any],
        keys: Iterable[bytes] | None = None,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109
        **options: Any,
    ) -> Sequence[int]:
        """Put items, like :meth:`sej.WorkQueue.put_many`."""
        listed = None if keys is None else list(keys)
        return await self._put(partial(self.work.put_many, list(values), listed, **options), timeout)

    async def _put(self, put: partial[_T], timeout: Seconds | None) -> _T:  # noqa: ASYNC109
        timeout = seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        turn = self._turns().put
        try:
            return await asyncio.to_thread(put, timeout=0.0)
        except QueueFullError as error:
            if error.never or "maxsize" not in self.work.can or not await _acquired(turn, end):
                raise
        try:
            pause = _PAUSE_S
            while True:
                left = pause if end is None else end - loop.time()
                await asyncio.sleep(max(min(pause, left), 0.0))
                pause = min(pause * 2, _PAUSE_MAX_S)
                try:
                    return await asyncio.to_thread(put, timeout=0.0)
                except QueueFullError as full:
                    if full.never or (end is not None and loop.time() >= end):
                        raise
        finally:
            turn.release()

    async def get(self, timeout: Seconds | None = None) -> Item | None:  # noqa: ASYNC109 the interface's own name
        """Take an item, like :meth:`sej.WorkQueue.get`."""
        found = await self.get_many(1, timeout)
        return found[0] if found else None

    async def get_many(self, n: int, timeout: Seconds | None = None) -> list[Item]:  # noqa: ASYNC109
        """Take items, like :meth:`sej.WorkQueue.get_many`."""
        timeout = seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        turn = self._turns().get
        found = await self._take(None, n, 0.0)
        if found or timeout == 0 or not await _acquired(turn, end):
            return found
        try:
            while True:
                wait = _SLICE_S if end is None else max(min(end - loop.time(), _SLICE_S), 0.0)
                found = await self._take(self._waiting, n, wait)
                if found or (end is not None and loop.time() >= end):
                    return found
        finally:
            turn.release()

    async def _take(self, executor: ThreadPoolExecutor | None, n: int, wait: float) -> list[Item]:
        loop = asyncio.get_running_loop()
        hand = _Hand()
        taking = loop.run_in_executor(executor, hand.take, self.work, n, wait)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            if late := hand.turn_away():
                await asyncio.shield(loop.run_in_executor(None, _give_back, late))
            else:
                with contextlib.suppress(Exception):
                    await asyncio.shield(taking)
            raise

    def _turns(self) -> _Turns:
        loop = asyncio.get_running_loop()
        if self._last_turns is None or self._last_turns.loop is not loop:
            self._last_turns = _Turns(loop, asyncio.Lock(), asyncio.Lock())
        return self._last_turns

    async def done(self, item: Item, result: Any = None) -> None:
        """End an item, like :meth:`sej.Item.done`."""
        await asyncio.to_thread(item.done, result)

    async def result(self, offset: int, timeout: Seconds | None = None) -> Any:  # noqa: ASYNC109
        """Wait for the result of an item, like :meth:`sej.WorkQueue.result`; all tasks that wait use one thread."""
        timeout = seconds("timeout", timeout)
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        self._awaited[offset] += 1  # before the look, so that no end is missed
        try:
            with contextlib.suppress(TimeoutError):
                return await asyncio.to_thread(self.work.result, offset, 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    while offset not in await asyncio.shield(self._next_look()):
                        pass
        finally:
            self._awaited[offset] -= 1
            if not self._awaited[offset]:
                del self._awaited[offset]
        try:
            return await asyncio.to_thread(self.work.result, offset, 0.0)
        except TimeoutError:
            raise self.work._not_ended(offset, timeout) from None

    def _next_look(self) -> asyncio.Future[set[int]]:
        """Return the look that all waiting tasks share."""
        loop, look = asyncio.get_running_loop(), self._look
        if look is None or look.done() or look.get_loop() is not loop:
            self._look = look = loop.run_in_executor(self._watching, self._ended)
        return look

    def _ended(self) -> set[int]:
        """Return which of the awaited items have ended; if none has, wait for a change of the queue."""
        if self._watch is None:
            self._watch = self.work._result_watch()
        found = self.work._ended(list(self._awaited))
        if not found:
            time.sleep(max(self._look_at - time.monotonic(), 0.0))
            self._look_at = time.monotonic() + LOOK_S
            self._watch.wait(_SLICE_S)
        return found

    async def retry(self, item: Item, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return an item to the queue, like :meth:`sej.Item.retry`."""
        await asyncio.to_thread(item.retry, delay_s, reason)

    async def fail(self, item: Item, reason: str | BaseException = "") -> None:
        """Give an item up, like :meth:`sej.Item.fail`."""
        await asyncio.to_thread(item.fail, reason)

    async def extend(self, item: Item, lease_s: Seconds) -> None:
        """Extend a lease, like :meth:`sej.Item.extend`."""
        await asyncio.to_thread(item.extend, lease_s)

    async def done_many(self, items: Iterable[Item]) -> None:
        """End items, like :meth:`sej.WorkQueue.done_many`."""
        await asyncio.to_thread(self.work.done_many, items)

    async def stats(self) -> Stats:
        """Return counts, like :meth:`sej.WorkQueue.stats`."""
        return await asyncio.to_thread(self.work.stats)

    async def close(self) -> None:
        """Close the queue, and end the thread that waits for items."""
        await asyncio.to_thread(self.work.close)
        threads = self._waiting, self._watching
        self._waiting = self._watching = None
        for thread in threads:
            if thread is not None:
                thread.shutdown(wait=False)
        if self._watch is not None:
            self._watch.close()

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield items, waiting for each, without an end."""
        while True:
            item = await self.get()
            if item is not None:
                yield item

    async def __aenter__(self) -> Self:
        """Return the queue."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the queue."""
        await self.close()
