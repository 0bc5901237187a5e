"""How far a micro-batch goes: never beyond its limit, and everyone's turn comes."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.reading.planning import by_bytes, by_messages

WAITING = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1)


@given(WAITING, st.integers(1, 300))
def test_as_many_messages_as_the_limit_says(rows: dict[str, tuple[int, int]], limit: int) -> None:
    starts = {name: start for name, (start, _) in rows.items()}
    ends = {name: start + count for name, (start, count) in rows.items()}
    found = by_messages(starts, ends, limit)
    assert all(starts[name] <= found[name] <= ends[name] for name in rows)
    assert sum(found.values()) - sum(starts.values()) == min(limit, sum(ends.values()) - sum(starts.values()))


@given(WAITING, st.integers(1, 300), st.lists(st.integers(1, 400), min_size=8, max_size=8))
def test_bytes_stay_below_the_limit_or_one_message_comes_alone(
    rows: dict[str, tuple[int, int]], limit: int, sizes: list[int]
) -> None:
    starts = {name: start for name, (start, _) in rows.items()}
    ends = {name: start + count for name, (start, count) in rows.items()}
    size = dict(zip("abcdefgh", sizes, strict=True))
    found = by_bytes(starts, ends, limit, {name: size[name] * (ends[name] - starts[name]) for name in rows})
    assert found.keys() == rows.keys()
    assert all(starts[name] <= found[name] <= ends[name] for name in rows)
    count = sum(found.values()) - sum(starts.values())
    assert count >= 1 or starts == ends
    assert count <= 1 or sum(size[name] * (found[name] - starts[name]) for name in rows) <= limit


def test_a_small_backlog_is_not_starved_by_endless_ones() -> None:
    starts = dict.fromkeys("abc", 0)
    batches = 0
    while not starts["c"]:
        starts = by_messages(starts, {"a": starts["a"] + 1000, "b": starts["b"] + 1000, "c": 1}, 2)
        batches += 1
        assert batches < 100
    starts = dict.fromkeys("abc", 0)
    while not starts["c"]:
        ends = {"a": starts["a"] + 1000, "b": starts["b"] + 1000, "c": 1}
        waiting = {name: (100 if name != "c" else 9000) * (ends[name] - starts[name]) for name in ends}
        starts = by_bytes(starts, ends, 500, waiting)
        batches += 1
        assert batches < 100
