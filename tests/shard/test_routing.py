"""Which shard: the golden table, and the compiled grouping against the reference."""

from collections.abc import Callable
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from shard import _route_py, routing

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
    with pytest.raises(TypeError, match="must be bytes, not str"):
        shard.index_of("alice", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bits 11"):
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
        ([b"a"], [], ValueError, "keys has 0 entries for 1 values"),
        ([b"a", "b"], [b"", b""], TypeError, "value 1 must be bytes, not str: encode it first"),
        ([b"a"], [None], TypeError, "key 0 must be bytes, not NoneType"),
        ([b"a", b"b"], [b"", b"k" * 128], sej.InvalidMessageError, "key 1 has 128 bytes; the format allows 127"),
    ],
)
def test_a_bad_batch_is_refused_in_the_same_words(
    group: Group, values: list[bytes], keys: list[bytes], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        group(values, keys, 3, None)
