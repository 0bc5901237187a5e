"""A sync fails, the queue is opened again, and later the power goes: what was acknowledged is on the medium.

The disk of these tests does what Linux does: after a failed sync the pages are clean, reads see the bytes, and a later
sync does not write them.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import kestrel
import sej
from kestrel.errors import KestrelError
from kestrel.v2.format import addx
from kestrel.v2.items import item_of
from sej.system.disk import Disk
from tests.crash.disk import CrashDisk, Fault, FaultyOnly, faulty
from tests.crash.test_failed_sync import Case, closing
from tests.kestrel.support import Three, Two


def value(turn: int, n: int) -> bytes:
    return b"%d.%d " % (turn, n) * 8


def clock(turn: int) -> Callable[[], int]:
    return itertools.count(1_500_000_000_000 + turn * 1_000_000).__next__


def opened(disk: Disk, turn: int, **options: Any) -> kestrel.Queue:
    return kestrel.Queue("/q", "cars", disk=disk, now_ms=clock(turn), **options)


def always(kind: Any, disk: Disk, turn: int, **options: Any) -> Iterator[tuple[str, Any]]:
    q = kind.open("/q", sync="always", disk=disk, now_ms=clock(turn), **options)
    with closing(q.queue):
        for n in range(4):
            q.put(value(turn, n))
            yield "put", value(turn, n)
        for n in range(3):
            head = q.peek().data
            yield "ending", head
            if kind is Two and n < 2:
                assert q.get().data == head
            else:
                handle, data = q.take()
                assert data == head and q.end(handle)
            yield "done", head
            if kind is Three and n == 1:
                q.queue.checkpoint()


def by_hand(kind: Any, disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    q = kind.open("/q", disk=disk, now_ms=clock(turn))
    with closing(q.queue):
        for n in range(4):
            q.put(value(turn, n))
            if n % 2:
                q.queue.sync()
                yield "put", value(turn, n - 1)
                yield "put", value(turn, n)


def by_closing(disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    queue = opened(disk, turn)
    try:
        for n in range(2):
            queue.put(value(turn, n))
    finally:
        queue.close()
    for n in range(2):
        yield "put", value(turn, n)


def seen(disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    """What was found is durable once a sync succeeds, though it was written by a process that failed or was killed."""
    queue = opened(disk, turn)
    with closing(queue):
        found = [item_of(row) for row in queue._backlog.rows()]
        for n in range(2):
            queue.put(value(turn, n))
        queue.sync()
        for item in (*found, None):
            if item is not None:
                yield "put", item.data
        for n in range(2):
            yield "put", value(turn, n)
        queue.put(b"killed here %d" % turn)
        queue._store.storage.tail.lock.release()  # as death does
        queue._store.storage.fuse.live = False
        queue._store.storage.fuse.shut = True


def in_files(kind: Any, disk: CrashDisk, said: list[tuple[str, Any]]) -> None:
    if disk.status("/q") is None:
        assert not said
        return
    left, counted = Counter(kind.left("/q", disk)), Counter(said)
    for word, what in counted:
        if word == "put" and not counted["ending", what]:
            assert left[what] == 1, (what, left)
        if word == "done":
            assert not left[what], (what, left)


WORK: dict[str, tuple[Any, Any]] = {
    "always": (Two, partial(always, Two)),
    "rotating": (Two, partial(always, Two, max_memory_bytes=60)),
    "rewriting": (Two, partial(always, Two, max_journal_bytes=100, compact_delay_s=0)),
    "sync": (Two, partial(by_hand, Two)),
    "close": (Two, by_closing),
    "seen": (Two, seen),
    "segmented": (Three, partial(always, Three, journal_bytes=120, checkpoint_s=1000)),
    "segmented sync": (Three, partial(by_hand, Three)),
}
CASES = {name: Case(work, partial(in_files, kind)) for name, (kind, work) in WORK.items()}


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_acknowledged_after_a_failed_sync_is_on_the_medium(name: str, fault: Fault) -> None:
    assert CASES[name].check_one_fault(fault)


@pytest.mark.parametrize("name", CASES)
def test_a_second_sync_that_fails_after_reopening_changes_nothing(name: str) -> None:
    assert CASES[name].check_two_syncs()


# --- what an original left

ORIGINAL = b"".join(addx(value(0, n), 1_500_000_000_000 + n) for n in range(3))


@pytest.mark.parametrize("name", ["cars", "cars.1475195912693"])
def test_without_a_kept_position_every_file_is_renewed(name: str) -> None:
    disk = CrashDisk()
    disk.mkdir("/q")
    file = disk.open(f"/q/{name}", "append")
    file.write(ORIGINAL)
    file.lose()
    file.close()
    with opened(disk, 1, sync="always") as queue:
        queue.put(b"behind them")
    state = kestrel.replay("/q", "cars", disk=disk.crash())
    assert [item.data for item in state.items] == [*(value(0, n) for n in range(3)), b"behind them"]


def test_the_kept_position_spares_what_is_known_to_be_on_the_medium() -> None:
    disk = CrashDisk()
    with opened(disk, 1, sync="always") as queue:
        for n in range(4):
            queue.put(value(1, n))
        size = queue.counters().logsize
    before = len(disk.trace)
    opened(disk, 2).close()
    number = disk.dirs["/q"].seen["cars"]
    assert not [step for step in disk.trace[before:] if step[0] == "write" and step[1][0] == number]
    assert disk.status("/q/cars").size == size  # type: ignore[union-attr]


def test_a_cut_below_the_kept_position_is_not_taken_for_durable_when_it_is_written_again() -> None:
    disk = CrashDisk()
    with opened(disk, 1, sync="always") as queue:
        for n in range(3):
            queue.put(value(1, n))
    file = disk.open("/q/cars", "edit")
    file.write_at(b"\xff", len(ORIGINAL) // 3)  # the second operation
    file.sync()
    file.close()
    again = opened(disk, 2)
    assert again.damage
    for n in range(3):
        again.put(value(2, n))
    again._store.storage.tail.output.file.lose()  # type: ignore[union-attr]
    again._store.storage.tail.lock.release()
    with opened(disk, 3) as last:
        last.sync()
        there = len(last)
    assert len(kestrel.replay("/q", "cars", disk=disk.crash()).items) == there


# --- moving


def messages() -> list[sej.Message]:
    return [sej.Message(n, 1_500_000_000_000_000_000 + n, 0, b"", value(9, n)) for n in range(3)]


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
def test_an_import_that_is_finished_by_a_second_call_is_on_the_medium(fault: Fault) -> None:
    for k in itertools.count(1):
        inner = CrashDisk()
        first = faulty(inner, k, fault)
        now_ms = clock(0)
        try:
            kestrel.import_("/q", "cars", messages(), disk=first, now_ms=now_ms)
        except (KestrelError, OSError):
            kestrel.import_("/q", "cars", messages(), disk=inner, now_ms=now_ms)
        state = kestrel.replay("/q", "cars", disk=inner.crash())
        assert [item.data for item in state.items] == [message.value for message in messages()]
        if first.calls < k:
            break
    assert k > 2


def test_an_export_that_is_finished_by_a_second_call_is_on_the_medium() -> None:
    for k in itertools.count(1):
        inner = CrashDisk()
        with opened(inner, 1) as queue:
            queue.put_many(value(1, n) for n in range(3))
        first = FaultyOnly(inner, "sync", k)
        moved = False
        for disk in (first, inner):
            with contextlib.suppress(KestrelError, OSError, sej.SejError):
                w = sej.Writer("/j", disk=disk)
                try:
                    kestrel.export("/q", "cars", w, disk=disk)
                    moved = True
                finally:
                    with contextlib.suppress(OSError, sej.SejError):
                        inner_state = inner.crash()
                        w.close()
                if moved:
                    found = [bytes(m.value) for m in sej.Scanner("/j", disk=inner_state)]
                    assert found == [value(1, n) for n in range(3)]
                    break
        assert moved
        if first.failed is None:
            break
    assert k > 3
