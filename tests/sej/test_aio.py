"""The asyncio API: it waits without blocking the loop, shares syncs, and loses nothing when a task is cancelled."""

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sej
import sej.aio
from tests.crash.disk import CrashDisk
from tests.sej.support import write

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


# --- offsets and consumers


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of ten messages."""
    write(tmp_path / "j", [b"%d" % n for n in range(10)])
    return tmp_path / "j"


def _run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a test's coroutine; a run that hangs fails."""

    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await main()

    return asyncio.run(limited())


def test_an_offset_is_kept(journal: Path) -> None:
    async def main() -> None:
        async with sej.aio.Offset(journal, "r") as offset:
            assert offset.value == 0
            await offset.commit(7)
            await offset.commit(3)
            assert offset.value == 7
            await offset.reset(2)
            with pytest.raises(sej.OffsetBeyondEndError):
                await offset.commit(11)
        assert sej.read_offset(journal, "r") == 2
        with pytest.raises(sej.ClosedError):
            await offset.commit(8)

    _run(main)


def test_an_offset_has_the_errors_of_the_blocking_one(journal: Path) -> None:
    async def main() -> None:
        async with sej.aio.Offset(journal, "r"):
            with pytest.raises(sej.LockedError):
                await sej.aio.Offset(journal, "r").open()
        with pytest.raises(sej.ClosedError, match="async with"):
            await sej.aio.Offset(journal, "r").commit(1)
        with pytest.raises(sej.JournalNotFoundError):
            await sej.aio.Offset(journal / "missing", "r").open()

    _run(main)
    with pytest.raises(sej.InvalidNameError):
        sej.aio.Offset(journal, "a/b")
    with pytest.raises(TypeError, match="an offset has no option 'beyond'; did you mean 'beyond_end'"):
        sej.aio.Offset(journal, "r", beyond="rewind")


@pytest.mark.parametrize("opens", [True, False])
def test_an_offset_whose_opening_or_closing_is_cancelled_is_released(journal: Path, opens: bool) -> None:
    async def main() -> None:
        offset = sej.aio.Offset(journal, "r")
        if not opens:
            await offset.open()
        cancelled = asyncio.ensure_future(offset.open() if opens else offset.close())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    _run(main)  # waits for all threads
    sej.Offset(journal, "r").close()


def test_a_handler_runs_in_the_loop_and_in_order(journal: Path) -> None:
    found: list[tuple[int, bool]] = []

    async def handle(message: sej.Message) -> None:
        await asyncio.sleep(0)
        found.append((message.offset, threading.current_thread() is threading.main_thread()))

    assert _run(lambda: sej.aio.Consumer(journal, "r", timeout=0.0).run(handle)) == 10
    assert found == [(n, True) for n in range(10)]
    assert sej.read_offset(journal, "r") == 10


def test_batches_are_handled(journal: Path) -> None:
    sizes: list[int] = []

    async def handle(batch: list[sej.Message]) -> None:
        sizes.append(len(batch))

    consumer = sej.aio.Consumer(journal, "r")
    assert _run(lambda: consumer.run_batches(handle, batch_messages=4, timeout=0.0)) == 10
    assert sizes == [4, 4, 2]


def test_a_failed_message_is_tried_again_and_becomes_a_dead_letter(journal: Path, tmp_path: Path) -> None:
    attempts: list[int] = []

    async def handle(message: sej.Message) -> None:
        if message.offset == 3:
            attempts.append(3)
            raise ValueError("no")

    dead = tmp_path / "dead"
    consumer = sej.aio.Consumer(journal, "r", timeout=0.0, max_attempts=3, dead_letter=dead, backoff_s=0.0)
    assert _run(lambda: consumer.run(handle)) == 10
    assert attempts == [3, 3, 3]
    assert [(letter.message.offset, letter.reason) for letter in sej.dead_letters(dead)] == [(3, "ValueError: no")]


def test_a_message_whose_handler_exits_becomes_a_dead_letter(journal: Path, tmp_path: Path) -> None:
    async def handle(message: sej.Message) -> None:
        if message.offset == 3:
            sys.exit(3)

    async def main() -> int:
        reader = sej.aio.Consumer(journal, "r", max_attempts=2, dead_letter=tmp_path / "dead", timeout=0.0)
        return await reader.run(handle)

    for _ in range(3):  # one before notes were taken
        with pytest.raises(SystemExit):
            _run(main)
    assert _run(main) == 7
    (letter,) = sej.dead_letters(tmp_path / "dead")
    assert (letter.message.offset, letter.attempts) == (3, 2)


def test_a_cancelled_run_cancels_the_handler_and_counts_no_attempt(journal: Path) -> None:
    async def main() -> None:
        at_three = asyncio.Event()
        ended: list[int] = []

        async def handle(message: sej.Message) -> None:
            if message.offset == 3:
                at_three.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(message.offset)

        consumer = sej.aio.Consumer(journal, "r", max_attempts=1)
        running = asyncio.ensure_future(consumer.run(handle))
        await at_three.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [3]
        assert sej.read_offset(journal, "r") == 3
        found: list[int] = []

        async def note(message: sej.Message) -> None:
            found.append(message.offset)

        assert await consumer.run(note, timeout=0.0) == 7, "the same consumer runs again"
        assert found == list(range(3, 10))

    _run(main)


def test_a_handler_that_is_not_a_coroutine_function_is_refused(journal: Path) -> None:
    def handle(_: sej.Message) -> None:
        pass

    with pytest.raises(TypeError, match="handler must be a coroutine function, but it returned None"):
        _run(lambda: sej.aio.Consumer(journal, "r", max_attempts=1).run(handle))  # type: ignore[arg-type]
    assert sej.read_offset(journal, "r") in (None, 0)


def test_a_handler_stops_its_consumer(journal: Path) -> None:
    async def main() -> None:
        consumer = sej.aio.Consumer(journal, "r")

        async def handle(message: sej.Message) -> None:
            if message.offset == 4:
                consumer.stop()

        assert await consumer.run(handle) == 5
        assert sej.read_offset(journal, "r") == 5

    _run(main)
