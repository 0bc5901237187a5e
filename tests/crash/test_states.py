"""Every disk that a power loss may leave behind short workloads: what was durable is there, nothing is half there."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sej
from tests.crash.disk import Crash, CrashDisk
from tests.sej.support import STAMP, read_all, values

ROOT = "/j"
DURABILITIES: list[Any] = ["buffer", "os", "interval", "disk"]
STRIDE = 3 if "SEJ_TORTURE_S" in os.environ else 9
"""Of the crashes in a recovery one in so many is looked at, another one each time."""


class Workload:
    """Appends to a journal on a disk that forgets, and says after each step what is durable.

    Attributes:
        rows: every value that was handed in, in the order of offsets.
        whole: ranges of offsets that are there as a whole or not at all.
    """

    def __init__(self, durability: Any, **options: Any) -> None:
        self.disk = CrashDisk()
        self.durability = durability
        self.options = {"durability": durability, "sync_interval_s": 3600.0, **options}
        self.rows: list[bytes] = []
        self.whole: list[range] = []

    def open(self) -> sej.Writer:
        self.w = sej.Writer(ROOT, disk=self.disk, **self.options)
        return self.w

    def said(self) -> None:
        assert self.durability != "disk" or self.w.durable_offset == self.w.offset
        self.disk.mark(self.w.durable_offset)

    def fresh(self, count: int, size: int) -> list[bytes]:
        values = [b"%04d" % (len(self.rows) + n) + b"v" * size for n in range(count)]
        self.rows += values
        return values

    def append(self, size: int = 6) -> None:
        self.w.append(self.fresh(1, size)[0], timestamp=STAMP)
        self.said()

    def append_many(self, count: int, size: int = 6) -> None:
        self.w.append_many(self.fresh(count, size), timestamp=STAMP)
        self.said()

    def append_once(self, number: int, count: int, size: int = 6) -> None:
        at = range(len(self.rows), len(self.rows) + count)
        self.whole.append(at)
        values = self.fresh(count, size)
        assert self.w.append_once("p", number, values, timestamp=STAMP) == at
        assert self.w.durable_offset == self.w.offset
        self.said()

    def sync(self) -> None:
        self.w.sync()
        assert self.w.durable_offset == self.w.offset
        self.said()

    def close(self) -> None:
        self.w.close()
        assert self.w.durable_offset == self.w.offset
        self.disk.mark(self.w.durable_offset)


def found(disk: CrashDisk) -> list[bytes]:
    if disk.status(f"{ROOT}/jnl") is None:
        return []
    return values(read_all(ROOT, disk=disk))


def check(work: Workload, crash: Crash) -> int:
    """What a reader and then a writer find; returns how many messages there are."""
    durable = max(crash.marks, default=0)
    before = found(crash.disk)
    assert before == work.rows[: len(before)], "a prefix of what was appended"
    assert len(before) >= durable, "what was said to be durable is there"
    with sej.Writer(ROOT, disk=crash.disk) as w:
        end = w.offset
        after = found(crash.disk)
        assert len(after) == end >= len(before), "opening cuts no message"
        assert after == work.rows[:end]
        for span in work.whole:
            assert not span.start < end < span.stop, "all or nothing"
        assert w.append(b"next") == end
    assert found(crash.disk) == [*work.rows[:end], b"next"]
    assert sej.Journal(ROOT, disk=crash.disk).verify() == []
    return end


def states(work: Workload) -> Iterator[Crash]:
    """Every state of the journal's own files; of those that differ in the index or a lock file alone, a sample."""
    seen = set()
    for number, crash in enumerate(work.disk.crash_states()):
        files = crash.disk.files().items()
        key = len(crash.marks), tuple(sorted((k, v) for k, v in files if "/idx/" not in k and not k.endswith(".lck")))
        if key not in seen or number % 11 == 0:
            seen.add(key)
            yield crash


def check_all(work: Workload, states_min: int) -> None:
    ends = [check(work, crash) for crash in states(work)]
    assert len(ends) >= states_min and min(ends) == 0 and max(ends) == len(work.rows)


Steps = list[tuple[Any, ...]]
APPENDS: dict[str, tuple[int, Steps]] = {
    "appends": (1 << 30, [("append",), ("append_many", 3), ("append", 600), ("sync",), ("append",)]),
    "rotation": (100, [("append",), ("append_many", 5), ("append", 90), ("append",)]),
    "a second writer": (1 << 30, [("append_many", 2), ("close",), ("open",), ("append",), ("append_once", 1, 2)]),
}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", APPENDS)
def test_appends(name: str, durability: Any) -> None:
    segment_bytes, steps = APPENDS[name]
    work = Workload(durability, segment_bytes=segment_bytes)
    for verb, *arguments in [("open",), *steps, ("close",)]:
        getattr(work, verb)(*arguments)
    check_all(work, 20)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_append_once_is_all_or_nothing_and_exactly_once(durability: Any) -> None:
    work = Workload(durability, segment_bytes=120)
    work.open()
    work.append()
    work.append_once(1, 3)
    work.append()
    work.append_once(4, 2)
    work.close()
    ends = set()
    for crash in states(work):
        end = check(work, crash)
        ends.add(end)
        # The producer restarts and repeats the batches whose acknowledgement it may have missed.
        with sej.Writer(ROOT, disk=crash.disk) as w:
            for number, span in ((1, work.whole[0]), (4, work.whole[1])):
                if end >= span.stop:
                    assert w.append_once("p", number, work.rows[span.start : span.stop]) == span
            assert w.offset == end + 1
            if end < work.whole[0].stop:
                first = work.rows[1:4]
                again = w.append_once("p", 1, first)
                assert len(again) == 3 and w.append_once("p", 1, first) == again
    assert ends == {0, 1, 4, 5, 7}


WORKLOADS: dict[str, Callable[[Workload], None]] = {
    "append": lambda work: work.append_many(2, 300),
    "append_once": lambda work: work.append_once(1, 2),
}


@pytest.mark.parametrize("what", WORKLOADS)
def test_a_crash_in_the_recovery_from_a_crash(what: str) -> None:
    work = Workload("os")
    work.open()
    work.append()
    work.sync()
    WORKLOADS[what](work)
    seen = 0
    for number, crash in enumerate(states(work)):
        durable = max(crash.marks, default=0)
        for other in replayed(crash.disk)[number % STRIDE :: STRIDE]:
            check(work, Crash(other, [durable], crash.step))
            seen += 1
    assert seen > 100
    work.w.close()


def replayed(disk: CrashDisk) -> list[CrashDisk]:
    """The disks after a crash anywhere in a writer's opening (and one append) of a disk that a crash left."""
    found: list[CrashDisk] = []
    original = disk._do

    def record(what: str, *arguments: Any) -> None:
        original(what, *arguments)
        found.extend(disk._states(24))

    disk._do = record  # type: ignore[method-assign]
    w = sej.Writer(ROOT, disk=disk)
    del disk._do
    w.close()
    return found


@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_kept_offset_never_outlives_its_messages(durability: Any) -> None:
    work = Workload(durability, segment_bytes=100)
    work.open()
    work.append_many(3)
    kept: list[int] = []
    with sej.Offset(ROOT, "r", disk=work.disk) as o:
        for commit in (2, 3):
            o.commit(commit)
            work.disk.mark(commit)  # what a kept offset promises: these messages are durable
            kept.append(commit)
        work.append()
        o.commit(4)
        work.disk.mark(4)
        o.reset(1)
    work.close()
    kept_offsets = set()
    for crash in states(work):
        there = sej.read_offset(ROOT, "r", disk=crash.disk) if crash.disk.status(f"{ROOT}/jnl") else None
        kept_offsets.add(there)
        end = check(work, crash)
        assert there is None or there <= end
        with sej.Offset(ROOT, "r", disk=crash.disk) as o:
            assert o.value == (there or 0)
    assert kept_offsets == {None, 1, 2, 3, 4}
