"""The one suite that any backend passes, the table of what each can and cannot, and durations as text."""

import threading
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.queue.interface.queue import BACKENDS, CAPABILITIES
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import FakeClock, take

ROOT = Path(__file__).parent.parent.parent
PATHS = {"journal": "jobs", "textqueue": "jobs.tq", "kestrel": "jobs", "libkestrel": "jobs"}
_JOURNAL_ONLY = {"keys", "headers", "delay", "priority", "dedupe", "maxsize", "extend", "deadline",
                 "requeue", "cancel", "look", "pause", "max_bytes", "order", "concurrency", "rate",
                 "results", "schedules", "limit"}  # fmt: skip
NOT: dict[str, set[str]] = {
    "textqueue": {*_JOURNAL_ONLY, "expire", "purge"} - {"extend", "deadline"},
    "kestrel": {*_JOURNAL_ONLY, "retry_delay", "processes"},
    "libkestrel": {*_JOURNAL_ONLY, "retry_delay", "processes"},
    "journal": set(),
}


def open_backend(backend: str, folder: Path, **options: Any) -> sej.WorkQueue:
    return sej.open_queue(folder / PATHS[backend], "worker", backend=backend, **options)


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def q(backend: str, tmp_path: Path) -> Iterator[sej.WorkQueue]:
    with open_backend(backend, tmp_path) as queue:
        yield queue


def test_entry_points_name_the_same_backends() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["entry-points"]["sej.backends"] == BACKENDS


def test_the_table_is_true(backend: str, q: sej.WorkQueue) -> None:
    assert set(CAPABILITIES) - q.can == NOT[backend]


def test_in_order_and_once(q: sej.WorkQueue) -> None:
    q.put(b"0")
    q.put_many([b"1", b"2", b"3"])
    found = [take(q), *q.get_many(2, timeout=0)]
    assert [item.value for item in found] == [b"0", b"1", b"2"]
    assert [item.attempts for item in found] == [1, 1, 1]
    assert len(q) == 1
    q.done_many(found)
    assert [(item.value, item.done()) for item in q] == [(b"3", None)]
    assert q.get(timeout=0) is None
    assert tuple(q.stats().values())[:5] == (0, 0, 0, 4, 0)


def test_an_item_that_was_given_back_is_delivered_again(q: sej.WorkQueue) -> None:
    q.put(b"job")
    take(q).retry(0)
    again = take(q)
    assert (again.value, again.attempts) == (b"job", 2)
    with pytest.raises(KeyError), again:
        raise KeyError
    assert tuple(q.stats().values())[:3] in ((1, 0, 0), (0, 1, 0))


def test_attempts_run_out_and_redrive_delivers_dead_letters_again(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path, max_attempts=2) as q:
        q.put(b"job")
        take(q).retry(0, "first")
        take(q).retry(0, "second")
        assert q.get(timeout=0) is None
        assert q.stats().dead == 1
        assert q.redrive() == 1
        assert q.stats().dead == 0
        assert take(q).value == b"job"


def test_fail(q: sej.WorkQueue) -> None:
    q.put(b"job")
    item = take(q)
    item.fail(ValueError("why"))
    assert tuple(q.stats().values())[:5] == (0, 0, 0, 0, 1)
    with pytest.raises(TypeError, match="reason must be a str or an exception, got 3"):
        item.retry(reason=3)
    with pytest.raises(sej.LeaseLostError):
        item.done()


def test_held_items_are_delivered_again_after_reopening(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path) as q:
        q.put_many([b"a", b"b", b"c"])
        take(q)
        take(q).done()
    with open_backend(backend, tmp_path) as q:
        assert sorted(item.value for item in q) == [b"a", b"c"]


def test_a_waiting_thread_is_woken(q: sej.WorkQueue) -> None:
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(q.get(timeout=30)))
    waiter.start()
    q.put(b"job")
    waiter.join(30)
    assert found[0].value == b"job"


def test_threads_share_it(q: sej.WorkQueue) -> None:
    q.put_many([b"%d" % n for n in range(200)])
    found: list[bytes] = []

    def work() -> None:
        while (item := q.get(timeout=0)) is not None:
            found.append(item.value)
            item.done()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=int) == [b"%d" % n for n in range(200)]


def test_serializers(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path, serializer="json") as q:
        q.put({"a": [1, "é"]})
        assert take(q).value == {"a": [1, "é"]}


def test_what_it_cannot_it_refuses(q: sej.WorkQueue) -> None:
    wishes: dict[str, Any] = {
        "keys": lambda: q.put(b"x", b"key"),
        "delay": lambda: q.put(b"x", delay_s=1),
        "priority": lambda: q.put(b"x", priority=1),
        "expire": lambda: q.put(b"x", expire_s=100),
        "dedupe": lambda: q.put(b"x", dedupe_key=b"1"),
        "purge": q.purge,
        "redrive": q.redrive,
        "requeue": lambda: q.requeue(0),
        "cancel": lambda: q.cancel(0),
        "look": lambda: (q.peek(), q.items()),
        "max_bytes": lambda: q.get_many(1, 0, max_bytes=10),
        "pause": q.pause,
    }
    for capability, wish in wishes.items():
        if capability in q.can:
            wish()
        else:
            with pytest.raises(sej.UnsupportedError, match=f"not support {capability}"):
                wish()


def test_purge(q: sej.WorkQueue) -> None:
    q.put_many([b"a", b"b"])
    if "purge" in q.can:
        assert q.purge() == 2
        assert q.get(timeout=0) is None


def test_claim_and_wait_empty(q: sej.WorkQueue) -> None:
    with q.claim() as item:
        assert item is None
    assert q.wait_empty(timeout=0)
    q.put(b"job")
    assert not q.wait_empty(timeout=0)
    with q.claim(timeout=0.0) as item:
        assert item is not None and item.value == b"job"
    assert q.wait_empty()


def test_the_adapter(q: sej.WorkQueue) -> None:
    import queue

    adapter = sej.QueueAdapter(q)
    adapter.put(b"job")
    assert adapter.qsize() == 1
    assert adapter.get() == b"job"
    adapter.task_done()
    adapter.join()
    with pytest.raises(queue.Empty):
        adapter.get_nowait()
    with pytest.raises(ValueError, match="called too often"):
        adapter.task_done()


def test_asyncio(q: sej.WorkQueue) -> None:
    import asyncio

    async def main() -> None:
        async_queue = sej.AsyncQueue(q)
        assert await async_queue.get(timeout=0) is None
        waiter = asyncio.ensure_future(async_queue.get())
        await async_queue.put(b"job")
        item = await waiter
        assert item is not None
        await async_queue.done(item)
        assert (await async_queue.stats()).done == 1

    asyncio.run(main())


def test_an_item_that_was_lost_is_not_held(tmp_path: Path) -> None:
    with open_backend("textqueue", tmp_path) as q:
        q.put(b"a")
        item = take(q)
        assert q.stats().leased == 1
        (tmp_path / "jobs.tq").write_bytes(b" other\n")  # a person threw it away
        with pytest.raises(sej.LeaseLostError):
            item.done()
        assert q.stats().leased == 0


def test_a_closed_queue_says_so_and_holds_nothing(backend: str, tmp_path: Path) -> None:
    q = open_backend(backend, tmp_path)
    q.put(b"job")
    item = take(q)
    q.close()
    for call in (q.stats, lambda: q.put(b"x"), lambda: q.get(timeout=0), q.redrive, lambda: len(q), item.fail):
        with pytest.raises((sej.ClosedError, sej.LeaseLostError)):
            call()
    with open_backend(backend, tmp_path) as other:
        take(other).fail()
        assert other.stats().dead == 1
        assert other.redrive() == 1


def test_a_directory_of_text_queues_is_opened_as_one_queue(tmp_path: Path) -> None:
    (tmp_path / "a.tq").write_bytes(b"-one\n")
    (tmp_path / "b.tq").write_bytes(b"-two\n")
    with sej.open_queue(tmp_path) as q:
        found = [q.get(timeout=0), q.get(timeout=0)]
        assert [item and item.value for item in found] == [b"one", b"two"]
        for item in found:
            assert item is not None
            item.done()
        q.put(b"three")
    assert (tmp_path / "a.tq").read_bytes() == b"#queue\n\\seq=000000000001\n=one\n"
    (tmp_path / "jnl").mkdir()
    with sej.open_queue(tmp_path) as q:
        assert type(q).__name__ == "JournalQueue"


def test_a_value_that_is_not_bytes_is_refused_by_every_backend(backend: str, q: sej.WorkQueue) -> None:
    for value in ("text", 3, None):
        with pytest.raises(TypeError, match="value must be bytes, got"):
            q.put(value)
        with pytest.raises(TypeError, match="value must be bytes, got"):
            q.put_many([b"one", value])
    assert q.stats().ready == 0
    q.put(bytearray(b"job"))
    assert take(q).value == b"job"


@pytest.mark.parametrize("value", [b"caf\xe9", b"ends with\r", b"a\r\nb"])
def test_a_text_queue_refuses_what_its_format_cannot_store(tmp_path: Path, value: bytes) -> None:
    with open_backend("textqueue", tmp_path) as q, pytest.raises(sej.InvalidMessageError) as refused:
        q.put_many([b"fine", value])
    assert refused.value.path == str(tmp_path / "jobs.tq")
    assert not (tmp_path / "jobs.tq").exists()


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_misspelt_option_of_open_queue_is_recognised(backend: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"has no option 'serialiser'; did you mean 'serializer'\?"):
        open_backend(backend, tmp_path, serialiser="json")


def test_the_lease_of_a_text_queue_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lease_s must be more than 0 seconds, got 0"):
        open_backend("textqueue", tmp_path, lease_s=0)


# --- durations


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


def test_every_backend_takes_a_lease_as_text(backend: str, tmp_path: Path) -> None:
    with open_backend(backend, tmp_path, lease_s="1h") as q:
        q.put(b"a")
        item = q.get(timeout="1s")
        assert item is not None
        if "extend" in q.can:
            item.extend("2h")
        item.done()
        assert q.wait_empty("1s")


def test_what_is_not_a_duration_is_refused(tmp_path: Path) -> None:
    text = "delay_s must be a number of seconds, or a duration such as '90s', .* got 'soon'"
    with sej.open_queue(tmp_path / "q", "worker") as q, pytest.raises(ValueError, match=text):
        q.put(b"a", delay_s="soon")


def test_zero_as_text_does_not_need_what_a_backend_cannot_do(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "q.tq", "worker") as q:
        q.put(b"a", delay_s="0s")
        with pytest.raises(sej.UnsupportedError):
            q.put(b"b", delay_s="1s")
        assert len(q) == 1
