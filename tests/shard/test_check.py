"""shard.check: each oddity is said once, by kind and path; a healthy tree has none."""

import errno
import os
import shutil
from pathlib import Path as FilePath
from typing import Any

import shard
from sej.system.disk import OsDisk, Status
from tests.shard.test_trees import journal


def kinds(root: FilePath) -> list[tuple[str, str]]:
    return [(problem.kind, FilePath(problem.path).name) for problem in shard.check(root)]


def test_a_shard_that_was_made_and_is_gone(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 5)
    with shard.Writer(path) as writer:
        lost, _ = writer.append(b"x", b"a")
        writer.append_many([b"x"] * 2, [b"b", b"c"])
    assert kinds(tmp_path) == []
    shutil.rmtree(path.dir(lost))
    assert kinds(tmp_path) == [("missing shard", f"orders.5.{lost:03x}")]
    assert "restore it" in shard.check(tmp_path)[0].reason


def test_a_tree_without_a_record_misses_what_is_not_there(tmp_path: FilePath) -> None:
    for index in (0, 1, 3):
        journal(shard.Path(tmp_path, "orders", 2).dir(index))
    assert kinds(tmp_path) == [("missing shard", "orders.2.002")]
    assert "no record" in shard.check(tmp_path)[0].reason


def test_two_bit_counts_under_one_prefix(tmp_path: FilePath) -> None:
    for path in (shard.Path(tmp_path, "orders", 1), shard.Path(tmp_path, "orders", 2), shard.Path(tmp_path, "", 1)):
        for index in range(path.count):
            journal(path.dir(index))
    assert kinds(tmp_path) == [("bit counts", "orders")]
    reason = shard.check(tmp_path)[0].reason
    assert "sharded journals of 1 and 2 bits (with 2 and 4 shards)" in reason


def test_foreign_things(tmp_path: FilePath) -> None:
    journal(shard.Path(tmp_path, "orders", 0).dir(0))
    (tmp_path / "notes").mkdir()
    (tmp_path / "orders.3.001").mkdir()
    (tmp_path / "README").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / ".git").mkdir()
    assert kinds(tmp_path) == [
        ("foreign file", "README"),
        ("foreign file", "link"),
        ("foreign directory", "notes"),
        ("foreign directory", "orders.3.001"),
    ]
    assert "messages are lost or elsewhere" in shard.check(tmp_path)[3].reason


def test_a_journal_with_a_name_of_its_own(tmp_path: FilePath) -> None:
    for index in range(2):
        journal(shard.Path(tmp_path, "orders", 1).dir(index))
    journal(tmp_path, "orders.1.002")
    journal(tmp_path, "ordérs")
    assert kinds(tmp_path) == [("bad name", "ordérs"), ("bad name", "orders.1.002")][::-1]


def test_a_hub_misses_nothing(tmp_path: FilePath) -> None:
    journal(tmp_path, "berlin.orders.3.001")
    journal(tmp_path, "paris.log")
    assert kinds(tmp_path) == []
    journal(tmp_path, "paris.3.001")
    (tmp_path / ".hub").touch()
    assert kinds(tmp_path) == []
    journal(tmp_path, "orders")
    assert kinds(tmp_path) == [("bad name", "orders")]


def test_a_stray_name_that_would_fit_a_hub(tmp_path: FilePath) -> None:
    """Without a record the root is reported as ambiguous. With a record it is a sharded journal."""
    for index in range(2):
        journal(shard.Path(tmp_path / "old", "orders", 1).dir(index))
    journal(tmp_path / "old", "orders.1.00g")
    assert kinds(tmp_path / "old") == [("layout", "old")]
    assert "'orders.1.00g' for one" in shard.check(tmp_path / "old")[0].reason
    with shard.Writer(shard.Path(tmp_path / "new", "orders", 0)) as writer:
        writer.append(b"x")
    journal(tmp_path / "new", "orders.1.00g")
    assert kinds(tmp_path / "new") == [("bad name", "orders.1.00g")]


def test_foreign_files_among_segments(tmp_path: FilePath) -> None:
    journal(tmp_path, "orders.1.000")
    journal(tmp_path, "orders.1.001")
    (tmp_path / "orders.1.001" / "jnl" / "notes.txt").touch()
    assert kinds(tmp_path) == [("foreign file", "notes.txt")]
    assert shard.check(tmp_path / "orders.1.000") == []
    assert [problem.kind for problem in shard.check(tmp_path / "orders.1.001")] == ["foreign file"]


def test_what_may_not_be_looked_into(tmp_path: FilePath) -> None:
    """No mode bits stop root: the disk says no instead."""

    class Disk(OsDisk):
        __slots__ = ()

        def status(self, path: Any) -> Status | None:
            if os.fspath(path).endswith("orders.1.000/jnl"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().status(path)

        def list(self, path: Any) -> list[str]:
            if os.fspath(path).endswith("orders.1.001/jnl"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().list(path)

    for index in range(2):
        journal(shard.Path(tmp_path, "orders", 1).dir(index))
    found = shard.check(tmp_path, disk=Disk())
    assert [(problem.kind, FilePath(problem.path).name) for problem in found] == [
        ("unreadable", "orders.1.000"),
        ("unreadable", "jnl"),
    ]
