"""The worker loop: every item is ended, leases are kept, a stop is graceful, and each failure is one line."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import until


@pytest.fixture
def q(tmp_path: Path) -> Iterator[JournalQueue]:
    with opened(tmp_path / "q", FakeClock(), max_attempts=2) as queue:
        yield queue


def test_every_item_is_handled_and_done(q: JournalQueue) -> None:
    q.put_many([b"%d" % n for n in range(50)])
    seen: list[bytes] = []
    assert sej.work(q, lambda item: seen.append(item.value), threads=3, until_empty=True) == 50
    assert sorted(seen, key=int) == [b"%d" % n for n in range(50)]
    assert q.stats() == (0, 0, 0, 50, 0)


def test_a_failure_is_a_retry_and_one_line(q: JournalQueue, caplog: pytest.LogCaptureFixture) -> None:
    q.put_many([b"bad", b"good"])

    def handle(item: sej.Item) -> None:
        if item.value == b"bad":
            raise ValueError("two\nlines")

    with caplog.at_level(logging.WARNING, "sej.worker"):
        assert sej.work(q, handle, until_empty=True) == 1
        assert q.stats()[:4] == (0, 1, 0, 1)
        q._clock.move(3)  # type: ignore[attr-defined]
        assert sej.work(q, handle, until_empty=True) == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{q.path}: attempt {n} of item 0 failed: ValueError: two lines" for n in (1, 2)
    ]
    (dead,) = q.items("dead")
    assert dead.reason == "ValueError: two\nlines"


def test_a_handler_may_end_its_item(q: JournalQueue) -> None:
    q.put_many([b"a", b"b"])
    sej.work(q, lambda item: item.fail("no") if item.value == b"a" else item.retry(60), until_empty=True)
    assert q.stats() == (0, 1, 0, 0, 1)


def test_a_lease_is_extended_while_the_handler_runs(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, lease_s=0.3) as q, sej.open_queue(tmp_path) as other:
        q.put(b"slow")
        extended = threading.Event()

        def handle(item: sej.Item) -> None:
            first = other.items("leased")[0].ready_at
            assert first is not None
            until(lambda: (later := other.items("leased")[0].ready_at) is not None and later > first + 300_000_000)
            assert other.get(timeout=0) is None
            extended.set()

        assert sej.work(q, handle, until_empty=True) == 1
        assert extended.is_set()


def test_after_the_time_limit_an_item_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    late = threading.Event()
    with sej.open_queue(tmp_path) as q, caplog.at_level(logging.WARNING, "sej.worker"):
        q.put(b"slow")
        sej.work(
            q,
            lambda _: late.wait(60),
            until_empty=True,
            time_limit_s=0.01,
            on_time_limit=lambda _: late.set(),
        )
        assert q.stats()[:4] == (0, 1, 0, 0)
    assert "reached its time limit of 0.01 s" in caplog.text


def test_a_stop_finishes_the_item_in_hand(q: JournalQueue) -> None:
    stop = threading.Event()
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

    with sej.open_queue(tmp_path) as q:
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


    q.put_many([b"a", b"b"])
    assert sej.work(q, lambda _: stop.set(), stop=stop) == 1
    assert q.stats()[:4] == (1, 0, 0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_item_in_hand(q: JournalQueue, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    q.put_many([b"a", b"b"])
    assert sej.work(q, lambda _: os.kill(os.getpid(), number)) == 1
    assert q.stats()[:4] == (1, 0, 0, 1)
    assert signal.getsignal(number) is before


def test_an_interrupt_in_the_handler_gives_the_item_back(q: JournalQueue) -> None:
    q.put(b"a")

    def handle(_: sej.Item) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        sej.work(q, handle)
    (item,) = q.items()
    assert (item.state, item.attempts) == ("ready", 0)


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
