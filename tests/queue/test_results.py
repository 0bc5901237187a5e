"""Results of items; random histories of them are in test_model."""

import asyncio
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
from sej.queue.interface.values import MAX_RESULT_BYTES
from sej.queue.journal_queue import JournalQueue
from sej.queue.log.format import RESULT, in_parts, packed_result
from sej.system.disk import OS
from tests.cli.inside import inside
from tests.crash.disk import CrashDisk
from tests.queue.support import FakeClock, crashes, dying, kill, opened, take
from tests.queue.test_power import left_by

SUM = "sums"


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path, clock, max_attempts=2, lease_s=60) as queue:
        yield queue


def test_a_waiter_of_another_process_gets_it(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path) as q:
        number = q.put(b"20 + 22", keep_result="1h")
        code = f"import sej\nwith sej.open_queue({q.path!r}) as q: print(q.result({number!r}, 60))"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as waiter:
            take(q).done(result=b"42")
            assert waiter.communicate()[0] == b"b'42'\n"
        assert repr(pickle.loads(pickle.dumps(number))) == "0"


def test_all_tasks_wait_with_one_thread(q: JournalQueue) -> None:
    async def main() -> list[bytes]:
        queue = sej.AsyncQueue(q)
        numbers = [await queue.put(b"%d" % n, keep_result=60) for n in range(50)]
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
            await queue.result(numbers[0], 0.01)
        waiting = [asyncio.create_task(queue.result(number, 60)) for number in numbers]
        while (item := await queue.get(0)) is not None:
            await queue.done(item, item.value * 2)
        found = await asyncio.gather(*waiting)
        await queue.close()
        return found

    assert asyncio.run(main()) == [b"%d%d" % (n, n) for n in range(50)]


def test_a_failure_is_raised_with_its_last_error(q: JournalQueue) -> None:
    handle = q.put(b"a", keep_result=60)
    assert isinstance(handle, sej.ResultHandle)
    take(q).retry(0, ZeroDivisionError("first"))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(handle.result, 60)
        take(q).retry(0, ZeroDivisionError("second"))
        with pytest.raises(sej.ItemFailedError, match="ZeroDivisionError: second") as failed:
            waiting.result()
    assert failed.value.offset == 0
    assert q.redrive() == 1
    with pytest.raises(sej.ResultGoneError, match="offset 1: the item has no result: it was put without"):
        q.result(1)


def test_an_item_that_retention_removed_has_none(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, segment_bytes=1) as q:
        q.put_many([b"a", b"b"], keep_result=60)
        sej.Journal(tmp_path).clean(max_bytes=0, ignore_readers=["worker"])
        q.put(b"c", keep_result=60)
        assert q.stats().lost == 2
        with pytest.raises(sej.ResultGoneError):
            q.result(1)
        with pytest.raises(TimeoutError):
            q.result(2, 0)


def test_another_message_of_the_same_offset_does_not_get_it(tmp_path: Path, clock: FakeClock) -> None:
    """The putter dies before it writes the message; power is lost with a message that a result is of."""
    with dying(tmp_path, clock) as q:
        q.put(b"never written", keep_result=60)
    disk = CrashDisk()
    with opened("/q", clock, disk, durability="disk") as q, opened("/q", clock, disk) as other:
        q.put(b"stays")
        other.put(b"lost", keep_result=60)
        for item in other.get_many(2, timeout=0):
            item.done(b"lost")
        assert q.result(1) == b"lost"
        crash = left_by(disk)
    for path, there, number in ((tmp_path, OS, 0), ("/q", crash, 1)):
        with opened(path, clock, there) as q:
            assert q.put(b"another") == number
            for item in q.get_many(9, timeout=0):
                item.done(b"another")
            with pytest.raises(sej.ResultGoneError):
                q.result(number)


def test_an_item_that_was_removed_has_none(q: JournalQueue, clock: FakeClock) -> None:
    for expire_s in (None, 5, None):
        q.put(b"a", keep_result=60, expire_s=expire_s)
    q.cancel(0)
    clock.move(6)
    assert len(q.get_many(9, timeout=0)) == 1
    q.put(b"purged", keep_result=60)
    q.purge()
    for number in (0, 1, 3, 4):
        with pytest.raises(sej.ResultGoneError):
            q.result(number)
    with pytest.raises(TimeoutError, match=r"item 2 of queue 'worker' in .* has not ended within 0 s"):
        q.result(2, 0)


def test_its_time_begins_when_the_item_ends_and_survives_a_reboot(q: JournalQueue, clock: FakeClock) -> None:
    q.put_many([b"a", b"b"], keep_result="1m")
    clock.move(100)
    q.done_many(q.get_many(2, timeout=0)[:1])
    requeue_expired = q._core.log.state
    clock.move(10)
    q._core.locked(q._core.log.compact)
    assert q._core.log.state is not requeue_expired
    kill(q)
    clock.reboot()
    clock.move(40)
    with opened(q.path, clock) as again:
        assert again.result(0, 0) is None
        take(again).done(bytearray(b"b"))
        clock.move(11)
        with pytest.raises(sej.ResultGoneError, match="keep_result's time is over"):
            again.result(0, 0)
        again._core.locked(again._core.log.compact)
        assert list(again._core.log.state.results) == [1]
        assert again.result(1, 0) == b"b"


def test_what_is_too_large_or_of_another_type_leaves_the_item_leased(tmp_path: Path, q: JournalQueue) -> None:
    handle = q.put(b"a", keep_result=60)
    item = take(q)
    with pytest.raises(sej.InvalidMessageError, match=f"at most {MAX_RESULT_BYTES} bytes, got {MAX_RESULT_BYTES + 1}"):
        item.done(bytes(MAX_RESULT_BYTES + 1))
    with pytest.raises(TypeError, match="result must be bytes, got dict; encode it, or open the queue with serializer"):
        item.done({})
    item.done(bytes(MAX_RESULT_BYTES))
    assert q.result(handle) == bytes(MAX_RESULT_BYTES)
    with sej.open_queue(tmp_path / "json", serializer="json") as other:
        number = other.put({"a": 1}, keep_result=60)
        take(other).done(["b"])
        assert other.result(number) == ["b"]
    with sej.open_queue(tmp_path / "a.tq") as text:
        text.put(b"a")
        for act in (lambda: text.result(0), lambda: text.put(b"b", keep_result=1), lambda: take(text).done(b"c")):
            with pytest.raises(sej.UnsupportedError, match="does not support results"):
                act()


def test_an_attempt_that_did_not_end_the_item_has_no_result(q: JournalQueue) -> None:
    """The process dies between the records of the result and the one that ends the item, or among them."""
    for kept in (1, 9):
        number = q.put(b"a", keep_result=60)
        item = take(q)
        text = packed_result(1, 2**62, bytes(100))
        q._core.locked(q._core.log.append, *list(in_parts(RESULT, number, text))[:kept])
        with pytest.raises(TimeoutError):
            q.result(number, 0)
        item.done(b"right")
        assert q.result(number) == b"right"


def outcome(q: sej.WorkQueue, number: int) -> object:
    """Return the result of an item, why it failed, or the type of another error."""
    try:
        return q.result(number, 0)
    except sej.ItemFailedError as error:
        return error.reason
    except (TimeoutError, sej.ResultGoneError) as error:
        return type(error)


def test_power_loss(clock: FakeClock) -> None:
    disk = CrashDisk()
    q = opened("/q", clock, disk, durability="disk", compact_bytes=100)
    since = disk.settle()
    for n in range(4):
        q.put(b"%d" % n, keep_result=60)
        item = take(q)
        if n % 2:
            item.fail(str(n))
        else:
            item.done(b"%d" % n * 50)
        disk.mark(n)
    for crash in crashes(disk, q, clock, since):
        with opened("/q", clock, crash.disk) as q:
            for n in range(4):
                found = outcome(q, n)
                ended = f"the item failed: {n}" if n % 2 else b"%d" % n * 50
                assert found == ended or (found in (TimeoutError, sej.ResultGoneError) and n not in crash.marks)


WORKER = """
import sys, sej
with sej.open_queue(sys.argv[1], "worker", max_attempts=1000, compact_bytes=5000) as q:
    while True:
        item = q.get()
        item.done(item.value * 9)
"""


def test_killed_workers(tmp_path: Path) -> None:
    dice = random.Random(3)
    with sej.open_queue(tmp_path, "worker", max_attempts=1000) as q:
        handles = q.put_many([b"%d" % n for n in range(2000)], keep_result="1h")
        for n in sorted(dice.sample(range(2000), 6)):
            with subprocess.Popen([sys.executable, "-c", WORKER, q.path]) as worker:
                assert q.result(handles[n], 60) == b"%d" % n * 9
                os.kill(worker.pid, signal.SIGKILL)
        for item in q:
            item.done(item.value * 9)
        assert [q.result(handle, 0) for handle in handles] == [b"%d" % n * 9 for n in range(2000)]


def test_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside(monkeypatch, "queue", "put", "--keep-result", "1h", SUM, "1 + 1", "1 / 0", "1").out == b"0\n1\n2\n"
    with sej.open_queue(SUM) as q:
        take(q).done(b"2")
        take(q).fail("division by zero")
        q.cancel(2)
        q.put(b"waits", keep_result=60)
    assert inside(monkeypatch, "queue", "result", SUM, "0")[:2] == (0, b"2")
    assert json.loads(inside(monkeypatch, "queue", "result", "--json", SUM, "0").out) == {"offset": 0, "result": "2"}
    for number, code, text in ((1, 1, "division by zero"), (2, 4, "no result"), (3, 3, "has not ended within 0 s")):
        done = inside(monkeypatch, "queue", "result", SUM, str(number))
        assert (done.code, done.out) == (code, b"")
        assert text in done.err
