"""Waiting for a journal that does not exist yet."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sej
import sej.aio
import sej.journal.directory
from sej.system.watch import Watch
from tests.cli.command import sej as command
from tests.cli.command import start
from tests.cli.inside import inside
from tests.sej.support import read_all, write

pytestmark = pytest.mark.either_codec


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a call waits for a journal."""
    begun = threading.Event()

    class Noted(Watch):
        def wait(self, timeout: float | None = None) -> bool:
            begun.set()
            return super().wait(timeout)

    monkeypatch.setattr("sej.system.watch.Watch", Noted)
    return begun


@pytest.mark.parametrize("offset", [sej.FIRST, sej.LAST, 0])
@pytest.mark.parametrize("folder", ["j", "missing/j", "."], ids=["missing", "parent missing", "empty directory"])
def test_a_scanner_reads_what_is_appended_to_a_journal_that_it_waited_for(
    offset: int, folder: str, waits: threading.Event, tmp_path: Path
) -> None:
    path = tmp_path / folder

    def read() -> list[bytes]:
        with sej.Scanner(path, offset, timeout=60, wait=True) as scanner:
            return [message.value for message in scanner.read(timeout="1m")]

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        assert waits.wait(60)
        assert not reading.done()
        with sej.Writer(path) as writer:
            writer.append(b"a")
            assert reading.result(60) == [b"a"]


def test_a_journal_that_exists_is_opened_as_without_waiting(tmp_path: Path) -> None:
    write(tmp_path, [b"a"])
    with sej.Scanner(tmp_path, sej.LAST, wait=True) as scanner:
        assert scanner.offset == 1
    assert [message.value for message in read_all(tmp_path, wait=True)] == [b"a"]


@pytest.mark.parametrize("timeout", [0.0, 0.02])
def test_a_journal_that_does_not_come_in_time_is_not_found(timeout: float, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(sej.JournalNotFoundError) as raised:
        sej.Scanner(tmp_path / "j", timeout=timeout, wait=True)
    assert raised.value.path == str(tmp_path / "j")
    assert time.monotonic() - begun >= timeout
    assert not (tmp_path / "j").exists()


def test_what_is_not_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "src").write_bytes(b"x")
    for name in ("file", "other"):
        with pytest.raises(sej.NotAJournalError):
            sej.Scanner(tmp_path / name, timeout=None, wait=True)


def test_a_journal_that_is_being_created_is_waited_for(
    waits: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sej.journal.directory, "_GRACE_S", 60.0)
    (tmp_path / "jnl.lck").touch()  # a writer may have created this much
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(_keep, tmp_path, sej.FIRST)
        assert waits.wait(60)
        (tmp_path / "jnl").mkdir()
        waits.clear()
        assert waits.wait(60), "its first offset is not known yet"
        with sej.Writer(tmp_path, first_offset=7):
            assert opening.result(60)[0] == 7


def test_a_journal_that_appears_without_a_segment_is_opened(waits: threading.Event, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(_keep, tmp_path, sej.FIRST)
        assert waits.wait(60)
        (tmp_path / "jnl").mkdir()
        assert opening.result(60)[0] == 0


def _keep(path: Path, default: sej.message.Start) -> list[int | None]:
    with sej.Offset(path, "r", default, wait=True, timeout="1m") as offset:
        return [offset.value, sej.read_offset(path, "r")]


async def _keep_async(path: Path, default: sej.message.Start) -> list[int | None]:
    async with sej.aio.Offset(path, "r", default, wait=True, timeout="1m") as offset:
        return [offset.value, sej.read_offset(path, "r")]


def _consume(path: Path, default: sej.message.Start) -> list[int | None]:
    found: list[int | None] = []
    consumer = sej.Consumer(path, "r", default=default, wait=True)

    def handle(message: sej.Message) -> None:
        found.extend((message.offset, sej.read_offset(path, "r")))
        consumer.stop()

    assert consumer.run(handle) == 1
    return found


async def _consume_async(path: Path, default: sej.message.Start) -> list[int | None]:
    found: list[int | None] = []
    consumer = sej.aio.Consumer(path, "r", default=default, wait=True)

    async def handle(message: sej.Message) -> None:
        found.extend((message.offset, sej.read_offset(path, "r")))
        consumer.stop()

    assert await consumer.run(handle) == 1
    return found


async def _read_async(path: Path, offset: sej.message.Start) -> list[int | None]:
    async with sej.aio.Scanner(path, offset, timeout="1m", wait=True) as scanner:
        return [(await scanner.read())[0].offset, 7]


Call = Callable[[Path, sej.message.Start], Any]


@pytest.mark.parametrize("default", [sej.FIRST, sej.LAST], ids=["first", "last"])
@pytest.mark.parametrize("call", [_keep, _keep_async, _consume, _consume_async, _read_async])
def test_the_first_message_of_a_journal_that_is_waited_for_is_new_and_kept(
    call: Call, default: sej.message.Start, waits: threading.Event, tmp_path: Path
) -> None:
    """If the default is the end, it is kept, so that a reader that is killed begins there again."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(called, call, tmp_path / "j", default)
        assert waits.wait(60)
        assert not waiting.done()
        with sej.Writer(tmp_path / "j", first_offset=7) as writer:
            writer.append_many([b"a", b"b"])
            first, kept = waiting.result(60)
            assert first == 7
            assert kept == 7 or default == sej.FIRST


def called(call: Call, *given: Any) -> Any:
    """What a function or a coroutine function returns."""
    found = call(*given)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def test_an_offset_of_a_journal_that_exists_is_as_without_waiting(tmp_path: Path) -> None:
    write(tmp_path, [b"a"])
    assert _keep(tmp_path, sej.LAST)[0] == asyncio.run(_keep_async(tmp_path, sej.LAST))[0] == 1


def test_a_consumer_that_waits_ends_at_its_timeout_or_a_stop(waits: threading.Event, tmp_path: Path) -> None:
    with pytest.raises(sej.JournalNotFoundError):
        sej.Consumer(tmp_path / "j", "r", wait=True).run(print, timeout="0.01s")
    with pytest.raises(sej.JournalNotFoundError):
        sej.Offset(tmp_path / "j", "r", wait=True, timeout=0.01)
    waits.clear()
    consumer = sej.Consumer(tmp_path / "j", "r", wait=True)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(consumer.run, print)
        assert waits.wait(60)
        consumer.stop()
        assert running.result(60) == 0


def test_a_wait_with_asyncio_is_cancelled(waits: threading.Event, tmp_path: Path) -> None:
    async def iterate() -> None:
        async for _ in sej.aio.Scanner(tmp_path / "j", timeout=None, wait=True):
            pass

    async def main() -> None:
        opening = sej.aio.Offset(tmp_path / "j", "r", wait=True).open
        consuming = partial(sej.aio.Consumer(tmp_path / "j", "r", wait=True).run, iterate)  # type: ignore[arg-type]
        for call in (iterate, opening, consuming):
            waits.clear()
            task = asyncio.ensure_future(call())
            assert await asyncio.to_thread(waits.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_an_asyncio_scanner_that_waits_is_opened_later(tmp_path: Path) -> None:
    scanner = sej.aio.Scanner(tmp_path / "j", timeout=0.01, wait=True)
    with pytest.raises(sej.ClosedError, match="not open"):
        _ = scanner.offset
    with pytest.raises(sej.JournalNotFoundError):
        asyncio.run(scanner.read())
    asyncio.run(scanner.close())
    with pytest.raises(TypeError, match="verify must be"):
        sej.aio.Scanner(tmp_path / "j", verify="yes", wait=True)


@pytest.mark.parametrize("words", [["follow", "--start", "0"], ["follow", "--reader", "r"], ["tail", "-f"]], ids=str)
def test_a_command_follows_a_journal_that_is_created_later(words: list[str], tmp_path: Path) -> None:
    with start(*words, "--wait", tmp_path / "j") as running:
        with sej.Writer(tmp_path / "j") as writer:
            writer.append_many([b"first", b"second"])
            assert running.stdout.readline().endswith(b"first\n")
            assert running.stdout.readline().endswith(b"second\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130


def test_a_worker_takes_items_from_a_queue_that_is_created_later(
    waits: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All messages are new then, so it needs no --create."""

    def append() -> None:
        waits.wait()
        write(tmp_path / "j", [b"job"])

    with ThreadPoolExecutor() as pool:
        appended = pool.submit(append)
        done = inside(monkeypatch, "queue", "get", "--timeout", "60s", "--wait", tmp_path / "j")
        appended.result()
    assert (done.code, done.out) == (0, b"job\n"), done.err
    missing = command("queue", "get", "--wait", "--timeout", "0.01", tmp_path / "missing")
    assert missing.returncode == command("tail", tmp_path / "missing").returncode
    assert not (tmp_path / "missing").exists()
    assert command("queue", "get", "--wait", tmp_path / "q.tq").returncode == 2


def test_a_command_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    done = command("follow", "--wait", "--timeout", "0.01", tmp_path / "j")
    missing = command("follow", "--timeout", "0.01", tmp_path / "j")
    assert done.returncode == missing.returncode != 0
    assert done.stderr == missing.stderr
    assert command("tail", "--wait", tmp_path / "j").returncode == 2
