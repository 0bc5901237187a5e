"""Durations as text, in the calls of queues, scanners and consumers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sej
import sej.aio
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import FakeClock


def test_a_delay_ends_when_it_says(tmp_path: Path, clock: FakeClock) -> None:
    with JournalQueue(tmp_path, "q", clock=clock) as q:
        q.put(b"a", delay_s="1h30m")
        clock.move(5399)
        assert q.get(timeout="0s") is None
        clock.move(2)
        item = q.get(timeout="3s")
        assert item is not None
        item.retry(delay_s="5m")
        clock.move(299)
        assert q.get(timeout=0) is None
        clock.move(2)
        assert q.get(timeout=0) is not None


def test_every_number_of_seconds_may_be_a_timedelta(tmp_path: Path, clock: FakeClock) -> None:
    span = timedelta(milliseconds=10)
    with JournalQueue(tmp_path, "q", clock=clock, lease_s=timedelta(minutes=1), lock_timeout=span) as q:
        assert q.lease_s == 60.0
        q.put(b"a", delay_s=timedelta(seconds=3), expire_s=timedelta(days=1), timeout=span)
        assert q.get(span) is q.get(timedelta()) is None
        clock.move(3)
        item = q.get(span)
        assert item is not None
        item.extend(timedelta(minutes=2))
        item.retry(timedelta(hours=1))
        assert not q.wait_empty(span)
        with pytest.raises(ValueError, match=r"delay_s must be 0 seconds or more, got -1\.0"):
            q.put(b"b", delay_s=timedelta(seconds=-1))


@pytest.mark.parametrize("backend", ["journal", "textqueue", "kestrel", "libkestrel"])
def test_every_backend_takes_a_lease_as_text(backend: str, tmp_path: Path) -> None:
    path = tmp_path / ("q.tq" if backend == "textqueue" else "q")
    with sej.open_queue(path, "worker", backend=backend, lease_s="1h") as q:
        q.put(b"a")
        item = q.get(timeout="1s")
        assert item is not None
        if "extend" in q.can:
            item.extend("2h")
        item.done()
        assert q.wait_empty("1s")


def test_a_wait_of_some_milliseconds_is_over(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "q", "worker") as q:
        calls: list[Callable[[], object]] = [
            lambda: q.get("0.01s"),
            lambda: q.get_many(3, timeout="0.01s"),
            lambda: asyncio.run(sej.AsyncQueue(q).get("0.01s")),
        ]
        assert [call() for call in calls] == [None, [], None]
        assert sej.work(q, print, until_empty=True, time_limit_s="1h") == 0
        sej.QueueAdapter(q).join("0.01s")
    with sej.Scanner(tmp_path / "q", timeout="0.01s") as scanner:
        assert scanner.timeout == 0.01
        assert list(scanner) == [] and scanner.read(timeout="0.01s") == []
    consumer = sej.Consumer(
        tmp_path / "q", "r", timeout="1h", backoff_s="1s", backoff_max_s="1m", commit_interval_s="1s"
    )
    assert consumer.run(print, timeout="0.01s") == 0
    assert asyncio.run(sej.aio.Consumer(tmp_path / "q", "r", timeout="0.01s").run(print)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"delay_s": "soon"},
            "delay_s must be a number of seconds, or a duration such as '90s', .* got 'soon'",
        ),
        ({"delay_s": "-1s"}, "delay_s must be a number of seconds, or a duration .* got '-1s'"),
        ({"expire_s": ""}, "expire_s must be a number of seconds, or a duration .* got ''"),
        ({"timeout": "1h x"}, "timeout must be a number of seconds, or a duration .* got '1h x'"),
    ],
    ids=str,
)
def test_what_is_not_a_duration_is_refused(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "q", "worker") as q:
        with pytest.raises(ValueError, match=text):
            q.put(b"a", **options)
        assert len(q) == 0


def test_zero_as_text_does_not_need_what_a_backend_cannot_do(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "q.tq", "worker") as q:
        q.put(b"a", delay_s="0s")
        with pytest.raises(sej.UnsupportedError):
            q.put(b"b", delay_s="1s")
        assert len(q) == 1
