"""A transport of kombu on work queues: what AMQP promises and kombu's virtual transports have."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

import sej
from sej.contrib import kombu as module
from tests.sej.hooks import until

EXCHANGE = Exchange("shop")
MAIL = Queue("mail", exchange=EXCHANGE, routing_key="mail")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sej://{tmp_path}/broker"


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with Connection(url) as found:
        yield found


def queue_of(tmp_path: Path, name: str = "mail") -> sej.WorkQueue:
    return sej.open_queue(tmp_path / "broker" / "queues" / name, "worker")


def publish(connection: Any, *bodies: object, queue: Any = MAIL, **options: object) -> None:
    producer = Producer(connection.channel(), queue.exchange)
    for body in bodies:
        producer.publish(body, routing_key=queue.routing_key, declare=[queue], **options)


def received(connection: Any, count: int, *queues: Any, ack: bool = True, **options: object) -> list[Any]:
    """The first messages of queues."""
    found: list[Any] = []

    def take(_: object, message: Any) -> None:
        found.append(message)
        if ack:
            message.ack()

    with Consumer(connection.channel(), list(queues or [MAIL]), callbacks=[take], **options):
        while len(found) < count:
            connection.drain_events(timeout=60)
    return found


def test_what_is_published_is_received_and_acknowledged(connection: Any, tmp_path: Path) -> None:
    publish(connection, *range(10), compression="zlib")
    assert [message.payload for message in received(connection, 10)] == list(range(10))
    with queue_of(tmp_path) as queue:
        assert (queue.stats().done, len(queue)) == (10, 0)
    with pytest.raises(TimeoutError, match="no message within"):
        connection.drain_events(timeout=0.01)


def test_without_acknowledgement_a_message_is_done_when_it_is_delivered(connection: Any, tmp_path: Path) -> None:
    publish(connection, 1, 2)
    assert received(connection, 1, ack=False, no_ack=True)[0].payload == 1
    assert MAIL(connection.channel()).get(no_ack=True).payload == 2
    with queue_of(tmp_path) as queue:
        assert (queue.stats().done, queue.stats().leased) == (2, 0)


def test_what_is_not_acknowledged_is_delivered_again(url: str) -> None:
    with Connection(url) as first:
        publish(first, "a", "b")
        (message, other) = received(first, 2, ack=False)
        assert not message.delivery_info["redelivered"]
        other.ack()
    with Connection(url) as second:
        (again,) = received(second, 1)
        assert again.payload == "a"
        assert MAIL(second.channel()).get() is None


def test_reject_and_requeue(connection: Any, tmp_path: Path) -> None:
    publish(connection, "bad")
    channel = connection.channel()
    MAIL(channel).get().requeue()
    again = MAIL(channel).get()
    again.reject()
    assert MAIL(channel).get() is None
    with queue_of(tmp_path) as queue:
        queue.put(b"no JSON")
        assert MAIL(channel).get() is None
        assert [item.reason.partition(":")[0] for item in queue.items("dead")] == ["rejected", "JSONDecodeError"]


def test_the_highest_priority_is_delivered_first(connection: Any) -> None:
    for priority in (0, 9, 4, 7, 2):
        publish(connection, priority, priority=priority)
    assert [message.payload for message in received(connection, 5)] == [9, 7, 4, 2, 0]


def test_a_channel_holds_no_more_than_its_prefetch_count(connection: Any) -> None:
    publish(connection, *range(5))
    found: list[Any] = []
    channel = connection.channel()
    with Consumer(channel, [MAIL], on_message=found.append, prefetch_count=2):
        for _ in range(2):
            connection.drain_events(timeout=60)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        found[0].ack()
        connection.drain_events(timeout=60)
    assert [message.payload for message in found] == [0, 1, 2]


def test_a_consumer_wakes_when_another_process_publishes(url: str, connection: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 3600.0)
    MAIL(connection.channel()).declare()
    with Connection(url) as other:
        timer = threading.Timer(0.1, lambda: publish(other, "hello"))
        timer.start()
        assert received(connection, 1)[0].payload == "hello"
        timer.join()


def test_fanout_and_topic_reach_all_queues_of_all_processes(url: str, connection: Any) -> None:
    news, log = Exchange("news", type="fanout"), Exchange("log", type="topic")
    queues = [Queue(f"news{n}", exchange=news) for n in range(2)]
    queues += [Queue("errors", exchange=log, routing_key="*.error"), Queue("all", exchange=log, routing_key="#")]
    channel = connection.channel()
    for queue in queues:
        queue(channel).declare()
    with Connection(url) as other:
        Producer(other.channel(), news).publish("hello", declare=[news])
        for key in ("shop.error", "shop.info"):
            Producer(other.channel(), log).publish(key, routing_key=key, declare=[log])
    found = received(connection, 5, *queues)
    assert sorted(message.payload for message in found) == ["hello", "hello", "shop.error", "shop.error", "shop.info"]
    queues[0](channel).delete()
    with Connection(url) as other:
        Producer(other.channel(), news).publish("again", declare=[news])
    assert [queue(channel).get() is None for queue in queues[:2]] == [True, False]


def test_sizes_purges_and_names(connection: Any, tmp_path: Path) -> None:
    channel = connection.channel()
    for name in ("a.b", "b", "..", "x/y z@host"):
        queue = Queue(name, exchange=EXCHANGE, routing_key=name)
        publish(connection, name, queue=queue)
        assert queue(channel).queue_declare(passive=True).message_count == 1
    assert sorted(path.name for path in (tmp_path / "broker" / "queues").iterdir()) == [
        "%2E.", "a.b", "b", "x%2Fy%20z@host",
    ]  # fmt: skip
    assert Queue("b", exchange=EXCHANGE, routing_key="b")(channel).purge() == 1
    with pytest.raises(connection.channel_errors):
        Queue("missing")(channel).queue_declare(passive=True)
    for wrong in ("sej://", "sej://a;sej://b"):
        with pytest.raises(ValueError, match="the URL must have one directory"):
            Connection(wrong).connect()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as refused:
        Connection(f"sej://{tmp_path}/file").connect()
    assert isinstance(refused.value, connection.connection_errors)


def test_temporary_queues_are_bounded_and_removed(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_UNREAD", 10)
    news = Exchange("news", type="fanout")
    mine = Queue("mine", exchange=news, auto_delete=True)
    with Connection(url) as connection:
        channel = connection.channel()
        mine(channel).declare()
        producer = Producer(channel, news)
        for number in range(25):
            producer.publish(number, declare=[news])
        assert mine(channel).queue_declare(passive=True).message_count <= 10
        with Connection(url) as other:
            other.connect()
            assert (tmp_path / "broker" / "temporary" / "mine").exists()
    with Connection(url) as other:
        other.connect()
        assert not (tmp_path / "broker" / "temporary" / "mine").exists()
        Producer(other.channel(), news).publish("lost", declare=[news])
    assert os.listdir(tmp_path / "broker" / "temporary") == []
    assert not (tmp_path / "broker" / "queues").exists()


def test_a_forked_child_leaves_the_messages_of_its_parent(url: str, tmp_path: Path) -> None:
    with Connection(url) as connection:
        publish(connection, "a")
        (message,) = received(connection, 1, ack=False)
        if (child := os.fork()) == 0:
            try:
                connection.close()
                publish(Connection(url), "from the child")
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        message.ack()
        (other,) = received(connection, 1)
        assert other.payload == "from the child"
    with queue_of(tmp_path) as queue:
        until(lambda: queue.stats().done == 2)
