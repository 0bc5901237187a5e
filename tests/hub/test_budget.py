"""The budget: never more than its total, in order of arrival, and no kind takes all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.wire.answers import Budget, Ticket


def test_first_come_first_served() -> None:
    budget = Budget(100)
    first = budget.ask(70, 70)
    large, small = budget.ask(50, 50), budget.ask(10, 10)
    assert (first.granted, large.granted, small.granted) == (70, 0, 0)  # the small one does not overtake
    assert budget.waiting == 2
    budget.withdraw(first)
    assert (large.granted, small.granted, budget.used) == (50, 10, 60)
    budget.shrink(large, 20)
    assert budget.used == 30
    budget.withdraw(large)
    budget.withdraw(large)
    assert (budget.used, budget.peak) == (10, 70)


def test_one_kind_leaves_room_for_another() -> None:
    budget = Budget(100)
    streams = [budget.ask(25, 25, "stream") for _ in range(4)]
    assert [ticket.granted for ticket in streams] == [25, 25, 25, 0]
    get = budget.ask(25, 25, "get")
    assert get.granted == 25
    budget.withdraw(streams[0])
    assert streams[3].granted == 25


def test_more_than_the_total_waits_for_all_of_it() -> None:
    budget = Budget(100)
    small = budget.ask(1, 1)
    large = budget.ask(500, 500)
    assert large.granted == 0
    budget.withdraw(small)
    assert large.granted == 100


def test_withdrawing_what_waits_lets_the_next_one_in() -> None:
    budget = Budget(100)
    budget.ask(50, 50)
    large, small = budget.ask(60, 60), budget.ask(10, 10)
    budget.withdraw(large)
    assert large.wait(0)
    assert (large.granted, small.granted) == (0, 10)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="total must be at least 1 byte, got 0"):
        Budget(0)


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300), st.integers(0, 300), st.sampled_from("ab"))),
)
def test_any_history_stays_within_the_total(total: int, acts: list[tuple[int, int, int, str]]) -> None:
    budget, tickets = Budget(total), list[Ticket]()
    for act, least, more, kind in acts:
        if act < 2 or not tickets:
            tickets.append(budget.ask(least, least + more, kind))
        elif act == 2:
            budget.withdraw(tickets.pop(more % len(tickets)))
        else:
            budget.shrink(tickets[more % len(tickets)], least)
        assert budget.used == sum(ticket.granted for ticket in tickets) <= total
        assert budget.waiting == sum(not ticket.settled for ticket in tickets)
        for each in tickets:
            assert not each.settled or each.granted >= 1
    for ticket in tickets:
        budget.withdraw(ticket)
    assert (budget.used, budget.waiting) == (0, 0)
