"""Which shard: the golden table, and the compiled grouping against the reference."""

import base64
import enum
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from sej.cli import main
from shard import routing
from shard.cli import app
from shard.routing import Hash
from tests.crash.disk import CrashDisk
from tests.sej.support import read_all

TABLE = FilePath(__file__).parent.parent / "golden" / "shard" / "xxhash64.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 1000
    assert {len(key) // 2 for key, _ in ROWS} == set(range(128))


@pytest.mark.parametrize("bits", range(11))
def test_index_is_the_low_bits_of_sparks_hash(bits: int) -> None:
    for key, value in ROWS:
        assert shard.index_of(bytes.fromhex(key), bits) == int(value) & (2**bits - 1), key


def test_every_kind_of_bytes_is_a_key() -> None:
    path = shard.Path("r", "p", 10)
    assert path.index(b"alice") == path.index(bytearray(b"alice")) == path.index(memoryview(b"alice")) == 147
    with pytest.raises(TypeError, match="must be bytes, got str"):
        shard.index_of("alice", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bits must be 0 to 10, got 11"):
        shard.index_of(b"", 11)


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


# --- The hash of a sharded journal: the original's fold, remembered, and refused if keys were routed in another way


KEYS = [b"", *(b"key-%d" % number for number in range(999))]
GOLDEN = FilePath(__file__).parent.parent / "golden" / "sej"


def fnv1a(key: bytes) -> int:
    found = 0x811C9DC5
    for byte in key:
        found = ((found ^ byte) * 16777619) % 2**32
    return found


def fold(key: bytes) -> int:
    """The original's example, written from its description: FNV-1a 32, upper half XOR lower half."""
    return (fnv1a(key) // 65536) ^ (fnv1a(key) % 65536)


def foreign(root: FilePath, route: Callable[[bytes], int] = fold, bits: int = 3) -> shard.Path:
    """A sharded journal that another program wrote: plain journals, without a record."""
    path = shard.Path(root, "orders", bits)
    for index in range(path.count):
        with sej.Writer(path.dir(index)) as writer:
            mine = [key for key in KEYS if route(key) % path.count == index]
            writer.append_many([b"theirs"] * len(mine), mine)
    return path


def everything(path: shard.Path) -> dict[str, bytes]:
    return {
        os.path.join(directory, name): FilePath(directory, name).read_bytes()
        for directory, _, names in os.walk(path.root)
        for name in names
        if name.endswith(".jnl")
    }


def shards_of(path: shard.Path) -> dict[bytes, set[int]]:
    found: dict[bytes, set[int]] = {}
    for directory in shard.find(path.root):
        assert directory.index is not None
        with sej.Scanner(directory.path) as scanner:
            for message in scanner:
                found.setdefault(message.key, set()).add(directory.index)
    return found


@given(st.lists(st.binary(max_size=127), max_size=30), st.integers(0, 10))
def test_the_twins_hash_alike(keys: list[bytes], bits: int) -> None:
    assert [routing.hash_of(key, "fnv") for key in keys] == [fold(key) for key in keys]
    values = [b"v"] * len(keys)
    assert routing.group(values, keys, bits, None, True, "fnv") == routing.GROUP(values, keys, bits, None, True, "fnv")


def test_names_of_routes_are_checked(tmp_path: FilePath) -> None:
    with pytest.raises(ValueError, match=r"route must be one of 'xxh64', 'fnv', got 'md5', or a function of a message"):
        shard.Writer(shard.Path(tmp_path, "o", 1), route="md5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="route must be one of 'xxh64', 'fnv'"):
        shard.Writer(shard.Path(tmp_path, "o", 1), route=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="route must be one of"):
        shard.index_of(b"", 1, "md5")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_foreign_journal_is_not_split(tmp_path: FilePath) -> None:
    path = foreign(tmp_path)
    before = everything(path)
    with pytest.raises(shard.RouteError, match=r"route='xxh64' gives: key b'.*pass route='fnv', which fits all"):
        shard.Writer(path)
    assert everything(path) == before


def test_the_fold_continues_a_foreign_journal(tmp_path: FilePath) -> None:
    path = foreign(tmp_path)
    with shard.Writer(path, route="fnv") as writer:
        writer.append_many([b"ours"] * 500, KEYS[:500])
        for key in KEYS[500:]:
            assert writer.append(b"ours", key)[0] == path.index(key, "fnv")
    assert all(len(there) == 1 for there in shards_of(path).values())
    assert len(shards_of(path)) == len(KEYS)
    assert shard.check(tmp_path) == []


def test_the_route_is_remembered(tmp_path: FilePath) -> None:
    path = foreign(tmp_path)
    with shard.Writer(path, route="fnv") as writer:
        writer.append(b"ours", b"alice")
    with shard.Writer(path) as writer:
        assert writer.append(b"again", b"alice") == (5, writer.offsets[5] - 1)
    with pytest.raises(shard.RouteError, match=r"route must be 'fnv'.* got 'xxh64'; leave route out"):
        shard.Writer(path, route="xxh64")
    other = shard.Path(tmp_path / "other", "o", 3)
    with shard.Writer(other) as writer:
        writer.append_many([b"v"], [b"k"])
    with pytest.raises(shard.RouteError, match=r"route must be 'xxh64'"):
        shard.Writer(other, route="fnv")


def test_the_first_append_decides_between_two_writers(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "o", 3)
    with shard.Writer(path, route="fnv") as one, shard.Writer(path) as other:
        one.append(b"v", b"alice")
        for append in (lambda: other.append(b"v", b"bob"), lambda: other.append_many([b"v"], [b"bob"])):
            with pytest.raises(shard.RouteError, match="route must be 'fnv'"):
                append()
        one.append(b"v", b"bob")
    assert shards_of(path) == {b"alice": {5}, b"bob": {path.index(b"bob", "fnv")}}


def test_a_torn_record_does_not_hide_the_route(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "o", 3)
    (tmp_path / ".shards").mkdir()
    (tmp_path / ".shards" / "o.3").write_bytes(b"route xx")  # power was lost within the first append
    with shard.Writer(path, route="fnv") as writer:
        writer.append(b"v", b"alice")
    with pytest.raises(shard.RouteError, match="'fnv'"):
        shard.Writer(path, route="xxh64")
    assert [problem.kind for problem in shard.check(tmp_path)] == ["record"]


def test_an_unfolded_hash_asks_for_the_function(tmp_path: FilePath) -> None:
    shutil.copytree(GOLDEN / "shard-orders-3" / "dir", tmp_path / "dir")
    path = shard.Path(tmp_path / "dir", "orders", 3)
    for route in (None, "xxh64", "fnv"):
        with pytest.raises(shard.RouteError, match="pass the function that routed them"):
            shard.Writer(path, route)
    with shard.Writer(path, lambda message: fnv1a(message.key)) as writer:
        writer.append(b"v", b"alice")


def test_check_names_keys_in_two_shards(tmp_path: FilePath) -> None:
    path = foreign(tmp_path)
    with shard.Writer(path, lambda message: path.index(message.key)) as writer:  # as versions before this one did
        writer.append_many([b"ours"] * len(KEYS), KEYS)
    split = sum(len(there) > 1 for there in shards_of(path).values())
    (problem,) = [found for found in shard.check(tmp_path) if found.kind == "split keys"]
    assert problem.path == str(tmp_path / "orders.3")
    assert re.match(rf"{split} of 1000 compared keys are in more than one shard \(b'' is in", problem.reason)
    assert "split keys" not in {found.kind for found in shard.check(tmp_path, sample=0)}


def test_resharding_keeps_the_route_or_changes_it(tmp_path: FilePath) -> None:
    path = foreign(tmp_path)
    with shard.Writer(path, route="fnv") as writer:
        writer.append(b"ours", b"alice")
    for name, options, route in (("same", [], "fnv"), ("other", ["--route", "xxh64"], "xxh64")):
        done = CliRunner().invoke(app, ["reshard", f"{tmp_path}/orders.3", f"{tmp_path}/{name}/orders.5", *options])
        assert done.exit_code == 0, done.output
        target = shard.Path(tmp_path / name, "orders", 5)
        there = shards_of(target)
        assert {key: {target.index(key, route)} for key in KEYS} | {b"alice": {target.index(b"alice", route)}} == there  # type: ignore[arg-type]
        with shard.Writer(target) as writer:
            assert writer.append(b"v", b"alice")[0] == target.index(b"alice", route)  # type: ignore[arg-type]


def test_the_hash_is_remembered_after_a_power_failure() -> None:
    """The first key is in the same shard by both hashes, so only the record tells."""
    path, disk = shard.Path("/root", "orders", 1), CrashDisk()
    same = next(key for key in KEYS if path.index(key) == path.index(key, "fnv"))
    other = next(key for key in KEYS if path.index(key) != path.index(key, "fnv"))
    with shard.Writer(path, route="fnv", durability="disk", disk=disk) as writer:
        writer.append(b"first", same)
        left = disk.crash()
    with shard.Writer(path, disk=left) as writer:
        assert writer.append(b"second", other)[0] == path.index(other, "fnv")


@pytest.mark.parametrize("bits", [0, 2])
def test_a_second_sharded_journal_of_a_prefix_is_made_by_a_reshard_only(bits: int, tmp_path: FilePath) -> None:
    path, second = shard.Path(tmp_path, "orders", 3), shard.Path(tmp_path, "orders", bits)
    with shard.Writer(path) as writer:
        writer.append(b"v", b"k")
    with pytest.raises(shard.RouteError, match="bits must be 3, as in the sharded journal") as refused:
        shard.Writer(second)
    assert sorted(found.name for found in tmp_path.iterdir()) == [".shards", f"orders.3.{path.index(b'k'):03x}"]
    shard.Writer(shard.Path(tmp_path, "other", bits)).close()
    command = re.search(r"sej (shard reshard \S+ \S+)", str(refused.value))
    assert command is not None
    assert main(command[1].split()) == 0
    for each in (path, second):
        with shard.Writer(each) as writer:
            writer.append(b"v", b"k")
    assert sej.Journal(second.dir(second.index(b"k"))).end_offset == 2


# --- Trees that the original wrote: found, read, and continued; it routes by FNV-1a 32 of the key


CASES = sorted(path.name for path in GOLDEN.glob("shard-*"))


def message_of(row: dict[str, Any]) -> sej.Message:
    stamp = sej.NO_TIMESTAMP if row["timestamp_ns"] is None else row["timestamp_ns"]
    key, value = base64.b64decode(row["key_b64"]), base64.b64decode(row["value_b64"])
    return sej.Message(row["offset"], stamp, row["type"], key, value)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: FilePath) -> tuple[shard.Path, dict[str, Any]]:
    shutil.copytree(GOLDEN / request.param / "dir", tmp_path / "dir")
    expected = json.loads((GOLDEN / request.param / "expected.json").read_text())
    return shard.Path(tmp_path / "dir", expected["prefix"], expected["shard_bit"]), expected


def test_there_are_cases() -> None:
    assert len(CASES) == 5


def test_the_tree_is_found(case: tuple[shard.Path, dict[str, Any]]) -> None:
    path, expected = case
    tree = shard.find(path.root)
    assert tree.layout == "shards"
    assert tree.paths == [path]
    assert [found.name for found in tree] == sorted(expected["shards"])


def test_every_message_is_read_and_lies_where_its_key_belongs(case: tuple[shard.Path, dict[str, Any]]) -> None:
    path, expected = case
    for name, rows in expected["shards"].items():
        found, index = shard.Path.parse(f"{path.root}/{name}")
        assert found == path
        with sej.Scanner(path.dir(index)) as scanner:
            messages = list(scanner)
        assert messages == [message_of(row) for row in rows]
        assert all(fnv1a(message.key) & (path.count - 1) == index for message in messages)


def test_the_same_messages_make_the_same_bytes(case: tuple[shard.Path, dict[str, Any]], tmp_path: FilePath) -> None:
    path, expected = case
    again = shard.Path(tmp_path / "again", path.prefix, path.bits)
    rows = {name: iter(map(message_of, rows)) for name, rows in expected["shards"].items()}
    with shard.Writer(again, route=lambda message: fnv1a(message.key)) as writer:
        for step in expected["append_order"]:
            message = next(rows[step["shard"]])
            index, offset = writer.append(message.value, message.key, message.type, message.timestamp)
            assert (FilePath(again.dir(index)).name, offset) == (step["shard"], step["offset"])
    for name in expected["shards"]:
        mine = FilePath(again.root, name, "jnl", "0000000000000000.jnl").read_bytes()
        assert mine == FilePath(path.root, name, "jnl", "0000000000000000.jnl").read_bytes()
