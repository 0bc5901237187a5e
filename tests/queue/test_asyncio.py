"""The asyncio API of a queue: many tasks that wait, that are cancelled, and that wait for room."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.checks import Seconds
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import FakeClock, values
from tests.queue.test_interrupts import in_time


class Counting(JournalQueue):
    """Counts the threads that wait concurrently, and the calls of put."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, "worker", clock=FakeClock(), **options)
        self.guard = threading.Lock()
        self.waiting = self.most_waiting = self.puts = 0

    def get_many(self, n: int, timeout: Seconds | None = None, *, max_bytes: int | None = None) -> list[sej.Item]:
        if timeout == 0:
            return super().get_many(n, timeout)
        with self.guard:
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            return super().get_many(n, timeout)
        finally:
            with self.guard:
                self.waiting -= 1

    def put(self, *arguments: Any, **options: Any) -> int:
        self.puts += 1
        return super().put(*arguments, **options)


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 - what happens in threads rings no bell here
        await asyncio.sleep(0)


def test_tasks_that_wait_take_up_one_thread(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async_queue = sej.AsyncQueue(q)
        tasks = [asyncio.ensure_future(async_queue.get()) for _ in range(20)]
        gone = asyncio.ensure_future(async_queue.get(timeout=0.001))
        await until(lambda: q.waiting)
        assert await gone is None
        await async_queue.put_many(iter([b"%d" % number for number in range(20)]), iter([b"key"] * 20))
        items = [item for item in await asyncio.gather(*tasks) if item is not None]
        assert {item.value for item in items} == {b"%d" % number for number in range(20)}
        await async_queue.extend(items[0], 60)
        await async_queue.done_many(items)

    with Counting(tmp_path) as q:
        asyncio.run(main(q))
        assert q.most_waiting == 1
        assert tuple(q.stats().values())[:5] == (0, 0, 0, 20, 0)
        asyncio.run(main(q))  # in another loop


def test_close_ends_the_waiting_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        async_queue = sej.AsyncQueue(sej.open_queue(tmp_path))
        assert await async_queue.get(timeout=0.001) is None
        (thread,) = (one for one in set(threading.enumerate()) - before if one.name.startswith("sej-queue"))
        await async_queue.close()
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
        with pytest.raises(sej.ClosedError):
            await async_queue.get(timeout=60)
        await async_queue.close()

    asyncio.run(main())


def test_close_wakes_all_waiting_tasks(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async with sej.AsyncQueue(q) as async_queue:
            tasks = [asyncio.ensure_future(async_queue.get()) for _ in range(5)]
            await until(lambda: q.waiting)
        for task in tasks:
            with pytest.raises(sej.ClosedError):
                await task

    asyncio.run(main(Counting(tmp_path)))


def test_cancelled_tasks_keep_no_item(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async_queue = sej.AsyncQueue(q)
        tasks = [asyncio.ensure_future(async_queue.get()) for _ in range(20)]
        await until(lambda: q.waiting)
        await async_queue.put_many([b"x"] * 5)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for item in found:
            if isinstance(item, sej.Item):
                item.give_back()
        assert tuple(q.stats().values())[:5] == (5, 0, 0, 0, 0)

    with Counting(tmp_path, max_attempts=1) as q:
        asyncio.run(main(q))
        assert {item.attempts for item in q.get_many(9, timeout=0)} == {1}


def test_a_put_that_is_cancelled_while_it_waits_for_room_puts_nothing(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async_queue = sej.AsyncQueue(q)
        await async_queue.put(b"first")
        waiting = [asyncio.ensure_future(async_queue.put(b"second")) for _ in range(2)]
        await until(lambda: q.puts >= 4)  # one has tried twice, and waits for its third time
        for task in waiting:
            task.cancel()
        for task in waiting:
            with pytest.raises(asyncio.CancelledError):
                await task

    with Counting(tmp_path, maxsize=1) as q:
        in_time(lambda: asyncio.run(main(q)))  # ends its threads, too
        assert values(q) == [b"first"]
        assert tuple(q.stats().values())[:5] == (0, 0, 0, 1, 0)


def test_a_put_waits_for_room_without_holding_up_the_loop(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async_queue = sej.AsyncQueue(q)
        await async_queue.put(b"first")
        with pytest.raises(sej.QueueFullError):
            await async_queue.put(b"late", timeout=0.01)
        with pytest.raises(sej.QueueFullError, match="never fit"):
            await async_queue.put_many([b"a", b"b"])
        waiting = [asyncio.ensure_future(async_queue.put(b"%d" % number)) for number in range(3)]
        with pytest.raises(sej.QueueFullError):
            await async_queue.put(b"late", timeout=0.01)
        for _ in waiting:
            item = await async_queue.get()
            assert item is not None
            await async_queue.done(item)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting = [task for task in waiting if not task.done()]

    with Counting(tmp_path, maxsize=1) as q:
        asyncio.run(main(q))
        assert len(values(q)) == 1


def test_an_item_may_be_ended_by_async_with(tmp_path: Path) -> None:
    async def main(q: Counting) -> None:
        async_queue = sej.AsyncQueue(q)
        await async_queue.put_many([b"good", b"bad"])
        for _ in range(2):
            item = await async_queue.get()
            assert item is not None
            with contextlib.suppress(KeyError):
                async with item:
                    if item.value == b"bad":
                        raise KeyError
        assert list((await async_queue.stats()).values()) == [0, 1, 0, 1, 0, 0]

    with Counting(tmp_path) as q:
        asyncio.run(main(q))
