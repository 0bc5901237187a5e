"""The asyncio API: it waits without blocking the loop, shares syncs, and loses nothing when a task is cancelled."""

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
import sej.aio
from tests.crash.disk import CrashDisk

pytestmark = pytest.mark.either_codec


def test_what_is_awaited_is_read_back_in_order(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with sej.aio.Writer(tmp_path) as w:
            offsets = await asyncio.gather(*(w.append(b"%d" % n, b"k", 3, n) for n in range(100)))
            assert offsets == list(range(100))
            assert await w.append_many([b"x", b"y"]) == range(100, 102)
            with pytest.raises(sej.ConflictError):
                await w.append(b"late", expect_offset=100)
            assert await w.append(b"z", expect_offset=102) == 102
        async with sej.aio.Scanner(tmp_path) as s:
            return [message.value async for message in s]

    assert asyncio.run(main()) == [b"%d" % n for n in range(100)] + [b"x", b"y", b"z"]


def test_appends_that_wait_together_share_syncs() -> None:
    disk = CrashDisk()

    async def main() -> None:
        async with sej.aio.Writer("/j", durability="disk", disk=disk) as w:
            before = sum(what == "sync" for what, _ in disk.trace)
            await asyncio.gather(*(w.append(b"v") for _ in range(200)))
            assert w.writer.durable_offset == 200
            assert sum(what == "sync" for what, _ in disk.trace) - before < 20

    asyncio.run(main())


def test_an_invalid_append_does_not_stop_the_others(tmp_path: Path) -> None:
    released = memoryview(b"v")
    released.release()

    async def main() -> list[object]:
        async with sej.aio.Writer(tmp_path) as w:
            appends = w.append(b"a"), w.append(b"b", b"k" * 128), w.append(released), w.append(b"c")
            return list(await asyncio.gather(*appends, return_exceptions=True))

    first, *wrong, last = asyncio.run(main())
    assert (first, last) == (0, 1)
    assert list(map(type, wrong)) == [sej.InvalidMessageError, ValueError]


def test_a_scanner_follows_while_the_loop_runs(tmp_path: Path) -> None:
    """It waits in a thread of its own: the loop's only one is free for appends."""

    async def main() -> list[bytes]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with sej.aio.Writer(tmp_path) as w, sej.aio.Scanner(tmp_path, timeout=None) as s:
            found: list[bytes] = []

            async def follow() -> None:
                async for message in s:
                    found.append(message.value)
                    if len(found) == 3:
                        return

            following = asyncio.ensure_future(follow())
            for value in (b"a", b"b", b"c"):
                await asyncio.sleep(0)  # it waits now
                await asyncio.wait_for(w.append(value), 60)
            await asyncio.wait_for(following, 60)
            return found

    assert asyncio.run(main()) == [b"a", b"b", b"c"]


def test_a_cancelled_read_takes_no_message_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with sej.aio.Writer(tmp_path) as w, sej.aio.Scanner(tmp_path, timeout=None) as s:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(s.read(), 0.01)
            await w.append(b"a")
            reading = asyncio.ensure_future(s.read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert [message.value for message in await s.read()] == [b"a"]

    asyncio.run(main())


def test_what_a_loop_left_half_way_comes_with_the_next(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with sej.aio.Writer(tmp_path) as w:
            await w.append_many([b"v"] * 10)
        found: list[int] = []
        async with sej.aio.Scanner(tmp_path) as s:
            async for message in s:
                found.append(message.offset)
                break
            assert s.offset == 1
            found += [message.offset for message in await s.read(2)]
            found += [message.offset async for message in s]
        return found

    assert asyncio.run(main()) == list(range(10))


def test_a_loop_that_ends_closes_its_writers(tmp_path: Path) -> None:
    async def main() -> None:
        async def produce() -> None:
            async with sej.aio.Writer(tmp_path, durability="disk") as w:
                while True:
                    await w.append(b"v")
                    appended.set()

        appended = asyncio.Event()
        producing = asyncio.ensure_future(produce())
        await appended.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does at its end
            task.cancel()
        await asyncio.wait([producing])
        assert producing.cancelled()
        sej.Writer(tmp_path).close()

    asyncio.run(main())


def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        with sej.Writer(tmp_path):
            opening = asyncio.ensure_future(sej.aio.Writer(tmp_path, lock_timeout=None).open())
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    sej.Writer(tmp_path).close()


def test_a_writer_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(sej.ClosedError, match="async with"):
        asyncio.run(sej.aio.Writer(tmp_path).append(b"a"))


def test_closing_ends_though_tasks_keep_appending(tmp_path: Path) -> None:
    async def main() -> int:
        writer = await sej.aio.Writer(tmp_path).open()
        tasks: list[asyncio.Task[int]] = []

        async def serve() -> None:
            while True:  # an append waits at every moment
                tasks.append(asyncio.create_task(writer.append(b"order")))
                await asyncio.sleep(0)

        serving = asyncio.create_task(serve())
        await writer.append(b"the first order")
        async with asyncio.timeout(60):
            await writer.close()
        serving.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if not isinstance(result, int)]
        assert all(isinstance(result, sej.ClosedError) for result in refused)
        return 1 + len(results) - len(refused)

    assert asyncio.run(main()) == sej.Journal(tmp_path).end_offset
