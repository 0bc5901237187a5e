"""What the originals left is read as documented, case by case."""

from pathlib import Path
from typing import Any

import pytest

import kestrel
from kestrel import segmented
from kestrel.files import WRITER_MAGIC, queue_names
from kestrel.segmented.files import read_reader_file, read_writer_file
from kestrel.segmented.format import encode_put
from tests.kestrel.support import cases, lay_out, outcome, plain, tree

CASES = cases("kestrel")


def as_row(item: kestrel.Item) -> tuple[int | None, int, bytes]:
    return item.add_time, item.expiry, item.data


def row(item: dict[str, Any]) -> tuple[int | None, int, bytes]:
    return item["add_time"], item["expiry"], plain(item["data"])


@pytest.mark.parametrize(("kind", "count"), [("kestrel", 53), ("libkestrel", 47)])
def test_no_case_is_missing(kind: str, count: int) -> None:
    assert len(cases(kind)) == count


@pytest.mark.parametrize("case", CASES)
def test_operations_are_read(case: str, tmp_path: Path) -> None:
    expected = lay_out("kestrel", case, tmp_path)
    for name, rows in expected["ops"].items():
        found, error = outcome(kestrel.read_journal(tmp_path / name))
        good = [op for op in rows if "error" not in op]
        assert len(found) == len(good)
        for operation, due in zip(found, good, strict=True):
            assert (operation.position, operation.opcode, operation.name) == (due["offset"], due["opcode"], due["op"])
            assert operation.size == due["length"]
            assert operation.xid == due.get("xid")
            assert operation.count == due.get("count")
            assert operation.add_time == due.get("add_time")
            assert operation.expiry == due.get("expiry")
            assert operation.data == (plain(due["data"]) if "data" in due else None)
        damaged = [op for op in rows if "error" in op]
        assert (error is not None) == bool(damaged)
        if error is not None:
            assert error.position == damaged[0]["offset"]
            assert error.path == str(tmp_path / name)


@pytest.mark.parametrize("case", CASES)
def test_replay_is_as_documented_and_changes_nothing(case: str, tmp_path: Path) -> None:
    manifest = lay_out("kestrel", case, tmp_path)
    before = tree(tmp_path)
    state = kestrel.replay(tmp_path, manifest["queue"])
    expected = manifest["expected"]
    assert [as_row(item) for item in state.items] == [row(item) for item in expected["items"]]
    assert [(xid, as_row(item)) for xid, item in state.open_transactions.items()] == [
        (item["xid"], row(item)) for item in expected["open_transactions"]
    ]
    assert state.last_xid == expected["last_xid"]
    assert [as_row(item) for item in state.recovered] == [row(item) for item in expected["items_after_recovery"]]
    assert [Path(path).name for path in state.files] == manifest["replay_order"]
    damaged = {(name, op["offset"]) for name, ops in manifest["ops"].items() for op in ops if "error" in op} & {
        (name, op["offset"])
        for name in manifest["replay_order"]
        for op in manifest["ops"].get(name, [])
        if "error" in op
    }
    assert {(damage.file, damage.position) for damage in state.damage} == damaged
    assert tree(tmp_path) == before


def test_queue_names_are_those_of_the_folder(tmp_path: Path) -> None:
    manifest = lay_out("kestrel", "temp_files", tmp_path)
    (tmp_path / ".hidden").touch()
    (tmp_path / "q.lck").touch()
    assert queue_names(tmp_path) == manifest["queue_names"]


# --- What libkestrel left is read as documented, case by case

SEGMENTED_CASES = cases("libkestrel")


def item(row: dict[str, Any]) -> segmented.Item:
    return segmented.Item(row["id"], row["add_time"], row["expire_time"], row["error_count"], plain(row["data"]))


@pytest.mark.parametrize("case", SEGMENTED_CASES)
def test_load_is_as_documented_and_changes_nothing(case: str, tmp_path: Path) -> None:
    manifest = lay_out("libkestrel", case, tmp_path)
    before = tree(tmp_path)
    state = segmented.load(tmp_path, manifest["queue"])
    expected = manifest["expected"]
    assert state.items == [item(row) for row in expected["items"]]
    assert state.tail_id == expected["tail_id"]
    assert {name: (mark.head, sorted(mark.done), state.pending(name)) for name, mark in state.readers.items()} == {
        row["name"]: (row["head"], row["done"], row["pending_ids"]) for row in expected["readers"]
    }
    damaged = {damage.file for damage in state.damage}
    for row in expected["readers"]:
        assert (f"{manifest['queue']}.read.{row['name']}" in damaged) == row["damaged"]
    assert bool(state.beyond_end) == (case == "zero_hole")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("case", SEGMENTED_CASES)
def test_writer_files_are_read(case: str, tmp_path: Path) -> None:
    manifest = lay_out("libkestrel", case, tmp_path)
    for name, rows in manifest["records"].items():
        if ".read." in name or case in ("put_header_7", "put_header_9", "wrong_magic_writer"):
            continue
        found, error = outcome(read_writer_file(tmp_path / name))
        puts = [row for row in rows if row.get("record") == "PUT"]
        if case == "negative_size":
            puts = puts[:1]
        assert found == [item(row) for row in puts]
        errors = [row for row in rows if "error" in row]
        assert (error is not None) == (bool(errors) or case == "negative_size")
        if error is not None:
            due = errors[0].get("last_valid_position", 0) if errors else 30
            assert (error.path, error.position) == (str(tmp_path / name), due)


@pytest.mark.parametrize("case", SEGMENTED_CASES)
def test_reader_files_are_read(case: str, tmp_path: Path) -> None:
    manifest = lay_out("libkestrel", case, tmp_path)
    for name, rows in manifest["records"].items():
        if ".read." not in name or case == "wrong_magic_reader":
            continue
        if any("error" in row for row in rows):
            with pytest.raises(kestrel.KestrelError) as caught:
                read_reader_file(tmp_path / name)
            due = next(row for row in rows if "error" in row).get("last_valid_position", 0)
            assert caught.value.position == due
            continue
        heads = [row["id"] for row in rows if row.get("record") == "READ_HEAD"]
        done = {number for row in rows if row.get("record") == "READ_DONE" for number in row["ids"]}
        assert read_reader_file(tmp_path / name) == segmented.Bookmark(heads[-1] if heads else 0, frozenset(done))


def test_a_wrong_magic_is_refused(tmp_path: Path) -> None:
    lay_out("libkestrel", "wrong_magic_reader", tmp_path)
    with pytest.raises(kestrel.DamageError, match="26 3c 26 03"):
        read_reader_file(tmp_path / "jobs.read.x")
    lay_out("libkestrel", "wrong_magic_writer", tmp_path)
    with pytest.raises(kestrel.DamageError, match="27 64 26 03"):
        list(read_writer_file(tmp_path / "jobs.1475195912694"))


def test_what_stands_behind_zeros_is_found_again(tmp_path: Path) -> None:
    lay_out("libkestrel", "zero_hole", tmp_path)
    found = list(read_writer_file(tmp_path / "jobs.1475195912694", beyond_zeros=True))
    assert [one.id for one in found][:4] == [1, 2, 3, 4]
    assert len(found) > 4


def test_what_stands_behind_many_zeros_is_reported(tmp_path: Path) -> None:
    first = segmented.Item(1, 1, None, 0, b"item")
    for stamp, tail in ((1, encode_put(first._replace(id=2))), (2, b"")):
        (tmp_path / f"jobs.{stamp}").write_bytes(WRITER_MAGIC + encode_put(first) + bytes(2 << 20) + tail)
    assert [place.file for place in segmented.load(tmp_path, "jobs").beyond_end] == ["jobs.1"]
