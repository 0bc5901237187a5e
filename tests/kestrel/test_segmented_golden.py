"""What libkestrel left is read as documented, case by case."""

from pathlib import Path
from typing import Any

import pytest

import kestrel
from kestrel import segmented
from kestrel.files import WRITER_MAGIC
from kestrel.segmented.codec import encode_put
from kestrel.segmented.files import read_reader_file, read_writer_file
from tests.kestrel.golden import cases, lay_out, plain, tree

CASES = cases("libkestrel")
# The original reads these differently; `expected` has the documented result.
OUT_OF_STEP = {"negative_size": 30, "put_header_7": None, "put_header_9": None}


def item(row: dict[str, Any]) -> segmented.Item:
    return segmented.Item(row["id"], row["add_time"], row["expire_time"], row["error_count"], plain(row["data"]))


def test_there_are_47_cases() -> None:
    assert len(CASES) == 47


@pytest.mark.parametrize("case", CASES)
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


@pytest.mark.parametrize("case", CASES)
def test_writer_files_are_read(case: str, tmp_path: Path) -> None:
    manifest = lay_out("libkestrel", case, tmp_path)
    for name, rows in manifest["records"].items():
        if ".read." in name or case in ("put_header_7", "put_header_9", "wrong_magic_writer"):
            continue
        found, error = [], None
        try:
            for one in read_writer_file(tmp_path / name):
                found.append(one)
        except kestrel.KestrelError as caught:
            error = caught
        puts = [row for row in rows if row.get("record") == "PUT"]
        if case == "negative_size":
            puts = puts[:1]
        assert found == [item(row) for row in puts]
        errors = [row for row in rows if "error" in row]
        assert (error is not None) == (bool(errors) or case == "negative_size")
        if error is not None:
            due = errors[0].get("last_valid_position", 0) if errors else 30
            assert (error.path, error.position) == (str(tmp_path / name), due)


@pytest.mark.parametrize("case", CASES)
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
