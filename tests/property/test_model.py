"""Random histories of a journal against a Python list: writer, three scanners, kept offsets, crashes."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sej
from tests.crash.disk import CrashDisk
from tests.examples import examples

ROOT = "/j"
DURABILITIES: list[Any] = ["buffer", "os", "interval", "disk"]
small = st.binary(max_size=30)
batches = st.lists(small, max_size=8)
shares = st.integers(0, 1000)
"""Thousandths of something: how much there is after a crash may depend on a sync in the background."""


def part(share: int, whole: int) -> int:
    """From 0 to whole."""
    return share * whole // 1000


class JournalMachine(RuleBasedStateMachine):
    """``rows`` is what the journal must hold: every message in the order of offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.rows: list[sej.Message] = []
        self.w: sej.Writer | None = None
        self.scanners: list[sej.Scanner] = []
        self.kept: int | None = None
        self.number = 0
        self.batches: dict[int, tuple[list[bytes], range]] = {}
        self.clock = 0

    @initialize(durability=st.sampled_from(DURABILITIES), segment_bytes=st.sampled_from([1, 90, 400, 1 << 20]))
    def start(self, durability: Any, segment_bytes: int) -> None:
        self.options: dict[str, Any] = {
            "durability": durability,
            "segment_bytes": segment_bytes,
            "sync_interval_s": 3600.0,
        }
        self.reopen()
        self.scanners = [sej.Scanner(ROOT, disk=self.disk) for _ in range(3)]

    # --- what the writer does

    def writer(self) -> sej.Writer:
        assert self.w is not None
        return self.w

    def took(self, span: range, values: list[bytes], timestamps: list[int]) -> None:
        assert span == range(len(self.rows), len(self.rows) + len(values))
        for offset, value, timestamp in zip(span, values, timestamps, strict=True):
            self.rows.append(sej.Message(offset, timestamp, 0, b"", value))
        durable = self.writer().durable_offset
        assert durable <= len(self.rows)
        assert self.options["durability"] != "disk" or durable == len(self.rows)

    def times(self, count: int) -> list[int]:
        self.clock += count
        return list(range(self.clock - count, self.clock))

    @rule(value=small)
    def append(self, value: bytes) -> None:
        (timestamp,) = self.times(1)
        offset = self.writer().append(value, timestamp=timestamp)
        self.took(range(offset, offset + 1), [value], [timestamp])

    @rule(values=batches)
    def append_many(self, values: list[bytes]) -> None:
        timestamps = self.times(len(values))
        self.took(self.writer().append_many(values, timestamp=timestamps), values, timestamps)

    @rule(values=st.lists(small, min_size=1, max_size=5), jump=st.integers(1, 3))
    def append_once(self, values: list[bytes], jump: int) -> None:
        self.number += jump
        timestamps = self.times(len(values))
        span = self.writer().append_once("p", self.number, values, timestamp=timestamps)
        self.took(span, values, timestamps)
        self.batches[self.number] = values, span

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def repeat_a_batch(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.batches)))
        values, span = self.batches[number]
        assert self.writer().append_once("p", number, values) == span
        assert self.writer().offset == len(self.rows)

    @rule()
    def flush(self) -> None:
        self.writer().flush()

    @rule()
    def sync(self) -> None:
        self.writer().sync()
        assert self.writer().durable_offset == len(self.rows)

    @rule()
    def reopen(self) -> None:
        if self.w is not None:
            self.w.close()
        self.w = sej.Writer(ROOT, disk=self.disk, **self.options)
        assert self.w.recovery is None
        assert self.w.offset == self.w.durable_offset == len(self.rows)

    @rule(share=shares)
    def crash(self, share: int) -> None:
        durable = self.writer().durable_offset
        states = list(self.disk._states())
        abandon(self.w)
        self.disk = states[part(share, len(states) - 1)]
        self.w = sej.Writer(ROOT, disk=self.disk, **self.options)
        end = self.w.offset
        assert durable <= end <= len(self.rows), "what was durable is there, and nothing that was never appended"
        del self.rows[end:]
        assert all(span.stop <= end for _, span in self.batches.values()), "a batch is durable when it returns"
        there = sej.read_offset(ROOT, "r", disk=self.disk)
        assert there == self.kept
        for scanner in self.scanners:
            at = min(scanner.offset, end)
            scanner.close()
            self.scanners[self.scanners.index(scanner)] = sej.Scanner(ROOT, at, disk=self.disk)

    # --- what readers do

    def visible(self) -> int:
        """How many messages the kernel has: all, but for those in a writer's buffer."""
        return sej.Journal(ROOT, disk=self.disk).end_offset

    @rule(which=st.integers(0, 2), count=st.integers(1, 5))
    def read(self, which: int, count: int) -> None:
        scanner = self.scanners[which]
        at = scanner.offset
        found = scanner.read(count)
        assert found == self.rows[at : at + len(found)]
        assert len(found) <= count and (found or self.visible() <= at)

    @rule(which=st.integers(0, 2))
    def read_all(self, which: int) -> None:
        scanner = self.scanners[which]
        at = scanner.offset
        assert list(scanner) == self.rows[at : self.visible()]

    @rule(which=st.integers(0, 2), share=shares)
    def seek(self, which: int, share: int) -> None:
        at = part(share, len(self.rows))
        self.scanners[which].seek(at)
        assert self.scanners[which].offset == at

    @rule(which=st.integers(0, 2), share=shares)
    def seek_time(self, which: int, share: int) -> None:
        timestamp = part(share, self.clock)
        self.scanners[which].seek_time(timestamp)
        due = next((row.offset for row in self.rows if row.timestamp >= timestamp), len(self.rows))
        assert self.scanners[which].offset == min(due, self.visible())

    @rule(count=st.integers(1, 12))
    def look_back(self, count: int) -> None:
        end = self.visible()
        assert sej.Journal(ROOT, disk=self.disk).tail(count) == self.rows[max(end - count, 0) : end]

    @rule(share=shares, back=st.booleans())
    def keep_an_offset(self, share: int, back: bool) -> None:
        offset = part(share, self.visible())
        with sej.Offset(ROOT, "r", disk=self.disk) as o:
            before = o.value
            assert before == (self.kept or 0)
            if back:
                o.reset(offset)
                self.kept = offset
            else:
                o.commit(offset)
                self.kept = offset if offset >= before else self.kept
            assert o.value == (self.kept or 0)

    # --- always

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.w is not None:
            assert self.w.offset == len(self.rows)
            assert sej.Journal(ROOT, disk=self.disk).verify() == []

    def teardown(self) -> None:
        for scanner in self.scanners:
            scanner.close()
        if self.w is not None:
            self.w.close()
            assert list(sej.Scanner(ROOT, disk=self.disk)) == self.rows


def abandon(w: sej.Writer | None) -> None:
    """The process is gone: nothing of its writer is written any more."""
    if w is not None:
        w.end.abandon()


JournalMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30)
test_any_history_is_a_list = JournalMachine.TestCase


@pytest.mark.torture
@pytest.mark.timeout(3600)
class TestLongHistories(JournalMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=500 if settings().max_examples > 100 else 1, stateful_step_count=200)
