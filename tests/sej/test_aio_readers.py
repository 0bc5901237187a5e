"""Offset and Consumer of the asyncio API: as the blocking ones, with nothing lost or held when a task is cancelled."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import sej
import sej.aio
from tests.sej.support import write

pytestmark = pytest.mark.either_codec


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
