"""The asyncio API: it waits without blocking the loop, shares syncs, and loses nothing when a task is cancelled."""

import asyncio
import gc
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
import sej.aio
from tests.crash.disk import CrashDisk
from tests.sej.support import write

pytestmark = pytest.mark.either_codec


async def test_what_is_awaited_is_read_back_in_order(tmp_path: Path) -> None:
    async with sej.aio.Writer(tmp_path) as w:
        offsets = await asyncio.gather(*(w.append(b"%d" % n, b"k", 3, n) for n in range(100)))
        assert offsets == list(range(100))
        assert await w.append_many([b"x", b"y"]) == range(100, 102)
        with pytest.raises(sej.ConflictError):
            await w.append(b"late", expect_offset=100)
        assert await w.append(b"z", expect_offset=102) == 102
    async with sej.aio.Scanner(tmp_path) as s:
        found = [message.value async for message in s]
    assert found == [b"%d" % n for n in range(100)] + [b"x", b"y", b"z"]


async def test_appends_that_wait_together_share_syncs() -> None:
    disk = CrashDisk()

    async with sej.aio.Writer("/j", durability="disk", disk=disk) as w:
        before = sum(what == "sync" for what, _ in disk.trace)
        await asyncio.gather(*(w.append(b"v") for _ in range(200)))
        assert w.writer.durable_offset == 200
        assert sum(what == "sync" for what, _ in disk.trace) - before < 20


async def test_an_invalid_append_does_not_stop_the_others(tmp_path: Path) -> None:
    released = memoryview(b"v")
    released.release()

    async with sej.aio.Writer(tmp_path) as w:
        appends = w.append(b"a"), w.append(b"b", b"k" * 128), w.append(released), w.append(b"c")
        first, *wrong, last = await asyncio.gather(*appends, return_exceptions=True)
    assert (first, last) == (0, 1)
    assert list(map(type, wrong)) == [sej.InvalidMessageError, ValueError]


async def test_a_scanner_follows_while_the_loop_runs(tmp_path: Path) -> None:
    """It waits in a thread of its own: the loop's only one is free for appends."""

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
            await w.append(value)
        await following
        assert found == [b"a", b"b", b"c"]


async def test_a_cancelled_read_takes_no_message_with_it(tmp_path: Path) -> None:
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


async def test_what_a_loop_left_half_way_comes_with_the_next(tmp_path: Path) -> None:
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
    assert found == list(range(10))


async def test_a_loop_that_ends_closes_its_writers(tmp_path: Path) -> None:
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


async def test_closing_ends_though_tasks_keep_appending(tmp_path: Path) -> None:
    writer = await sej.aio.Writer(tmp_path).open()
    tasks: list[asyncio.Task[int]] = []

    async def serve() -> None:
        while True:  # an append waits at every moment
            tasks.append(asyncio.create_task(writer.append(b"order")))
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    await writer.append(b"the first order")
    await writer.close()
    serving.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if not isinstance(result, int)]
    assert all(isinstance(result, sej.ClosedError) for result in refused)
    assert 1 + len(results) - len(refused) == sej.Journal(tmp_path).end_offset


# --- offsets and consumers


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of ten messages."""
    write(tmp_path / "j", [b"%d" % n for n in range(10)])
    return tmp_path / "j"


async def test_an_offset_is_kept(journal: Path) -> None:
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


async def test_an_offset_has_the_errors_of_the_blocking_one(journal: Path) -> None:
    async with sej.aio.Offset(journal, "r"):
        with pytest.raises(sej.LockedError):
            await sej.aio.Offset(journal, "r").open()
    with pytest.raises(sej.ClosedError, match="async with"):
        await sej.aio.Offset(journal, "r").commit(1)
    with pytest.raises(sej.JournalNotFoundError):
        await sej.aio.Offset(journal / "missing", "r").open()
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

    asyncio.run(main())  # waits for all threads
    sej.Offset(journal, "r").close()


async def test_a_handler_runs_in_the_loop_and_in_order(journal: Path) -> None:
    found: list[tuple[int, bool]] = []

    async def handle(message: sej.Message) -> None:
        await asyncio.sleep(0)
        found.append((message.offset, threading.current_thread() is threading.main_thread()))

    assert await sej.aio.Consumer(journal, "r", timeout=0.0).run(handle) == 10
    assert found == [(n, True) for n in range(10)]
    assert sej.read_offset(journal, "r") == 10


async def test_batches_are_handled(journal: Path) -> None:
    sizes: list[int] = []

    async def handle(batch: list[sej.Message]) -> None:
        sizes.append(len(batch))

    consumer = sej.aio.Consumer(journal, "r")
    assert await consumer.run_batches(handle, batch_messages=4, timeout=0.0) == 10
    assert sizes == [4, 4, 2]


async def test_a_failed_message_is_tried_again_and_becomes_a_dead_letter(journal: Path, tmp_path: Path) -> None:
    attempts: list[int] = []

    async def handle(message: sej.Message) -> None:
        if message.offset == 3:
            attempts.append(3)
            raise ValueError("no")

    dead = tmp_path / "dead"
    consumer = sej.aio.Consumer(journal, "r", timeout=0.0, max_attempts=3, dead_letter=dead, backoff_s=0.0)
    assert await consumer.run(handle) == 10
    assert attempts == [3, 3, 3]
    assert [(letter.message.offset, letter.reason) for letter in sej.dead_letters(dead)] == [(3, "ValueError: no")]


def test_a_message_whose_handler_exits_becomes_a_dead_letter(journal: Path, tmp_path: Path) -> None:
    async def handle(message: sej.Message) -> None:
        if message.offset == 3:
            sys.exit(3)

    reader = sej.aio.Consumer(journal, "r", max_attempts=2, dead_letter=tmp_path / "dead", timeout=0.0)
    for _ in range(3):  # one before notes were taken
        with pytest.raises(SystemExit):
            asyncio.run(reader.run(handle))
    assert asyncio.run(reader.run(handle)) == 7
    (letter,) = sej.dead_letters(tmp_path / "dead")
    assert (letter.message.offset, letter.attempts) == (3, 2)


async def test_a_cancelled_run_cancels_the_handler_and_counts_no_attempt(journal: Path) -> None:
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


async def test_a_handler_that_is_not_a_coroutine_function_is_refused(journal: Path) -> None:
    def handle(_: sej.Message) -> None:
        pass

    with pytest.raises(TypeError, match="handler must be a coroutine function, but it returned None"):
        await sej.aio.Consumer(journal, "r", max_attempts=1).run(handle)  # type: ignore[arg-type]
    assert sej.read_offset(journal, "r") in (None, 0)


async def test_a_handler_stops_its_consumer(journal: Path) -> None:
    consumer = sej.aio.Consumer(journal, "r")

    async def handle(message: sej.Message) -> None:
        if message.offset == 4:
            consumer.stop()

    assert await consumer.run(handle) == 5
    assert sej.read_offset(journal, "r") == 5
