"""A process dies with a dead letter written and not synced; another one finds the letter, and power is lost."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import sej
from sej.system.disk import File
from tests.crash.disk import CrashDisk
from tests.queue.support import FakeClock, kill, opened
from tests.sej.hooks import HookedDisk

# The writer of a process that dies is not closed, and cannot be.
pytestmark = [
    pytest.mark.filterwarnings("ignore:the writer of .* was never closed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
JOURNAL, DEAD = "/j", "/dead"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the writer of the process that died while its warnings are ignored, not in a later test."""
    yield
    gc.collect()


class DiedError(BaseException):
    """The process is gone: from here on it does nothing."""


def dying_before_the_sync_of_a_letter(disk: CrashDisk) -> HookedDisk:
    dead = False

    def hook(verb: str, file: File | None, data: bytes) -> None:
        nonlocal dead
        letter = file is not None and file.path.startswith(f"{DEAD}/jnl/")
        dead = dead or (verb == "sync" and letter and len(file.read(1, 0)) > 0)  # type: ignore[union-attr]
        if dead:
            raise DiedError

    return HookedDisk(hook, disk)


def letters(disk: Any) -> list[bytes]:
    if disk.status(f"{DEAD}/jnl") is None:
        return []
    return [letter.message.value for letter in sej.dead_letters(DEAD, disk=disk)]


def test_a_consumer_does_not_pass_a_message_whose_letter_may_be_lost() -> None:
    disk = CrashDisk()
    with sej.Writer(JOURNAL, disk=disk) as w:
        w.append_many([b"bad", b"good"])

    def handle(message: sej.Message) -> None:
        if message.value == b"bad":
            raise ValueError

    def consumer(disk: Any) -> sej.Consumer:
        return sej.Consumer(JOURNAL, "r", max_attempts=3, dead_letter=DEAD, timeout=0.0, backoff_s=0.0, disk=disk)

    with pytest.raises(DiedError):
        consumer(dying_before_the_sync_of_a_letter(disk)).run(handle)
    disk.unlock()
    since = len(disk.trace)
    consumer(disk).run(handle)
    assert letters(disk) == [b"bad"]
    for crash in disk.crash_states(since=since):
        consumer(crash.disk).run(handle)
        assert letters(crash.disk) == [b"bad"], crash.step


@pytest.mark.parametrize("back", [False, True])
def test_a_queue_does_not_give_up_an_item_whose_letter_may_be_lost(back: bool) -> None:
    clock, disk = FakeClock(), CrashDisk()
    with opened(JOURNAL, clock, disk) as q:
        q.put_many([b"bad", b"good"])
    dying = opened(JOURNAL, clock, dying_before_the_sync_of_a_letter(disk), dead_letter=DEAD)
    item = dying.get(timeout=0)
    assert item is not None
    with pytest.raises(DiedError):
        item.fail("why")
    kill(dying)
    disk.unlock()
    since = len(disk.trace)
    q = opened(JOURNAL, clock, disk, dead_letter=DEAD, durability="disk")
    if back:
        assert q.redrive() == 1
    q.done_many(q.get_many(10, timeout=0))
    kill(q)
    clock.move(1)
    clock.reboot()
    for crash in disk.crash_states(since=since):
        with opened(JOURNAL, clock, crash.disk, dead_letter=DEAD) as q:
            clock.move(100)
            q.put(b"a new one")
            items = q.get_many(10, timeout=0)
            for item in items:
                if item.value == b"bad" and not back:
                    item.fail("again")
            assert back or letters(crash.disk) == [b"bad"], crash.step
            for item in items:
                if item.value == b"a new one":
                    item.fail("why")
            q.redrive()
            assert b"a new one" in [item.value for item in q.get_many(10, timeout=0)], crash.step
