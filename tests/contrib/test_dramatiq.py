"""dramatiq on work queues: what a broker of it does, and workers that are killed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import reload
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Middleware

import sej
from sej.contrib.dramatiq import SejBroker
from tests.contrib import dramatiq_app
from tests.contrib.killing import PLACE, Workers, forkserver
from tests.sej.hooks import until

JOIN_MS = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SejBroker]:
    found = SejBroker(tmp_path)
    dramatiq.set_broker(found)
    yield found
    found.close()


@contextmanager
def worker(broker: SejBroker, threads: int = 2) -> Iterator[None]:
    running = dramatiq.Worker(broker, worker_timeout=50, worker_threads=threads)
    running.start()
    try:
        yield
    finally:
        running.stop()


def actor(name: str, function: Callable[..., object], **options: object) -> Any:
    decorate: Any = dramatiq.actor
    return decorate(function, actor_name=name, queue_name="mail", **options)


def test_messages_are_sent_delayed_and_retried(broker: SejBroker) -> None:
    seen: list[str] = []

    def send(name: str) -> None:
        seen.append(name)
        if seen.count(name) < 3 and name == "flaky":
            raise ValueError(name)

    sending = actor("send", send, max_retries=5, min_backoff=1, max_backoff=2)
    sending.send("a")
    sending.send_with_options(args=("later",), delay=300)
    sending.send("flaky")
    with worker(broker):
        broker.join("mail", timeout=JOIN_MS)
    assert sorted(seen) == ["a", "flaky", "flaky", "flaky", "later"]
    assert seen[-1] == "later" or seen.index("later") > seen.index("a")


def test_a_message_that_is_rejected_is_a_dead_letter(broker: SejBroker, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no such flight")

    actor("fail", fail, max_retries=0).send()
    broker.enqueue(dramatiq.Message("mail", "unknown", (), {}, {}))
    with worker(broker):
        broker.join("mail", timeout=JOIN_MS)
    with sej.open_queue(tmp_path / "mail", "worker") as queue:
        queue.put(b"no JSON")
        assert sorted(item.reason.partition(":")[0] for item in queue.items("dead")) == ["ActorNotFound", "ValueError"]
        with worker(broker):
            until(lambda: queue.stats().dead == 3)


def test_a_worker_gets_the_highest_priority_first(broker: SejBroker) -> None:
    seen: list[int] = []
    urgent = actor("urgent", seen.append, broker_priority=3)
    plain = actor("plain", seen.append)
    for number in range(3):
        plain.send(number)
    plain.send_with_options(args=(10,), broker_priority=-3)
    urgent.send(20)
    with worker(broker, 1):
        broker.join("mail", timeout=JOIN_MS)
    assert seen == [20, 0, 1, 2, 10]
    with pytest.raises(ValueError, match="priority must be -3 to 3, got 9"):
        plain.send_with_options(args=(0,), broker_priority=9)


def test_a_consumer_has_no_more_messages_than_it_may(broker: SejBroker, tmp_path: Path) -> None:
    sending = actor("send", print)
    for number in range(3):
        sending.send(number)
    consumer = broker.consume("mail", prefetch=2, timeout=10)
    first, second = next(consumer), next(consumer)
    assert first is not None
    assert second is not None
    assert next(consumer) is None
    consumer.ack(first)
    third = next(consumer)
    assert third is not None
    assert [message.args for message in (first, second, third)] == [(0,), (1,), (2,)]
    consumer.requeue([second, third])
    with sej.open_queue(tmp_path / "mail", "worker") as queue:
        assert (queue.stats().ready, queue.stats().done) == (2, 1)
    broker.flush_all()
    assert next(consumer) is None


def test_what_a_stopped_worker_has_not_begun_is_returned(broker: SejBroker, tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        end.wait()

    waiting = actor("wait", wait)
    for _ in range(3):
        waiting.send()
    running = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    running.start()
    assert begun.wait(60)
    until(lambda: running.work_queue.qsize() == 1)  # it has two at a time
    threading.Timer(0.1, end.set).start()
    running.stop()
    with sej.open_queue(tmp_path / "mail", "worker") as queue:
        stats = queue.stats()
        assert (stats.leased, stats.ready + stats.done) == (0, 3)


def test_signals_and_errors(broker: SejBroker) -> None:
    seen: list[tuple[str, object]] = []

    class Seeing(Middleware):
        def after_declare_queue(self, broker: object, queue_name: str) -> None:
            seen.append(("declared", queue_name))

        def before_enqueue(self, broker: object, message: object, delay: object) -> None:
            seen.append(("enqueue", delay))

    broker.add_middleware(Seeing())
    sending = actor("send", print)
    sending.send_with_options(args=(1,), delay=100_000)
    assert seen == [("declared", "mail"), ("enqueue", 100_000)]
    assert (broker.get_declared_queues(), broker.get_declared_delay_queues()) == ({"mail"}, set())
    with pytest.raises(QueueJoinTimeout, match="queue 'mail' is not empty after 50 ms"):
        broker.join("mail", timeout=50)
    for call in (broker.join, broker.consume, broker.flush):
        with pytest.raises(QueueNotFound):
            call("other")
    with pytest.raises(sej.InvalidNameError, match="a queue's name"):
        broker.declare_queue("a/b")


def test_messages_of_killed_workers_are_delivered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    app = reload(dramatiq_app)
    names = {str(number) for number in range(150)}
    for name in names:
        app.send.send_with_options(args=(name,), delay=int(name) % 3 * 100)
    words = ("dramatiq", "tests.contrib.dramatiq_app", "-p", "2", "-t", "2")
    assert Workers(forkserver("dramatiq.cli", "sej.contrib.dramatiq"), tmp_path, *words).run(names, 6).keys() == names
    app.broker.close()
