"""A message that failed waits for its next attempt, and others pass it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
import textqueue
from tests.queue.support import FakeClock
from tests.textqueue.claiming import MUTEX, got, plain, taken
from textqueue import Claim, TextQueue
from textqueue.backend import TextWorkQueue
from textqueue.format.parser import moment_ns


@pytest.fixture
def east() -> Iterator[None]:
    """The machine is one hour east of Greenwich."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", "<+01>-1")
        time.tzset()
        moment_ns.cache_clear()
        yield
    time.tzset()
    moment_ns.cache_clear()


def take(q: TextQueue, text: str) -> Claim:
    claim = taken(q)
    assert claim.message.value == text
    return claim


@pytest.mark.parametrize("variables", [[], [MUTEX], [MUTEX, "retries=9 "]])
def test_a_message_waits_after_a_failure_in_every_process(path: Path, variables: list[str]) -> None:
    clock = FakeClock()
    with TextQueue(path, clock=clock) as q, TextQueue(path, clock=clock) as other:
        for text in ("bad", "good", "better"):
            q.append(text, variables)
        bad = take(q, "bad")
        assert bad.attempts == 1
        assert bad.failed("no", delay_s=60)
        good = take(other, "good")
        assert take(q, "better").done()
        assert good.done()
        assert q.take() is None
        with TextQueue(path, clock=clock) as late:
            assert late.take() is None
            clock.move(59)
            assert late.take() is None
            clock.move(1)
            again = take(late, "bad")
            assert again.attempts == 2
            assert again.give_back()
        again = take(other, "bad")
        assert again.attempts == 2, "an attempt that was given back does not count"
        assert again.failed(delay_s=5)
        clock.move(5)
        again = take(q, "bad")
        assert (again.attempts, again.done()) == (3, True)


def test_a_message_that_was_reopened_begins_again(path: Path) -> None:
    clock = FakeClock()
    with TextQueue(path, clock=clock) as q:
        q.append("bad")
        assert take(q, "bad").failed(delay_s=60)
        (message,) = q.messages()
        message.mark_as_critical_error()
        message.mark_as_queued()
        assert take(q, "bad").attempts == 1


def test_an_item_of_a_work_queue_is_retried_with_a_growing_delay(path: Path) -> None:
    clock = FakeClock()

    def opened() -> TextWorkQueue:
        q = sej.open_queue(path, max_attempts=3)
        assert isinstance(q, TextWorkQueue)
        q._queue._inputs.sources[0].leases._clock = clock
        return q

    for attempt, shortest_s in ((1, 0.5), (2, 1.0), (3, 0.0)):
        with opened() as q:
            if attempt == 1:
                q.put_many([b"bad", b"good"])
            item = q.get(timeout=0)
            assert item is not None
            assert (item.value, item.attempts) == (b"bad", attempt)
            item.retry()
            clock.move(shortest_s * 0.99)
            if attempt < 3:
                assert tuple(q.stats().values())[:5] == (1, 1, 0, 0, 0)
                other = q.get(timeout=0)
                assert other is not None
                assert other.value == b"good"
                other.give_back()
            clock.move(shortest_s * 1.01)
    with opened() as q:
        assert tuple(q.stats().values())[:5] == (1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02", 82_800),
        ("1970-01-01 02:00", 3600),
        ("1970-01-01T02:00:30", 3630),
        ("1970-01-01 02:00Z", 7200),
        ("1970-01-01T02:00+02:00 ", 0),
        ("", 0),
        ("tomorrow", 0),
        ("1970-02-30", 0),
        ("19700102", 0),
    ],
)
@pytest.mark.usefixtures("east")
def test_workers_wait_for_a_date(path: Path, text: str, seconds: int) -> None:
    clock = FakeClock()
    clock.wall = 0
    with TextQueue(path, clock=clock) as q:
        q.append("later", [f"due={text}"])
        q.append("now")
        first = q.get_next()
        assert first is not None and first.value == "later", "the published method knows no dates"
        problems = [problem.what for problem in textqueue.check(path)]
        assert bool(problems) == (text in ("tomorrow", "1970-02-30", "19700102"))
        if seconds:
            assert take(q, "now").done()
            clock.move(seconds - 1)
            assert q.take() is None
            clock.move(1)
        assert take(q, "later").done()


# --- A last message that another program writes in several steps is complete before a worker takes it


HOUR = 3600.0


def all_taken(q: TextQueue) -> list[str]:
    """Return what a worker takes, without the wait for a message that may still grow."""
    return [claim.message.value for claim in iter(q._take_now, None)]


def test_a_message_that_is_written_in_two_steps_is_taken_whole(path: Path) -> None:
    path.write_bytes(b"-first\n-a\n")
    with TextQueue(path, settle_s=HOUR) as q, TextQueue(path, settle_s=HOUR) as reader:
        assert [getattr(reader._get_next(), "value", None) for _ in range(2)] == ["first", None]
        assert all_taken(q) == ["first"]
        assert [message.value for message in reader.messages()] == ["first", "a"]
        with path.open("ab") as file:
            file.write(b" b\n\\retries=3\n")
        assert all_taken(q) == []
        os.utime(path, (1e9, 1e9))
        assert got(reader).value == "a\nb"
        claim = taken(q)
        assert (claim.message.value, claim.done()) == ("a\nb", True)
    assert plain(path) == b"-first\n=a\n b\n\\retries=2\n"


def test_an_edit_of_a_program_does_not_complete_what_another_one_writes(path: Path) -> None:
    path.write_bytes(b"-first\n-a\n")
    with TextQueue(path, settle_s=HOUR) as q:
        assert taken(q).done()
        assert all_taken(q) == []


@pytest.mark.parametrize("before", [b"", b"-of a person\n", b"-of a person"])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_a_program_appends_is_taken_without_a_wait(path: Path, before: bytes, compacted: bool) -> None:
    path.write_bytes(before)
    with TextQueue(path, settle_s=HOUR) as q, TextQueue(path, settle_s=HOUR) as other:
        q.append("one", [MUTEX])
        q.append_many(["two", "three"])
        if compacted:
            ledger = q._inputs.found[0].source.file.ledger
            for _ in range(8):
                assert taken(q).give_back()
            lines = ledger.lines
            with q._inputs.found[0].source.file:
                ledger.compact()
                assert ledger.lines < lines
        assert all_taken(other) == [*(["of a person"] if before else []), "one", "two", "three"]
        q.append("four")
        message = q._get_next()
        while message is not None and message.value != "four":
            message = q._get_next()
        assert message is not None


def test_the_last_message_of_an_old_file_is_taken_without_a_wait(path: Path) -> None:
    path.write_bytes(b"-one\n-two\n-three\n")
    os.utime(path, (1e9, 1e9))
    with TextQueue(path, settle_s=HOUR) as q:
        assert all_taken(q) == ["one", "two", "three"]


def test_every_call_waits_for_the_last_message(path: Path) -> None:
    """A worker that ends when nothing is left does not leave it."""
    with TextQueue(path, settle_s=0.05) as q:
        path.write_bytes(b"-a\n")
        assert q.get_next() is not None
        path.write_bytes(b"-a\n-b\n")
        with q.claim() as a, q.claim() as b:
            assert (a and a.value, b and b.value) == ("a", "b")
        path.write_bytes(b"-c\n-d\n")
        with sej.Writer(path.with_name("journal")) as writer:
            assert q.drain_to(writer) == 2


def test_a_work_queue_waits_for_the_last_message(path: Path) -> None:
    path.write_bytes(b"-a\n")
    with sej.open_queue(path) as q:
        item = q.get(timeout=0)
        assert item is not None
        item.done()
