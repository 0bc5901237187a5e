"""The worker loop: every item is ended, leases are kept, a stop is graceful, and each failure is one line."""

import asyncio
import errno
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalItem, JournalQueue
from tests.queue.support import FakeClock, opened, take
from tests.sej.hooks import until


@pytest.fixture
def q(tmp_path: Path) -> Iterator[JournalQueue]:
    with opened(tmp_path / "q", FakeClock(), max_attempts=2, backoff_s=0.0) as queue:
        yield queue


def test_every_item_is_handled_and_done(q: JournalQueue) -> None:
    q.put_many([b"%d" % n for n in range(50)])
    seen: list[bytes] = []
    assert sej.work(q, lambda item: seen.append(item.value), threads=3, until_empty=True) == 50
    assert sorted(seen, key=int) == [b"%d" % n for n in range(50)]
    assert tuple(q.stats().values())[:5] == (0, 0, 0, 50, 0)


@pytest.mark.parametrize("threads", [0, 1_001])
def test_too_many_threads_are_refused(q: JournalQueue, threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads must be 1 to 1000, got {threads}"):
        sej.work(q, lambda _: None, threads=threads, until_empty=True)


def test_a_failure_is_a_retry_and_one_line(q: JournalQueue, caplog: pytest.LogCaptureFixture) -> None:
    q.put_many([b"bad", b"good"])

    def handle(item: sej.Item) -> None:
        if item.value == b"bad":
            raise ValueError("two\nlines")

    with caplog.at_level(logging.WARNING, "sej.worker"):
        assert sej.work(q, handle, until_empty=True) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{q.path}: attempt {n} of item 0 failed: ValueError: two lines" for n in (1, 2)
    ]
    (dead,) = q.items("dead")
    assert dead.reason == "ValueError: two\nlines"


def test_the_log_and_the_dead_letter_have_the_traceback(q: JournalQueue, caplog: pytest.LogCaptureFixture) -> None:
    def helper() -> None:
        raise ValueError("é" * 3000)

    def handle(_: sej.Item) -> None:
        try:
            helper()
        except ValueError as error:
            raise KeyError("x") from error

    q.put(b"bad")
    with caplog.at_level(logging.WARNING, "sej.worker"):
        sej.work(q, handle, until_empty=True)
    assert "in helper" in caplog.text
    (dead,) = q.items("dead")
    assert dead.reason == "KeyError: 'x'"
    assert "in handle" in dead.traceback and dead.traceback.endswith("\nKeyError: 'x'\n")
    (letter,) = sej.dead_letters(q.dead_letter)
    assert letter.traceback == dead.traceback
    assert 4000 < len(letter.traceback.encode()) <= 4096


def test_a_handler_whose_call_runs_nothing_ends_no_item(q: JournalQueue, caplog: pytest.LogCaptureFixture) -> None:
    async def later(_: sej.Item) -> None:
        """Not reached."""

    def each(_: sej.Item) -> Iterator[None]:
        yield

    class Callable:
        async def __call__(self, item: sej.Item) -> None:
            """Not reached."""

    q.put(b"a")
    for handler in (later, functools.partial(later), each, Callable()):
        with pytest.raises(TypeError, match=r"handler must be a function without `(async|yield)`"):
            sej.work(q, handler, until_empty=True)
    with caplog.at_level(logging.WARNING, "sej.worker"):
        assert sej.work(q, lambda item: later(item), until_empty=True) == 0
    assert tuple(q.stats().values())[:5] == (0, 0, 0, 0, 1)
    assert "the handler returned a coroutine" in caplog.text


def test_a_handler_may_end_its_item(q: JournalQueue) -> None:
    q.put_many([b"a", b"b"])
    stop = threading.Event()

    def handle(item: sej.Item) -> None:
        if item.value == b"a":
            item.fail("no")
        else:
            item.retry(60)
            stop.set()

    assert sej.work(q, handle, stop=stop) == 2
    assert tuple(q.stats().values())[:5] == (0, 1, 0, 0, 1)


def test_until_empty_waits_for_a_retry_and_for_an_item_of_another_worker(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path / "q", clock) as q, opened(tmp_path / "q", clock) as other:
        q.put_many([b"held", b"retried"])
        held = take(other)

        def handle(item: sej.Item) -> None:
            if item.attempts == 1:
                item.retry(60)
                clock.move(61)
                held.retry(0)

        assert sej.work(q, handle, until_empty=True) == 3
        assert tuple(q.stats().values())[:5] == (0, 0, 0, 2, 0)


def test_until_empty_leaves_a_queue_that_is_paused(q: JournalQueue) -> None:
    q.put(b"later", delay_s=60)
    q.pause()
    assert sej.work(q, lambda _: None, until_empty=True) == 0
    assert q.stats().delayed == 1


def test_a_lease_is_extended_while_the_handler_runs(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock, lease_s=0.3) as q, opened(tmp_path, clock) as other:
        q.put(b"slow")

        def ends_at() -> int:
            (leased,) = other.items("leased")
            assert leased.ready_at is not None
            return leased.ready_at

        def handle(item: sej.Item) -> None:
            for _ in range(3):
                before = ends_at()
                clock.move(0.2)
                until(lambda: ends_at() > before)  # noqa: B023
            assert other.get(timeout=0) is None

        assert sej.work(q, handle, until_empty=True) == 1


def test_after_the_time_limit_an_item_is_retried(q: JournalQueue, caplog: pytest.LogCaptureFixture) -> None:
    late, stop = threading.Event(), threading.Event()

    def on_time_limit(_: sej.Item) -> None:
        stop.set()
        late.set()

    with caplog.at_level(logging.WARNING, "sej.worker"):
        q.put(b"slow")
        sej.work(
            q,
            lambda _: late.wait(60),
            stop=stop,
            time_limit_s=0.01,
            on_time_limit=on_time_limit,
        )
        assert tuple(q.stats().values())[:4] == (1, 0, 0, 0)
    assert "reached its time limit of 0.01 s" in caplog.text


def test_the_next_limit_is_kept_although_on_time_limit_waits_and_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: raised.append(failed.exc_value))
    failure = RuntimeError("no")
    late = {b"a": threading.Event(), b"b": threading.Event()}

    def on_time_limit(item: sej.Item) -> None:
        late[item.value].set()
        assert late[b"b"].wait(60)
        raise failure

    with opened(tmp_path / "q", FakeClock(), max_attempts=1) as q:
        q.put_many([b"a", b"b"])
        sej.work(
            q,
            lambda item: late[item.value].wait(60),
            until_empty=True,
            time_limit_s=0.05,
            on_time_limit=on_time_limit,
        )
    assert all(event.is_set() for event in late.values())
    until(lambda: raised == [failure, failure])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_item_in_hand(q: JournalQueue, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    q.put_many([b"a", b"b"])
    assert sej.work(q, lambda _: os.kill(os.getpid(), number)) == 1
    assert tuple(q.stats().values())[:4] == (1, 0, 0, 1)
    assert signal.getsignal(number) is before


STOPS = """
import os, sys, threading, sej

def handle(item):
    os.write(1, b"begun\\n")
    stop.wait()
    os.write(1, b"stopping\\n")
    if item.value != b"main" or threading.current_thread() is not threading.main_thread():
        threading.Event().wait()

stop = threading.Event()
with sej.open_queue(sys.argv[1]) as q:
    sej.work(q, handle, threads=2, stop=stop)
"""


@pytest.mark.parametrize("value", [b"main", b"each"])
def test_a_second_interrupt_does_not_wait_for_the_handlers(tmp_path: Path, value: bytes) -> None:
    """The thread that gets the signal waits for another thread, or runs a handler itself."""
    with sej.open_queue(tmp_path / "two") as two:
        two.put_many([value, value])
    words = [sys.executable, "-c", STOPS, str(tmp_path / "two")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            for line in (b"begun\n", b"stopping\n"):
                assert [process.stdout.readline() for _ in range(2)] == [line] * 2
                process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()
    with sej.open_queue(tmp_path / "two") as two:
        assert two.stats().leased == 0


def test_an_interrupt_in_the_handler_gives_the_item_back(q: JournalQueue) -> None:
    q.put(b"a")

    def handle(_: sej.Item) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sej.work(q, handle)
    (item,) = q.items()
    assert (item.state, item.attempts) == ("ready", 0)


def test_leases_are_extended_again_after_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    again = threading.Event()

    def extend(_: sej.Item, lease_s: float) -> None:
        calls.append(lease_s)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        again.set()

    monkeypatch.setattr(JournalItem, "extend", extend)
    with opened(tmp_path / "q", FakeClock(), lease_s=0.03) as q:
        q.put(b"a")
        assert sej.work(q, lambda _: again.wait(60), until_empty=True) == 1
    assert again.is_set()


class PanicError(BaseException):
    """An extension in Rust that panics raises such an exception, again for each new worker."""


@pytest.mark.parametrize(("raised", "reason"), [(SystemExit(3), "SystemExit: 3"), (PanicError("x"), "PanicError: x")])
def test_an_item_that_ends_its_worker_is_a_dead_letter_in_the_end(
    tmp_path: Path, raised: BaseException, reason: str
) -> None:
    def handle(item: sej.Item) -> None:
        if item.value == b"bad":
            raise raised

    with sej.open_queue(tmp_path / "q", max_attempts=2, backoff_s=0.0) as q:
        q.put_many([b"bad", b"good"])
        for _ in range(2):
            with pytest.raises(type(raised)):
                sej.work(q, handle, until_empty=True)
        assert sej.work(q, handle, until_empty=True) == 1
        (dead,) = q.items("dead")
        assert (dead.value, dead.attempts, dead.reason) == (b"bad", 2, reason)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_item_whose_coroutine_was_cancelled_fails_and_the_others_are_handled(tmp_path: Path, threads: int) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0)
        task.cancel()
        await task

    def handle(item: sej.Item) -> None:
        if item.value == b"cancelled":
            asyncio.run(cancelled())

    with sej.open_queue(tmp_path / "q", max_attempts=2, backoff_s=0.0) as q:
        q.put_many([b"cancelled", b"good"])
        assert sej.work(q, handle, threads, until_empty=True) == 1
        (dead,) = q.items("dead")
        assert (dead.value, dead.attempts, dead.reason) == (b"cancelled", 2, "CancelledError: ")


def test_it_ends_when_the_queue_is_closed(q: JournalQueue) -> None:
    q.put(b"a")
    handled = threading.Event()
    worker = threading.Thread(target=sej.work, args=(q, lambda _: handled.set()))
    worker.start()
    assert handled.wait(60)
    until(lambda: q.stats().done == 1)
    q.close()
    worker.join(60)
    assert not worker.is_alive()


@pytest.mark.parametrize("backend", ["textqueue", "kestrel", "libkestrel"])
def test_any_backend_will_do(backend: str, tmp_path: Path) -> None:
    name = "jobs.tq" if backend == "textqueue" else "jobs"
    with sej.open_queue(tmp_path / name, backend=backend) as q:
        q.put_many([b"a", b"b"])
        assert sej.work(q, lambda _: None, threads=2, until_empty=True) == 2
        assert q.stats().done == 2
