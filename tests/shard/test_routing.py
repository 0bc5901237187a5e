"""Which shard: the golden table, and the compiled grouping against the reference."""

import enum
import threading
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sej
import shard
from sej import codec
from shard import _route_py, routing
from shard.name_format import Hash

Group = Callable[..., dict[int, tuple[list[bytes], list[bytes], list[int]]]]
TABLE = FilePath(__file__).parent.parent / "golden" / "shard" / "xxhash64.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 1000
    assert {len(key) // 2 for key, _ in ROWS} == set(range(128))


@pytest.mark.parametrize("bits", range(11))
def test_index_is_the_low_bits_of_sparks_hash(bits: int) -> None:
    for key, value in ROWS:
        assert shard.index_of(bytes.fromhex(key), bits) == int(value) & (2**bits - 1), key


@pytest.mark.parametrize("group", [_route_py.group, routing.group])
def test_grouping_uses_the_same_hash(group: Group) -> None:
    keys = [bytes.fromhex(key) for key, _ in ROWS]
    values = [b"%d" % place for place in range(len(keys))]
    found = group(values, keys, 10, None, True)
    for index, (part_values, part_keys, places) in found.items():
        assert all(int(ROWS[place][1]) & 1023 == index for place in places)
        assert part_values == [values[place] for place in places]
        assert part_keys == [keys[place] for place in places]
    assert sorted(place for parts in found.values() for place in parts[2]) == list(range(1000))


def test_every_kind_of_bytes_is_a_key() -> None:
    path = shard.Path("r", "p", 10)
    assert path.index(b"alice") == path.index(bytearray(b"alice")) == path.index(memoryview(b"alice")) == 147
    with pytest.raises(TypeError, match="must be bytes, got str"):
        shard.index_of("alice", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bits must be 0 to 10, got 11"):
        shard.index_of(b"", 11)


BATCHES = st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=127)), max_size=40)


@given(BATCHES, st.integers(0, 10), st.booleans(), st.booleans())
def test_the_twins_group_alike(batch: list[tuple[bytes, bytes]], bits: int, own: bool, places: bool) -> None:
    values, keys = [value for value, _ in batch], [key for _, key in batch]
    indexes = [len(key) & (2**bits - 1) for key in keys] if own else None
    assert routing.group(values, keys, bits, indexes, places) == _route_py.group(values, keys, bits, indexes, places)


@pytest.mark.parametrize("group", [_route_py.group, routing.group], ids=["python", "chosen"])
@pytest.mark.parametrize(
    ("values", "keys", "error", "words"),
    [
        ([b"a"], [], ValueError, "keys must have 1 entries, one for each value, got 0"),
        ([b"a", "b"], [b"", b""], TypeError, "value 1 must be bytes, not str: encode it first"),
        ([b"a"], [None], TypeError, "key 0 must be bytes, not NoneType"),
        ([b"a", b"b"], [b"", b"k" * 128], sej.InvalidMessageError, "key 1 must have at most 127 bytes, got 128"),
    ],
)
def test_a_bad_batch_is_refused_in_the_same_words(
    group: Group, values: list[bytes], keys: list[bytes], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        group(values, keys, 3, None)


class Sink:
    """A writer's buffer, and what it drained: each write apart."""

    def __init__(self, offset: int, batch_limit: int) -> None:
        self.writes: list[bytes] = []
        self.buffer = codec.Buffer(offset, self._drain, threading.Lock())
        self.buffer.batch_limit = batch_limit

    def _drain(self) -> None:
        with self.buffer.pending() as view:
            self.writes.append(bytes(view))
        self.buffer.drained()


SOME_KEYS = st.binary(min_size=3, max_size=3) | st.binary(max_size=127)  # four of one size are hashed together
NUMBERS = st.tuples(st.integers(0, 255), st.integers(-(2**63), 2**63 - 1))


@given(
    st.lists(st.tuples(st.binary(max_size=40), SOME_KEYS, NUMBERS), max_size=40),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
    st.integers(1, 500),
    st.sampled_from(("xxh64", "fnv")),
)
def test_parts_are_what_one_batch_a_shard_would_have_written(
    batch: list[tuple[bytes, bytes, tuple[int, int]]],
    bits: int,
    own: bool,
    columns: bool,
    batch_limit: int,
    route: Hash,
) -> None:
    values, keys = [value for value, _, _ in batch], [key for _, key, _ in batch]
    types = [kind for _, _, (kind, _) in batch] if columns else 7
    times = [stamp for _, _, (_, stamp) in batch] if columns else -5
    indexes = [len(key) & (2**bits - 1) for key in keys] if own else None
    groups = _route_py.group(values, keys, bits, indexes, True, route)
    for kind in (_route_py.Parts, routing.Parts):
        parts = kind(values, keys, bits, indexes, types, times, route)
        assert parts.indexes == list(groups)
        for index, (part_values, part_keys, places) in groups.items():
            expected, found = Sink(1000, batch_limit), Sink(1000, batch_limit)
            span = expected.buffer.append_many(
                part_values,
                part_keys,
                [types[place] for place in places] if isinstance(types, list) else types,
                [times[place] for place in places] if isinstance(times, list) else times,
            )
            assert parts.pour(index, found.buffer) == span
            for sink in (expected, found):
                sink.buffer.flush()
            assert found.writes == expected.writes
            for name in ("offset", "first_timestamp", "last_timestamp", "newest_timestamp"):
                assert getattr(found.buffer, name) == getattr(expected.buffer, name)


class Shards:
    """Buffers of open shards, and an appender to them."""

    def __init__(self, bits: int, route: Hash, batch_limit: int = 1 << 20) -> None:
        self.appender = routing.Appender(bits, route, self._refuse, lambda: self.under_way)
        self.under_way = False
        self.sinks = [Sink(1000 * index, batch_limit) for index in range(2**bits)]
        for index, sink in enumerate(self.sinks):
            sink.buffer.append(b"before", timestamp=index)
            self.appender.open(index, sink.buffer)

    def _refuse(self, *_: object) -> tuple[int, int]:
        raise AssertionError("nothing is appended one by one")

    def state(self) -> list[tuple[object, ...]]:
        names = ("offset", "first_timestamp", "last_timestamp", "newest_timestamp", "position")
        return [(sink.writes, len(sink.buffer), *(getattr(sink.buffer, name) for name in names)) for sink in self.sinks]


@given(
    st.lists(st.tuples(st.binary(max_size=40), SOME_KEYS), max_size=40),
    st.integers(0, 3),
    NUMBERS,
    st.integers(1, 2000),
    st.sampled_from(("xxh64", "fnv")),
    st.booleans(),
)
@example([(b"abc", b"abc")], 0, (0, 0), 32, "xxh64", True)  # a part that reaches the limit exactly
def test_a_batch_to_open_shards_is_what_one_batch_a_shard_would_have_written(
    batch: list[tuple[bytes, bytes]], bits: int, number: tuple[int, int], batch_limit: int, route: Hash, whole: bool
) -> None:
    values, keys = [value for value, _ in batch], [key for _, key in batch]
    found, expected = Shards(bits, route, batch_limit), Shards(bits, route, batch_limit)
    before = found.state()
    if whole:
        for sink in (*found.sinks, *expected.sinks):
            sink.buffer.limit = 1 << 20
    errors: dict[int, BaseException] = {}
    appended = found.appender.append_many(values, keys, *number, errors)
    assert not errors
    if appended is None:
        assert found.state() == before
        return
    spans = {
        index: expected.sinks[index].buffer.append_many(part_values, part_keys, *number)
        for index, (part_values, part_keys, _) in _route_py.group(values, keys, bits, None, name=route).items()
    }
    assert (appended, list(appended)) == (spans, list(spans))
    assert found.state() == expected.state()
    for sink in (*found.sinks, *expected.sinks):
        sink.buffer.flush()
    assert found.state() == expected.state()


class Claims:
    """An object that claims another class. Its comparisons are Python code, which could change the lists of a batch."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    def __ge__(self, other: object) -> bool:
        raise AssertionError("compared with a limit")

    __le__ = __ge__


COMPILED = pytest.mark.skipif(routing.Appender is _route_py.Appender, reason="the reference leaves all to the owner")
KEYS = [b"key-%d" % number for number in range(20)]


@COMPILED
def test_parts_of_more_shards_than_the_appender_knows_are_refused() -> None:
    shards = Shards(0, "fnv")
    before = shards.state()
    with pytest.raises(IndexError):
        shards.appender.pour(routing.Parts(KEYS, KEYS, 3, [5] * 20, 0, 0), {}, {})
    assert shards.state() == before


@COMPILED
def test_a_batch_to_open_shards_is_taken() -> None:
    shards = Shards(3, "fnv")
    appended = shards.appender.append_many(KEYS, KEYS, 7, None, {})
    assert appended is not None and sum(map(len, appended.values())) == len(KEYS)
    assert [len(sink.writes) for sink in shards.sinks] == [1 + (index in appended) for index in range(8)]


@pytest.mark.parametrize(
    "arguments",
    [
        (tuple(KEYS), KEYS, 0, None),
        (KEYS, None, 0, None),
        (KEYS, KEYS[1:], 0, None),
        (KEYS, [*KEYS[1:], b"k" * 128], 0, None),
        (KEYS, [*KEYS[1:], "text"], 0, None),
        ([*KEYS[1:], bytearray(b"v")], KEYS, 0, None),
        (KEYS, KEYS, [0] * 20, None),
        (KEYS, KEYS, True, None),
        (KEYS, KEYS, 0, [0] * 20),
        (KEYS, KEYS, 0, True),
        (["text"], [b""], 256, 1 << 63),
        ([], [], 0, None),
        (Claims(list), KEYS, 0, None),
        (KEYS, Claims(list), 0, None),
        (KEYS, KEYS, Claims(int), None),
        (KEYS, KEYS, 0, Claims(int)),
    ],
)
def test_other_batches_are_left_to_the_owner(arguments: tuple[Any, Any, Any, Any]) -> None:
    shards = Shards(3, "fnv")
    before = shards.state()
    assert shards.appender.append_many(*arguments, {}) is None
    assert shards.state() == before


@pytest.mark.parametrize("trouble", ["closed", "busy", "long", "last offset", "under way", "forgotten"])
def test_a_batch_to_a_shard_with_something_else_to_do_is_left_to_the_owner(trouble: str) -> None:
    shards = Shards(3, "xxh64")
    index = routing.index_of(KEYS[-1], 3)
    buffer = shards.sinks[index].buffer
    if trouble == "closed":
        shards.appender = routing.Appender(3, "xxh64", shards._refuse, lambda: False)
        for other, sink in enumerate(shards.sinks):
            if other != index:
                shards.appender.open(other, sink.buffer)
    elif trouble == "busy":
        buffer.freeze()
    elif trouble == "long":
        buffer.batch_limit = 26
    elif trouble == "last offset":
        buffer.offset = 2**63 - 1
    elif trouble == "under way":
        shards.under_way = True
    else:
        shards.appender.forget()
    before = shards.state()
    assert shards.appender.append_many(KEYS, KEYS, 0, None, {}) is None
    assert shards.state() == before


@COMPILED
@pytest.mark.parametrize(
    ("number", "words"), [((256, None), "type must be 0 to 255"), ((0, 1 << 63), "timestamp must")]
)
def test_a_bad_number_of_a_batch_is_refused_in_the_same_words(number: tuple[int, int | None], words: str) -> None:
    shards = Shards(3, "xxh64")
    before = shards.state()
    with pytest.raises(sej.InvalidMessageError, match=f"{words}.*nothing was appended"):
        shards.appender.append_many(KEYS, KEYS, *number, {})
    assert shards.state() == before


@COMPILED
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_shard_that_fails_keeps_no_part_from_the_others(error: BaseException) -> None:
    shards = Shards(3, "xxh64")
    index = routing.index_of(KEYS[0], 3)

    def fail() -> None:
        raise error

    broken = Sink(0, 1 << 20)
    broken.buffer = codec.Buffer(0, fail, threading.Lock())
    broken.buffer.batch_limit = 1 << 20
    shards.appender.open(index, broken.buffer)
    shards.sinks[index] = broken
    errors: dict[int, BaseException] = {}
    if isinstance(error, Exception):
        appended = shards.appender.append_many(KEYS, KEYS, 0, None, errors)
        assert errors == {index: error} and appended is not None and index not in appended
    else:
        with pytest.raises(KeyboardInterrupt):
            shards.appender.append_many(KEYS, KEYS, 0, None, errors)
    others = {routing.index_of(key, 3) for key in KEYS} - {index}
    assert {other for other, sink in enumerate(shards.sinks) if len(sink.writes) == 2} == others
    assert broken.buffer.in_doubt


@pytest.mark.parametrize("parts", [_route_py.Parts, routing.Parts], ids=["python", "chosen"])
def test_parts_end_at_the_largest_offset(parts: type[routing.Parts]) -> None:
    found, last = parts(KEYS, KEYS, 0, None, 0, 0), 2**63 - 1
    sink, full = Sink(last - len(KEYS), 1 << 20), Sink(last - len(KEYS) + 1, 1 << 20)
    assert found.pour(0, sink.buffer) == range(last - len(KEYS), last)
    with pytest.raises(sej.InvalidMessageError, match="has reached its largest offset"):
        found.pour(0, full.buffer)
    assert (full.buffer.offset, len(full.buffer)) == (last - len(KEYS) + 1, 0)


@pytest.mark.parametrize("parts", [_route_py.Parts, routing.Parts], ids=["python", "chosen"])
def test_parts_take_what_bytes_and_ints_there_are(parts: type[routing.Parts]) -> None:
    class Kind(enum.IntEnum):
        THREE = 3

    values, keys = [b"a", bytearray(b"b"), memoryview(b"c")], [memoryview(b"x")] * 3
    found = parts(values, keys, 0, None, [Kind.THREE, True, 2], 9)  # type: ignore[arg-type]
    values[0] = b"changed"
    sink = Sink(0, 1 << 20)
    assert found.pour(0, sink.buffer) == range(3)
    sink.buffer.flush()
    assert b"".join(sink.writes) == b"".join(
        codec.encode(offset, 9, kind, b"x", value) for offset, kind, value in [(0, 3, b"a"), (1, 1, b"b"), (2, 2, b"c")]
    )
    assert parts([], [], 3, None, 0, 0).indexes == []


class Longer(list[bytes]):
    """It says that it has more values than it has."""

    def __len__(self) -> int:
        return 1000


@pytest.mark.parametrize("parts", [_route_py.Parts, routing.Parts], ids=["python", "chosen"])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([b"a"], [], 3, None, 0, 0), ValueError, "keys must have 1 entries, one for each value, got 0"),
        (([b"a"], [b""], 3, None, [], 0), ValueError, "type must have 1 entries, one for each value, got 0"),
        (([b"a"], [b""], 3, None, 0, [1, 2]), ValueError, "timestamp must have 1 entries, one for each value, got 2"),
        (([b"a"], [b""], 11, None, 0, 0), ValueError, "bits must be 0 to 10, got 11"),
        (([b"a", "b"], [b"", b""], 3, None, 0, 0), TypeError, "value 1 must be bytes, not str: encode it first"),
        (([b"a"], [None], 3, None, 0, 0), TypeError, "key 0 must be bytes, not NoneType"),
        (([b"a"], [b"k" * 128], 3, None, 0, 0), sej.InvalidMessageError, "key 0 must have at most 127 bytes, got 128"),
        (([b"a"], [b""], 3, None, 256, 0), sej.InvalidMessageError, "type must be 0 to 255, got 256"),
        (([b"a"], [b""], 3, None, [-1], 0), sej.InvalidMessageError, "type must be 0 to 255, got -1"),
        (
            ([b"a"], [b""], 3, None, 0, 1 << 63),
            sej.InvalidMessageError,
            "timestamp must be -?[0-9]+ to [0-9]+, got 9223372036854775808",
        ),
        (([b"a"], [b""], 3, None, 0, [1.5]), TypeError, "timestamp 0 must be an int, not float"),
        (
            ([b"a", "b"], [b"", b""], 3, None, 256, 1 << 63),
            TypeError,
            "value 1 must be bytes, not str: encode it first",
        ),
        (
            ([b"a", b"b"], [b"", b""], 3, [0], 0, 0),
            ValueError,
            "indexes must have 2 entries, one for each value, got 1",
        ),
        ((Longer([b"a"]), [b""] * 1000, 3, None, 0, 0), ValueError, "longer|keys must have 1 entries"),
    ],
)
def test_bad_parts_are_refused_in_the_same_words(
    parts: type[routing.Parts], arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parts(*arguments)
