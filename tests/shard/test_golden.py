"""Trees that the original wrote: found, read, and continued; it routes by FNV-1a 32 of the key."""

import base64
import json
import shutil
from pathlib import Path as FilePath
from typing import Any

import pytest

import sej
import shard
from tests.shard.test_routes import fnv1a

GOLDEN = FilePath(__file__).parent.parent / "golden" / "sej"
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
