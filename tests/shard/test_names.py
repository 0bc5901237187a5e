"""Names of shards: what is built parses back, and nothing else does."""

import pickle
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from shard.names import split_name


@pytest.mark.parametrize(
    ("prefix", "bits", "index", "name"),
    [
        ("orders", 3, 5, "orders.3.005"),
        ("", 3, 5, "3.005"),
        ("orders", 0, 0, "orders"),
        ("a-b_C", 10, 1023, "a-b_C.a.3ff"),
        ("3", 1, 1, "3.1.001"),
    ],
)
def test_a_name_is_built_and_parsed(prefix: str, bits: int, index: int, name: str, tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, prefix, bits)
    assert path.dir(index) == str(tmp_path / name)
    assert shard.Path.parse(tmp_path / name) == (path, index)
    assert shard.Path.parse(f"{tmp_path / name}/") == (path, index)
    assert path.count == 2**bits == len(path.dirs())
    assert pickle.loads(pickle.dumps(path)) == path
    assert len({path, pickle.loads(pickle.dumps(path))}) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "orders.3",
        "orders.3.5",
        "orders.3.0005",
        "orders.3.008",
        "orders.0.000",
        "orders.b.000",
        "3.00A",
        "a.b.3.001",
        ".3.001",
        "orders.3.001\n",
        "orders.3.001 ",
        "ordérs.3.001",
        "a b",
        "A.A.3ff",
        "../x.3.001x",
    ],
)
def test_anything_else_is_no_shard(name: str) -> None:
    assert split_name(name) is None
    with pytest.raises(sej.InvalidNameError, match="not a shard name"):
        shard.Path.parse(f"root/{name}" if name else "")


@pytest.mark.parametrize("prefix", ["../shard-escape/x", "a b", "é", "a.b", "a/b", "a\n", "\0"])
def test_a_prefix_must_match_in_full(prefix: str) -> None:
    with pytest.raises(sej.InvalidNameError, match="must be ASCII letters, digits"):
        shard.Path("root", prefix, 3)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="bits must be 0 to 10, got 11"):
        shard.Path("root", "p", 11)
    with pytest.raises(sej.InvalidNameError, match="bits 0 needs a prefix"):
        shard.Path("root", bits=0)
    with pytest.raises(ValueError, match=r"index must be 0 to 7, the shards of orders\.3, got 8"):
        shard.Path("root", "orders", 3).dir(8)
    with pytest.raises(AttributeError, match="cannot assign to field"):
        shard.Path("root", "orders", 3).bits = 4  # type: ignore[misc]


@given(st.text(max_size=14))
def test_what_parses_builds_the_same_name(name: str) -> None:
    parts = split_name(name)
    if parts is not None:
        assert shard.Path("/trees", parts[0], parts[1]).dir(parts[2]) == f"/trees/{name}"
        assert shard.Path.parse(name) == (shard.Path(".", parts[0], parts[1]), parts[2])


def test_a_text_in_place_of_a_sharded_journal_is_refused() -> None:
    path = shard.Path("data", "orders", 2)
    wrong: Any = "data/orders.3"
    calls: list[Callable[[], object]] = [
        *(lambda: shard.Writer(wrong), lambda: shard.Scanner(wrong), lambda: shard.Worker(wrong, "name")),
        *(lambda: shard.lag(wrong, "name"), lambda: shard.reshard(wrong, path), lambda: shard.reshard(path, wrong)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"must be a shard\.Path, got str; use shard\.Path\(root, prefix, bits\)"):
            call()
