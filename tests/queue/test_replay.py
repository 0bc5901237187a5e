"""The compiled half of the state log against its reference: the same bytes, the same verdicts, the same states."""

import contextlib
import importlib
import re
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sej
import sej.codec
from sej.queue.disk import log as queue_log
from sej.queue.disk import unlocked as queue_unlocked
from sej.queue.items.look import QueueLook
from sej.queue.log import records as made
from sej.queue.log import replay as queue_replay
from sej.queue.log.format import CHECK, DONE, LEASE, LOST, RECORD_BODY, RECORD_SIZE
from sej.queue.log.key_order import key_hash
from sej.queue.log.kinds import KINDS
from sej.queue.log.state import QueueState
from sej.system.checksum import crc32c
from tests.queue.support import FakeClock, kill, opened

try:
    TWIN: Any = importlib.import_module("sej.queue.log._replay_c")
except ImportError:
    TWIN = None
compiled = pytest.mark.skipif(TWIN is None, reason="the compiled twin is not built here")


def boot(number: int, began_ns: int) -> bytes:
    """The machine starts."""
    return made.booted(number.to_bytes(16, "big"), began_ns, 0)


few = st.integers(0, 12)
times = st.sampled_from([0, 1, 5, 2**40, 2**63 - 1])
words = st.integers(0, 2**32 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A record of any kind, about few items, so that they meet."""
    kind = draw(st.sampled_from([LEASE, DONE]) | st.sampled_from(sorted(KINDS)))
    offset = draw(few)
    a = offset + draw(st.integers(1, 4)) if kind in (LEASE, DONE, LOST) else draw(few)
    priority, attempt, holder = draw(st.integers(-3, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    body = RECORD_BODY.pack(kind, priority, attempt, holder, offset, a, draw(times), draw(words))
    return body + CHECK.pack(crc32c(body))


def contents(state: QueueState) -> dict[str, Any]:
    """Everything that a state consists of."""
    parts = vars(state)
    order = state.order and vars(state.order)
    return {**parts, "schedule": vars(state.schedule), "dedupe": vars(state.dedupe), "order": order}


@compiled
@given(st.lists(records(), max_size=40), st.lists(st.integers(0, 40)), st.integers(0, 12))
@example([made.leased(0, 5, 0, 7, 0), made.done(1, 4)], [], 0)
@example([boot(1, 0), made.waits(0, 9, 0, 0), boot(2, 0), made.leased(0, 1, 0, 7, 0)], [], 0)
@example([made.done(3, 4), made.leased(0, 3, 0, 7, 0)], [1], 0)
@example([made.ordered(1, 0), made.picked(0, 1, 0, 7, 0, 5, 9), made.done(0, 1)], [], 0)
@example([made.ordered(1, 0), made.parked(5, 0), made.scanned(1, 1, 9), made.picked(0, 1, 0, 7, 0, 5)], [2], 0)
def test_states_are_the_same_however_the_log_is_cut(log: list[bytes], cuts: list[int], frontier: int) -> None:
    reference, twin = QueueState(frontier), QueueState(frontier)
    edges = sorted({0, *(min(cut, len(log)) for cut in cuts), len(log)})
    for start, stop in pairwise(edges):
        data = b"".join(log[start:stop])
        reference.apply(data)
        TWIN.apply(twin, memoryview(data))
        assert contents(twin) == contents(reference)
        reference.schedule.tick(6)
        twin.schedule.tick(6)
        assert twin.schedule.first_ready() == reference.schedule.first_ready()


@st.composite
def keyed_logs(draw: st.DrawFn) -> list[bytes]:
    """A log of a queue with an order of keys: mostly items that are taken in order and done, among anything else."""
    log, at = [made.ordered(1, draw(st.integers(0, 1)))], 0
    for _ in range(draw(st.integers(0, 40))):
        key, what = draw(st.integers(0, 3)), draw(st.integers(0, 9))
        if what < 5:
            log.append(made.picked(at, 1, draw(st.integers(0, 1)), draw(times), 0, key, draw(st.integers(0, 9))))
            at += 1
        elif what < 8:
            first = draw(st.integers(max(at - 4, 0), at))
            log.append(made.done(first, first + draw(st.integers(1, 3))))
        elif what == 8:
            choices = [made.keyed(max(at - 1, 0), key, 1), made.parked(key, at), made.waits(max(at - 1, 0), 5, 1, 0)]
            log.append(draw(st.sampled_from([*choices, made.scanned(at, 1, 3), made.dead(max(at - 1, 0))])))
        else:
            log.append(draw(records()))
    return log


@compiled
@given(keyed_logs(), st.lists(st.integers(0, 40)))
def test_states_with_an_order_of_keys_are_the_same(log: list[bytes], cuts: list[int]) -> None:
    reference, twin = QueueState(), QueueState()
    edges = sorted({0, *(min(cut, len(log)) for cut in cuts), len(log)})
    for start, stop in pairwise(edges):
        data = b"".join(log[start:stop])
        reference.apply(data)
        TWIN.apply(twin, data)
        assert contents(twin) == contents(reference)


@compiled
@given(st.lists(records(), max_size=8), st.integers(0, 400), st.integers(0, 255), st.integers(0, RECORD_SIZE))
def test_verdicts_are_the_same(log: list[bytes], at: int, value: int, cut: int) -> None:
    data = bytearray(b"".join(log))
    if at < len(data):
        data[at] = value
    whole = bytes(data[: len(data) - cut])
    assert TWIN.good_bytes(whole) == made.good_bytes(whole)


@compiled
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), words, words)
def test_bytes_are_the_same(first: int, stop: int, deadline: int, holder: int, stamp: int) -> None:
    assert TWIN.one_done(first) == made.one_done(first)
    assert TWIN.one_done(first, stamp) == made.one_done(first, stamp)
    assert TWIN.leased(first, stop, holder, deadline, stamp) == made.leased(first, stop, holder, deadline, stamp)


@compiled
@given(words, st.integers(0, 2**16 - 1), words, times, st.integers(-3, 3), st.integers(0, 2**64 - 1), words)
def test_picked_items_are_the_same_bytes(
    offset: int, attempt: int, holder: int, deadline: int, priority: int, key: int, stamp: int
) -> None:
    fields = (offset, attempt, holder, deadline, priority, key, stamp)
    assert TWIN.picked(*fields) == made.picked(*fields)
    assert TWIN.picked(*fields[:5]) == made.picked(*fields[:5])


@compiled
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.sampled_from([b"", b"a", b"b", b"c", b"d"])), max_size=9),
    st.integers(0, 9),
    st.integers(1, 9),
    st.sampled_from([b"a", b"z"]),
)
def test_runs_of_items_of_free_keys_are_the_same(
    rows: list[tuple[int, bytes]], index: int, n: int, held: bytes
) -> None:
    messages = [sej.Message(7 + at, time, 0, key, b"v") for at, (time, key) in enumerate(rows)]
    found = TWIN.picked_run(messages, index, n, {key_hash(held): (1,)}, 3, 2**62)
    assert found == made.picked_run(messages, index, n, {key_hash(held): (1,)}, 3, 2**62)
    data, run = found
    assert made.good_bytes(data) == (RECORD_SIZE * len(run), False)
    keys = [message.key for message, _ in run if message.key]
    assert len(keys) == len(set(keys)) and held not in keys and len(run) <= n


@compiled
def test_the_twin_takes_whole_records_only() -> None:
    with pytest.raises(ValueError, match="not whole records"):
        TWIN.apply(QueueState(), b"x" * (RECORD_SIZE + 1))


@compiled
def test_the_chosen_one_is_that_of_the_codec() -> None:
    chosen = TWIN if sej.codec.IMPLEMENTATION == "c" else made
    assert queue_replay.good_bytes is chosen.good_bytes


@pytest.mark.parametrize("apply", [QueueState.apply, *([TWIN.apply] if TWIN else [])])
def test_a_boot_in_the_middle_of_a_log_hides_nothing_that_waits(apply: Any) -> None:
    state = QueueState(3)
    boots = [boot(1, 4), boot(2, 10)]
    wait, done = made.waits(1, 9, 0, 0), made.done(1, 2)
    apply(state, boots[0] + wait + boots[1])
    assert state.waiting[1].ready_at_ns == 9 + 4 - 10
    apply(state, wait + boots[0] + done)
    assert (state.waiting, state.done) == ({}, 1)


def test_an_item_whose_lease_ran_out_is_found_after_many_others_were_given_back() -> None:
    state = QueueState()
    state.apply(made.leased(0, 1, 0, 5, 0))
    state.schedule.tick(6)
    assert state.schedule.first_ready() == (0, 0)
    state.apply(b"".join(made.waits(1, 9 + number, 1, 0) for number in range(1100)))
    state.schedule.tick(7)
    assert state.schedule.first_ready() == (0, 0)


def test_a_lease_does_not_look_at_items_that_were_set_aside_ahead() -> None:
    state = QueueState()
    queue_replay.apply(state, b"".join(made.intended(offset, 5, 6, 7, 0) for offset in range(100, 200)))

    class Ahead(set[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("each of them costs time in each lease")

    state.above = Ahead(state.above)
    queue_replay.apply(state, made.leased(0, 1, 0, 7, 0) + made.leased(1, 50, 0, 7, 0))
    assert (state.frontier, len(state.above), len(state.intents)) == (50, 100, 100)


def test_only_records_change_a_state() -> None:
    """No other module assigns to a part of a queue's state, or calls what changes one."""
    fields = "|".join(vars(QueueState()))
    change = "pop|popitem|clear|update|add|discard|remove|append|setdefault"
    assigned = rf"state\.({fields})(\[[^]]*\])? [-+|&]?= |del .*state\.({fields})"
    called = rf"state\.({fields})\.({change})\("
    for path in Path(queue_replay.__file__).parent.glob("*.py"):
        if path.name != "state.py":
            assert not re.findall(rf"{assigned}|{called}", path.read_text()), path.name


WORDS = st.sampled_from([0, 1, 2, 7, 20, 2**31, 2**32 - 1, 10**12, 10**18, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def absurd_records(draw: st.DrawFn) -> bytes:
    """A record of any kind with a good checksum, whose numbers may be nonsense."""
    kind, priority = draw(st.sampled_from([*KINDS, 255])), draw(st.sampled_from([-128, 0, 3, 127]))
    attempt, holder, extra = (draw(WORDS) % 2**bits for bits in (16, 32, 32))
    body = RECORD_BODY.pack(kind, priority, attempt, holder, draw(WORDS), draw(WORDS), draw(WORDS), extra)
    return body + CHECK.pack(crc32c(body))


@given(
    st.lists(absurd_records(), min_size=1, max_size=3),
    st.integers(1, 100),
    st.booleans(),
    st.sampled_from([queue_replay.apply, QueueState.apply]),
)
@example([made.leased(0, 10**18, 0, 7, 0)], 100, False, QueueState.apply)
@example([made.leased(0, 10**18, 0, 7, 0)], 100, True, queue_replay.apply)
@example([made.done(0, 2**63)], 100, True, queue_replay.apply)
@example([made.lost(2**63, 2**64 - 1)], 100, False, QueueState.apply)
@example([made.starts(2**63, 7, 7)], 100, False, queue_replay.apply)
@example([made.scanned(0, 2**64 - 1, 0)], 5, True, queue_replay.apply)
def test_absurd_numbers_cost_neither_time_nor_memory(
    log: list[bytes], at: int, keyed: bool, applied: Callable[[QueueState, bytes], None]
) -> None:
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_log, "apply", applied)
        patch.setattr(queue_unlocked, "apply", applied)
        q = opened(path, clock, order="key" if keyed else None)
        q.put_many([b"a", b"b", b"c"], [b"a", b"b", b"a"])
        q.put(b"d", b"b", priority=1, delay_s=5)
        q.get_many(2, timeout=0)[1].retry(1)
        kill(q)
        file = Path(q._log.path)
        data = file.read_bytes()
        at = min(at, len(data) // RECORD_SIZE) * RECORD_SIZE
        file.write_bytes(data[:at] + b"".join(log) + data[at:])
        clock.move(10)
        outcomes = sej.SejError
        with contextlib.suppress(outcomes):
            QueueLook(path, "worker", clock=clock).items(None, limit=5)
        with contextlib.suppress(outcomes), opened(path, clock) as q:
            q.put(b"e", b"c")
            q.get_many(9, timeout=0)
            q._locked(q._log.compact)
            q.stats()


def test_a_record_of_many_messages_is_applied_if_the_journal_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "_MOST", 3)
    clock = FakeClock()
    with opened(tmp_path, clock) as one, opened(tmp_path, clock) as other:
        one.put_many([b"%d" % number for number in range(20)])
        items = one.get_many(10, timeout=0)
        assert other.stats().leased == 10
        one.done_many(items[:9])
        assert [item.value for item in other.get_many(2, timeout=0)] == [b"10", b"11"]
        assert other.stats() == one.stats() == sej.Stats(8, 0, 3, 9, 0)
    with opened(tmp_path, clock) as again:
        assert again.recovered is None
        assert tuple(again.stats().values())[:5] == (11, 0, 0, 9, 0)
