"""The state of a queue: what its records add up to, and what absurd ones cost."""

import contextlib
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

import sej
from sej.queue.listing import QueueLook
from sej.queue.log import file as queue_log
from sej.queue.log import format as made
from sej.queue.log import state as queue_state
from sej.queue.log.format import CHECK, KINDS, RECORD_BODY, RECORD_SIZE
from sej.queue.log.state import QueueState
from sej.system.checksum import crc32c
from tests.queue.support import FakeClock, kill, opened


def boot(number: int, began_ns: int) -> bytes:
    """The machine starts."""
    return made.booted(number.to_bytes(16, "big"), began_ns, 0)


def test_a_boot_in_the_middle_of_a_log_hides_nothing_that_waits() -> None:
    state = QueueState(3)
    boots = [boot(1, 4), boot(2, 10)]
    wait, done = made.WAIT(1, 9, 0, 0), made.DONE(1, 2)
    state.apply(boots[0] + wait + boots[1])
    assert state.waiting[1].ready_at_ns == 9 + 4 - 10
    state.apply(wait + boots[0] + done)
    assert (state.waiting, state.done) == ({}, 1)


def test_an_item_whose_lease_ran_out_is_found_after_many_others_were_given_back() -> None:
    state = QueueState()
    state.apply(made.leased(0, 1, 0, 5, 0))
    state.ready_queue.tick(6)
    assert state.ready_queue.first_ready() == (0, 0)
    state.apply(b"".join(made.WAIT(1, 9 + number, 1, 0) for number in range(1100)))
    state.ready_queue.tick(7)
    assert state.ready_queue.first_ready() == (0, 0)


def test_a_lease_does_not_look_at_items_that_were_set_aside_ahead() -> None:
    state = QueueState()
    state.apply(b"".join(made.INTENT(offset, 5, 6, 7, 0) for offset in range(100, 200)))

    class Ahead(SortedDict):  # type: ignore[misc]  # has no types
        def __iter__(self) -> None:
            raise AssertionError("each of them costs time in each lease")

    state.out_of_order.__class__ = Ahead
    state.apply(made.leased(0, 1, 0, 7, 0) + made.leased(1, 50, 0, 7, 0))
    assert (state.frontier, len(state.out_of_order), len(state.intents)) == (50, 100, 100)


OFFSETS = st.integers(0, 12)
RECORDS = st.lists(
    st.one_of(
        st.builds(made.leased, OFFSETS, OFFSETS, st.integers(0, 2), st.sampled_from([5, 50, 500]), OFFSETS),
        st.builds(made.DONE, OFFSETS, OFFSETS, OFFSETS),
        st.builds(made.one_done, OFFSETS),
        st.builds(made.WAIT, OFFSETS, OFFSETS, st.just(1), st.just(0)),
    ),
    max_size=90,
)
RUN = [made.leased(at, at + 1, 0, 50, at) for at in range(8)]


@given(st.lists(OFFSETS, max_size=3), RECORDS, st.integers(1, 8))
@example([], [*RUN, *(made.one_done(at) for at in range(7))], 8)
@example([], [*RUN, made.one_done(8), made.leased(8, 9, 0, 5, 0)], 8)
@example([], [*RUN, made.leased(8, 17, 0, 5, 0)], 8)
@example([], [*RUN, made.leased(3, 9, 0, 5, 0), made.DONE(0, 9)], 8)
@example([0, 1], [*RUN[2:], *RUN[2:], made.DONE(1, 4), made.DONE(0, 2)], 8)
def test_records_that_are_read_together_mean_the_same_as_one_by_one(
    before: list[int], log: list[bytes], most: int
) -> None:
    states = []
    for parts in (log, [b"".join(log)]):
        state = QueueState()
        for offset in before:
            state.apply(made.leased(offset, offset + 1, 1, 20, 0))
        state.most = most
        with contextlib.suppress(queue_state.WrongRecordError):
            for part in parts:
                state.apply(part)
        now = 30
        state.ready_queue.tick(now)
        states.append(
            (
                queue_state.snapshot(state, now, 99),
                state.done,
                state.leased,
                state.out_of_order,
                state.ready_queue.expired,
            )
        )
    assert states[0] == states[1]


@pytest.mark.both_codecs
@given(st.lists(OFFSETS, max_size=3), RECORDS, OFFSETS, st.sampled_from([1, 5, 2**63 - 1]))
@example([], [made.leased(2**64 - 2, 2**64 - 1, 0, 5, 0), made.DONE(0, 2**64 - 1)], 2**63 - 1, 2**63 - 1)
def test_the_compiled_function_and_its_reference_do_the_same(
    before: list[int], log: list[bytes], frontier: int, most: int
) -> None:
    chosen, found = queue_state._take_and_end, []
    for function in (chosen, made.take_and_end):
        leased = dict.fromkeys(before, 7)
        found.append((*function(b"".join(log), leased, frontier, most), leased))
    assert found[0] == found[1]


@given(st.lists(st.sampled_from([*RUN, made.DONE(3, 9), made.PAUSE(1)])), st.data())
def test_every_bad_record_is_found(log: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(log)
    assert made.good_bytes(whole) == (len(whole), False)
    if log:
        at = data.draw(st.integers(0, len(whole) - 1))
        bad = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        size = at - at % RECORD_SIZE
        assert made.good_bytes(bad) == (size, size + RECORD_SIZE < len(whole))
    assert made.good_bytes(whole + b"torn") == (len(whole), False)


def test_only_records_change_a_state() -> None:
    """No other module assigns to a part of a queue's state, or calls what changes one."""
    fields = "|".join(vars(QueueState()))
    change = "pop|popitem|clear|update|add|discard|remove|append|setdefault"
    assigned = rf"state\.({fields})(\[[^]]*\])? [-+|&]?= |del .*state\.({fields})"
    called = rf"state\.({fields})\.({change})\("
    for path in Path(queue_state.__file__).parent.glob("*.py"):
        if path.name not in ("state.py", "file.py"):  # file.py begins and ends a recovery
            assert not re.findall(rf"{assigned}|{called}", path.read_text()), path.name


WORDS = st.sampled_from([0, 1, 2, 7, 20, 2**31, 2**32 - 1, 10**12, 10**18, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def absurd_records(draw: st.DrawFn) -> bytes:
    """A record of any kind with a good checksum, whose numbers may be nonsense."""
    kind, priority = draw(st.sampled_from([*KINDS, 255])), draw(st.sampled_from([-128, 0, 3, 127]))
    attempt, holder, extra = (draw(WORDS) % 2**bits for bits in (16, 32, 32))
    body = RECORD_BODY.pack(kind, priority, attempt, holder, draw(WORDS), draw(WORDS), draw(WORDS), extra)
    return body + CHECK.pack(crc32c(body))


@given(st.lists(absurd_records(), min_size=1, max_size=3), st.integers(1, 100), st.booleans())
@example([made.leased(0, 10**18, 0, 7, 0)], 100, False)
@example([made.leased(0, 10**18, 0, 7, 0)], 100, True)
@example([made.DONE(0, 2**63)], 100, True)
@example([made.LOST(2**63, 2**64 - 1)], 100, False)
@example([made.START(2**63, 7, 7)], 100, False)
@example([made.SCAN(0, 2**64 - 1, 0)], 5, True)
@example([made.BLOCK(0, 1, 1)], 3, True)
def test_absurd_numbers_cost_neither_time_nor_memory(log: list[bytes], at: int, keyed: bool) -> None:
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as path:
        q = opened(path, clock, order="key" if keyed else None)
        q.put_many([b"a", b"b", b"c"], [b"a", b"b", b"a"])
        q.put(b"d", b"b", priority=1, delay_s=5)
        q.get_many(2, timeout=0)[1].retry(1)
        kill(q)
        file = Path(q._core.log.path)
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
            q._core.locked(q._core.log.compact)
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
