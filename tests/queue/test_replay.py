"""The compiled half of the state log against its reference: the same bytes, the same verdicts, the same states."""

import importlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sej.codec
from sej.queue import records as queue_codec
from sej.queue import replay as queue_replay
from sej.queue.log_format import (
    BACK,
    BOOT,
    COUNTS,
    DEAD,
    DEDUPE,
    DONE,
    DROP,
    EXPIRE,
    EXTEND,
    FREE,
    INTENT,
    KEPT,
    LEASE,
    LOST,
    PICK,
    PURGE,
    RECORD_SIZE,
    START,
    WAIT,
)
from sej.queue.state import QueueState

try:
    TWIN: Any = importlib.import_module("sej.queue._replay_c")
except ImportError:
    TWIN = None
compiled = pytest.mark.skipif(TWIN is None, reason="the compiled twin is not built here")

few = st.integers(0, 12)
times = st.sampled_from([0, 1, 5, 2**40, 2**63 - 1])
words = st.integers(0, 2**32 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A record of any kind, about few items, so that they meet."""
    kind = draw(st.sampled_from([LEASE, DONE]) | st.sampled_from([
        PICK, WAIT, EXTEND, FREE, DEAD, INTENT, EXPIRE, DEDUPE, KEPT, PURGE, DROP, BOOT, START, COUNTS, LOST, BACK,
    ]))  # fmt: skip
    offset = draw(few)
    a = offset + draw(st.integers(1, 4)) if kind in (LEASE, DONE, LOST) else draw(few)
    band, attempt, slot = draw(st.integers(-3, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    return queue_codec.record(kind, offset, a, draw(times), band=band, attempt=attempt, slot=slot, extra=draw(words))


@compiled
@given(st.lists(records(), max_size=40), st.lists(st.integers(0, 40)), st.integers(0, 12))
@example([queue_codec.record(LEASE, 0, 5, 7), queue_codec.record(DONE, 1, 4)], [], 0)
@example(
    [
        queue_codec.record(BOOT, 0, 1),
        queue_codec.record(WAIT, 0, b=9),
        queue_codec.record(BOOT, 0, 2),
        queue_codec.record(LEASE, 0, 1, 7),
    ],
    [],
    0,
)
@example([queue_codec.record(DONE, 3, 4), queue_codec.record(LEASE, 0, 3, 7)], [1], 0)
def test_states_are_the_same_however_the_log_is_cut(log: list[bytes], cuts: list[int], frontier: int) -> None:
    reference, twin = QueueState(frontier), QueueState(frontier)
    edges = sorted({0, *(min(cut, len(log)) for cut in cuts), len(log)})
    for start, stop in pairwise(edges):
        data = b"".join(log[start:stop])
        reference.apply(data)
        TWIN.apply(twin, memoryview(data))
        assert vars(twin) == vars(reference)
        reference.tick(6)
        twin.tick(6)
        assert twin.first_ready() == reference.first_ready()


@compiled
@given(st.lists(records(), max_size=8), st.integers(0, 400), st.integers(0, 255), st.integers(0, RECORD_SIZE))
def test_verdicts_are_the_same(log: list[bytes], at: int, value: int, cut: int) -> None:
    data = bytearray(b"".join(log))
    if at < len(data):
        data[at] = value
    whole = bytes(data[: len(data) - cut])
    assert TWIN.good_bytes(whole) == queue_codec.good_bytes(whole)


@compiled
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), words, words)
def test_bytes_are_the_same(first: int, stop: int, deadline: int, slot: int, stamp: int) -> None:
    assert TWIN.done_record(first) == queue_codec.done_record(first)
    assert TWIN.done_record(first, stamp) == queue_codec.done_record(first, stamp)
    made = TWIN.lease_record(first, stop, deadline, slot, stamp)
    assert made == queue_codec.lease_record(first, stop, deadline, slot, stamp)


@compiled
def test_the_twin_takes_whole_records_only() -> None:
    with pytest.raises(ValueError, match="no whole records"):
        TWIN.apply(QueueState(), b"x" * (RECORD_SIZE + 1))


@compiled
def test_the_chosen_one_is_that_of_the_codec() -> None:
    chosen = TWIN if sej.codec.IMPLEMENTATION == "c" else queue_codec
    assert queue_replay.good_bytes is chosen.good_bytes


@pytest.mark.parametrize("apply", [QueueState.apply, *([TWIN.apply] if TWIN else [])])
def test_a_boot_in_the_middle_of_a_log_hides_nothing_that_waits(apply: Any) -> None:
    state = QueueState(3)
    boots = [queue_codec.record(BOOT, 0, number, began) for number, began in ((1, 4), (2, 10))]
    wait, done = queue_codec.record(WAIT, 1, b=9), queue_codec.record(DONE, 1, 2)
    apply(state, boots[0] + wait + boots[1])
    assert state.waiting[1].ready_at == 9 + 4 - 10
    apply(state, wait + boots[0] + done)
    assert (state.waiting, state.done) == ({}, 1)
