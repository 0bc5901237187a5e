"""The hash of a sharded journal: the original's fold, remembered, and refused if keys were routed in another way."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path as FilePath

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from sej.cli import main
from shard import routing
from shard.cli import app
from tests.crash.disk import CrashDisk

KEYS = [b"", *(b"key-%d" % number for number in range(999))]
GOLDEN = FilePath(__file__).parent.parent / "golden" / "sej" / "shard-orders-3" / "dir"


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
    shutil.copytree(GOLDEN, tmp_path / "dir")
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
