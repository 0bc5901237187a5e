"""The directories under a root are recognised as a sharded journal or a hub, or reported as neither."""

import shutil
import threading
from pathlib import Path as FilePath

import pytest

import sej
import shard


def journal(*parts: str | FilePath) -> FilePath:
    sej.Writer(FilePath(*parts)).close()
    return FilePath(*parts)


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


# --- new ones are reported once, and the watch can be stopped


def test_only_what_is_new_and_nothing_twice(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 3)
    journal(path.dir(1))
    with shard.watch(tmp_path) as watch:
        assert [found.index for found in watch.tree] == [1]
        assert watch.read() == []
        journal(path.dir(5))
        (tmp_path / "notes").mkdir()
        journal(path.dir(2))
        assert [(found.prefix, found.index) for found in watch.read(10)] == [("orders", 2), ("orders", 5)]
        assert watch.read(0.01) == []
        (tmp_path / "notes" / "jnl").mkdir()
        assert [found.name for found in watch.read(10)] == ["notes"]


def test_it_waits_and_can_be_stopped(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 3)
    got: list[str] = []
    came = threading.Semaphore(0)
    watch = shard.watch(tmp_path)

    def follow() -> None:
        for found in watch:
            got.append(found.name)
            came.release()

    thread = threading.Thread(target=follow)
    thread.start()
    for index in range(4):
        journal(path.dir(index))
        assert came.acquire(timeout=60)
    watch.stop()
    thread.join(60)
    assert not thread.is_alive()
    watch.close()
    assert got == [f"orders.3.{index:03x}" for index in range(4)]
    with pytest.raises(sej.ClosedError):
        watch.read()


def test_a_hubs_new_clients(tmp_path: FilePath) -> None:
    (tmp_path / ".hub").touch()
    with shard.watch(tmp_path) as watch:
        journal(tmp_path, "berlin.orders.3.001")
        (found,) = watch.read(10)
        assert (found.client, found.prefix, found.index) == ("berlin", "orders", 1)
        journal(tmp_path, "nodot")
        with pytest.raises(sej.NotAJournalError, match="nodot"):
            watch.read(10)


def test_a_bad_name_is_said_once_and_hides_nothing(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 3)
    journal(path.dir(1))
    with shard.watch(tmp_path) as watch:
        journal(tmp_path, "orders.3.00g")
        journal(path.dir(0))
        journal(path.dir(7))
        assert [found.index for found in watch.read(10)] == [0, 7]
        with pytest.raises(sej.NotAJournalError, match=r"orders\.3\.00g"):
            watch.read(10)
        assert watch.read() == []
        shutil.rmtree(path.dir(7))
        assert watch.read() == []
        journal(path.dir(7))
        assert [found.index for found in watch.read(10)] == [7]


def test_a_relative_root_means_the_directory_of_the_making(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with shard.watch("root", layout="shards", timeout=0.0) as watch:
        monkeypatch.chdir(tmp_path / "elsewhere")
        sej.Writer(tmp_path / "root" / "orders.1.001").close()
        assert [found.index for found in watch.read()] == [1]
