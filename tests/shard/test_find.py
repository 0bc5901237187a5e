"""The directories under a root are recognised as a sharded journal or a hub, or reported as neither."""

from pathlib import Path as FilePath

import pytest

import sej
import shard


def journal(*parts: str | FilePath) -> FilePath:
    path = FilePath(*parts)
    with sej.Writer(path) as writer:
        writer.append(b"x")
    return path


def test_one_directory(tmp_path: FilePath) -> None:
    tree = shard.find(journal(tmp_path, "orders.3.005"))
    assert tree.layout == "directory"
    assert [found.path for found in tree] == [str(tmp_path / "orders.3.005")]
    assert (tree[0].client, tree[0].prefix, tree[0].bits, tree[0].index) == (None, None, None, None)


def test_a_tree_of_shards(tmp_path: FilePath) -> None:
    for name in ("orders.3.005", "orders.3.001", "3.007", "users"):
        journal(tmp_path, name)
    (tmp_path / ".workers").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.txt").write_text("x")
    journal(tmp_path, ".hidden.3.001")
    tree = shard.find(tmp_path)
    assert tree.layout == "shards"
    assert [found.name for found in tree] == ["3.007", "orders.3.001", "orders.3.005", "users"]
    assert (tree[2].prefix, tree[2].bits, tree[2].index) == ("orders", 3, 5)
    assert {path.name for path in tree.paths} == {"3", "orders.3", "users"}
    assert len(tree) == 4


def test_a_hub_by_its_marker(tmp_path: FilePath) -> None:
    journal(tmp_path, "orders.3.005")  # could be a shard as well
    assert shard.find(tmp_path).layout == "shards"
    (tmp_path / ".hub").touch()
    (found,) = shard.find(tmp_path)
    assert (found.client, found.prefix, found.bits, found.index) == ("orders", "", 3, 5)
    assert shard.find(tmp_path, layout="shards")[0].prefix == "orders"


def test_a_hub_by_its_names(tmp_path: FilePath) -> None:
    journal(tmp_path, "berlin.orders.3.005")
    journal(tmp_path, "paris.my.journal")
    tree = shard.find(tmp_path)
    assert tree.layout == "hub"
    assert [(found.client, found.prefix, found.bits, found.index) for found in tree] == [
        ("berlin", "orders", 3, 5),
        ("paris", None, None, None),
    ]
    assert tree.paths == []


def test_an_empty_root_is_a_tree_without_shards(tmp_path: FilePath) -> None:
    tree = shard.find(tmp_path)
    assert (tree.layout, list(tree)) == ("shards", [])


def test_what_fits_nothing_is_said(tmp_path: FilePath) -> None:
    with pytest.raises(sej.JournalNotFoundError, match="does not exist"):
        shard.find(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(sej.NotAJournalError, match="this is a file"):
        shard.find(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(sej.NotAJournalError, match="no jnl/"):
        shard.find(tmp_path / "empty", layout="directory")
    journal(tmp_path, "root", "ordérs")
    with pytest.raises(sej.NotAJournalError, match="ordérs"):
        shard.find(tmp_path / "root")
