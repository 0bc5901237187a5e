"""Random histories of conditional appends and tokens against a model: a list, and the highest token."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import sej
from tests.crash.disk import CrashDisk
from tests.examples import examples

ROOT = "/j"
slots = st.integers(0, 2)


class ConditionMachine(RuleBasedStateMachine):
    """Three shared writers. ``rows`` is what the journal must hold, ``highest`` its token."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.rows: list[bytes] = []
        self.highest: int | None = None

    def options(self, token: Any) -> dict[str, Any]:
        return {"token": token, "disk": self.disk, "durability": "disk", "segment_bytes": self.segment_bytes}

    @initialize(segment_bytes=st.sampled_from([1, 90, 1 << 20]))
    def start(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.writers = [sej.SharedWriter(ROOT, **self.options(None)) for _ in range(3)]

    @rule(slot=slots, token=st.one_of(st.none(), st.just("next"), st.integers(0, 6)))
    def reopen(self, slot: int, token: Any) -> None:
        self.writers[slot].close()
        refused = isinstance(token, int) and self.highest is not None and token < self.highest
        if refused:
            with pytest.raises(sej.ConflictError) as caught:
                sej.SharedWriter(ROOT, **self.options(token))
            assert (caught.value.expected, caught.value.found) == (token, self.highest)
            token = None
        self.writers[slot] = w = sej.SharedWriter(ROOT, **self.options(token))
        if token is not None:
            assert w.token == ((self.highest or 0) + 1 if token == "next" else token)
            self.highest = w.token

    @rule(
        slot=slots, values=st.lists(st.binary(max_size=9), max_size=4), by=st.sampled_from([None, -2, -1, 0, 0, 0, 1])
    )
    def append(self, slot: int, values: list[bytes], by: int | None) -> None:
        w, end = self.writers[slot], len(self.rows)
        expected = None if by is None else max(end + by, 0)
        fenced = w.token is not None and self.highest is not None and w.token < self.highest
        if fenced or expected not in (None, end):
            with pytest.raises(sej.ConflictError) as caught:
                w.append_many(values, expect_offset=expected)
            numbers = (w.token, self.highest) if fenced else (expected, end)
            assert (caught.value.expected, caught.value.found) == numbers
        else:
            assert w.append_many(values, expect_offset=expected) == range(end, end + len(values))
            self.rows += values

    @rule(share=st.integers(0, 1000))
    def crash(self, share: int) -> None:
        states = list(self.disk._states())
        self.disk = states[share * (len(states) - 1) // 1000]
        self.writers = [sej.SharedWriter(ROOT, **self.options(None)) for _ in range(3)]
        if self.highest:
            with pytest.raises(sej.ConflictError):
                sej.SharedWriter(ROOT, **self.options(self.highest - 1))

    @invariant()
    def the_journal_is_the_list(self) -> None:
        if self.rows:
            assert [message.value for message in sej.Scanner(ROOT, disk=self.disk)] == self.rows


ConditionMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=25)
test_any_history_of_conditions_is_the_models = ConditionMachine.TestCase
