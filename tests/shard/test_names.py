"""Names of shards: what is built parses back, and nothing else does."""

import errno
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from sej.system.disk import OsDisk, Status
from shard import names, routing
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


# --- The directories under a root are recognised as a sharded journal or a hub, or reported as neither


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


# --- shard.check: each oddity is said once, by kind and path; a healthy tree has none


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


# --- docs/formats/shard.md says what the code does


PAGE = (FilePath(__file__).resolve().parent.parent.parent / "docs" / "formats" / "shard.md").read_text()
KEYS = re.findall(r"^\| (\S+) \| `([0-9a-f]{16})` \| (-?\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
FOLDED = re.findall(r"^\| (\S+) \| `([0-9a-f]{8})` \| `([0-9a-f]{4})` \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
NAMES = re.findall(r"^(\S+) +(?:prefix (\w+)|no prefix), ([\d,]+|one) shards?(?:, shard (\d+))?", PAGE, re.MULTILINE)


def test_there_are_rows() -> None:
    assert len(KEYS) == len(FOLDED) == 4
    assert len(NAMES) == 4


@pytest.mark.parametrize("row", KEYS)
def test_keys_are_routed_as_the_table_says(row: tuple[str, str, str, str, str]) -> None:
    shown, digest, signed, of_8, of_1024 = row
    key = b"" if shown == "(empty)" else shown.strip("`").encode()
    assert xxhash.xxh64_hexdigest(key, routing.HASH_SEED) == digest
    assert int(digest, 16) - (int(signed) % 2**64) == 0
    assert (shard.index_of(key, 3), shard.index_of(key, 10)) == (int(of_8), int(of_1024))


@pytest.mark.parametrize("row", FOLDED)
def test_keys_are_folded_as_the_table_says(row: tuple[str, str, str, str, str]) -> None:
    shown, digest, folded, of_8, of_1024 = row
    key = b"" if shown == "(empty)" else shown.strip("`").encode()
    value = int(digest, 16)
    assert (value >> 16) ^ (value & 0xFFFF) == int(folded, 16)
    assert (shard.index_of(key, 3, "fnv"), shard.index_of(key, 10, "fnv")) == (int(of_8), int(of_1024))


@pytest.mark.parametrize("row", NAMES)
def test_names_mean_what_the_page_says(row: tuple[str, str, str, str]) -> None:
    name, prefix, shards, index = row
    parts = split_name(name)
    assert parts is not None
    count = 1 if shards == "one" else int(shards.replace(",", ""))
    assert (parts[0], 1 << parts[1]) == (prefix, count)
    if index:
        assert parts[2] == int(index)


def test_every_file_next_to_the_shards_is_named() -> None:
    for directory in (
        names.HUB_MARKER,
        names.WORKERS_DIR,
        names.RESHARD_DIR,
        names.RECORDS_DIR,
    ):
        assert f"`{directory}" in PAGE
    assert f"seed {routing.HASH_SEED}" in PAGE
