"""What the originals left is read as documented, case by case."""

from pathlib import Path
from typing import Any

import pytest

import kestrel
from kestrel.files import queue_names
from kestrel.v2.journal import list_parts
from tests.kestrel.golden import cases, lay_out, plain, tree

CASES = cases("kestrel")


def as_row(item: kestrel.Item) -> tuple[int | None, int, bytes]:
    return item.add_time, item.expiry, item.data


def row(item: dict[str, Any]) -> tuple[int | None, int, bytes]:
    return item["add_time"], item["expiry"], plain(item["data"])


def test_there_are_53_cases() -> None:
    assert len(CASES) == 53


@pytest.mark.parametrize("case", CASES)
def test_operations_are_read(case: str, tmp_path: Path) -> None:
    expected = lay_out("kestrel", case, tmp_path)
    for name, rows in expected["ops"].items():
        error = None
        found = []
        try:
            for operation in kestrel.read_journal(tmp_path / name):
                found.append(operation)
        except kestrel.KestrelError as caught:
            error = caught
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


def test_an_empty_pack_kills_nothing(tmp_path: Path) -> None:
    """The original makes the empty pack first: a crash there cost it 8 of 16 items."""
    lay_out("kestrel", "rotated", tmp_path)
    items = kestrel.replay(tmp_path, "cars").items
    (tmp_path / "cars.1474163985068.pack").touch()
    listing = list_parts(tmp_path, "cars")
    assert listing.dead == [str(tmp_path / "cars.1474163985068.pack")]
    assert kestrel.replay(tmp_path, "cars").items == items != []
