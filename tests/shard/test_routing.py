"""Which shard: the golden table, and the compiled grouping against the reference."""

import enum
import tempfile
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from shard import routing
from shard.routing import Hash
from tests.sej.support import read_all

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


@pytest.mark.parametrize("group", [routing.GROUP, routing.group])
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
    assert routing.group(values, keys, bits, indexes, places) == routing.GROUP(values, keys, bits, indexes, places)


SOME_KEYS = st.binary(min_size=3, max_size=3) | st.binary(max_size=127)
NUMBERS = st.tuples(st.integers(0, 255), st.integers(-(2**63), 2**63 - 1))


@given(
    st.lists(st.tuples(st.binary(max_size=40), SOME_KEYS, NUMBERS), max_size=40),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("xxh64", "fnv")),
)
def test_a_batch_is_what_one_batch_a_shard_would_have_written(
    batch: list[tuple[bytes, bytes, tuple[int, int]]], bits: int, own: bool, columns: bool, route: Hash
) -> None:
    values, keys = [value for value, _, _ in batch], [key for _, key, _ in batch]
    types = [kind for _, _, (kind, _) in batch] if columns else 7
    times = [stamp for _, _, (_, stamp) in batch] if columns else -5
    indexes = [len(key) & (2**bits - 1) for key in keys] if own else None
    groups = routing.GROUP(values, keys, bits, indexes, True, route)
    with tempfile.TemporaryDirectory() as folder:
        path = shard.Path(folder, "o", bits)
        with shard.Writer(path, (lambda message: len(message.key)) if own else route) as writer:
            spans = writer.append_many(values, keys, types, times)
        assert spans == {index: range(len(part[2])) for index, part in groups.items()}
        for index, (_, _, places) in groups.items():
            assert [message[1:] for message in read_all(path.dir(index))] == [
                (
                    times[place] if isinstance(times, list) else times,
                    types[place] if isinstance(types, list) else types,
                    keys[place],
                    values[place],
                )
                for place in places
            ]


KEYS = [b"key-%d" % number for number in range(20)]


def test_every_kind_of_bytes_and_ints_is_appended(tmp_path: FilePath) -> None:
    class Kind(enum.IntEnum):
        THREE = 3

    values: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
    path = shard.Path(tmp_path, "o", 0)
    with shard.Writer(path) as writer:
        assert writer.append_many(values, [memoryview(b"x")] * 3, [Kind.THREE, True, 2], 9) == {0: range(3)}
        assert writer.append_many([], [], [], []) == {}
    assert [(message.type, message.value) for message in read_all(path.dir(0))] == [(3, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([b"a"], []), ValueError, "keys must have 1 entries, one for each value, got 0"),
        (([b"a"], [b""], []), ValueError, "type must have 1 entries, one for each value, got 0"),
        (([b"a"], [b""], 0, [1, 2]), ValueError, "timestamp must have 1 entries, one for each value, got 2"),
        (([b"a", "b"], [b"", b""]), TypeError, "value 1 must be bytes, not str: encode it first"),
        (([b"a"], [None]), TypeError, "key 0 must be bytes, not NoneType"),
        (([b"a"], [b"k" * 128]), sej.InvalidMessageError, "key 0 must have at most 127 bytes, got 128"),
        (([b"a"], [b""], 256), sej.InvalidMessageError, "type must be 0 to 255, got 256"),
        (([b"a", b"b"], [b"", b""], [0, -1]), sej.InvalidMessageError, "type must be 0 to 255, got -1"),
        (
            ([b"a"], [b""], 0, 1 << 63),
            sej.InvalidMessageError,
            "timestamp must be -?[0-9]+ to [0-9]+, got 9223372036854775808",
        ),
        (([b"a"], [b""], 0, [1.5]), TypeError, "timestamp 0 must be an int, not float"),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(
    tmp_path: FilePath, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with shard.Writer(shard.Path(tmp_path, "o", 3)) as writer:
        with pytest.raises(error, match=words):
            writer.append_many(*arguments)
        assert writer.offsets == {}
