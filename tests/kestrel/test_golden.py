"""What the originals left is read as documented, case by case."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import FullError, TooLargeError
from kestrel.files import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC, files_of, queue_names
from kestrel.segmented import Item
from kestrel.segmented import format as segmented_format
from kestrel.segmented.files import read_reader_file, read_writer_file
from kestrel.segmented.format import encode_put
from kestrel.v2 import format
from kestrel.v2.journal import list_parts
from tests.kestrel.support import cases, lay_out, outcome, plain, tree, values

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


# --- Each known defect of the originals: ours keeps the item


def data(items: list[Any]) -> list[bytes]:
    return [item.data for item in items]


@pytest.mark.parametrize("case", cases("kestrel"))
def test_opening_finds_what_is_documented(case: str, tmp_path: Path) -> None:
    """Every golden case, opened: the items with the open ones put back, damaged bytes kept, and the same afterwards."""
    manifest = lay_out("kestrel", case, tmp_path)
    before = tree(tmp_path)
    due = [plain(item["data"]) for item in manifest["expected"]["items_after_recovery"]]
    damage = {place.file: place.position for place in kestrel.replay(tmp_path, manifest["queue"]).damage}
    with kestrel.Queue(tmp_path, manifest["queue"], now_ms=lambda: 0) as queue:
        assert {place.file: place.position for place in queue.damage} == damage
        after = tree(tmp_path)
        for name in manifest["replay_order"]:
            assert after[name.removesuffix(".pack")].startswith(before[name][: damage.get(name)])
        for name, at in damage.items():
            assert after[f"kept/{name}.{at}.0"] == before[name][at:]
        assert data(kestrel.replay(tmp_path, manifest["queue"]).items) == due
        assert len(queue) == len(due)
        assert queue.open_transactions == {}
    with kestrel.Queue(tmp_path, manifest["queue"], now_ms=lambda: 0) as queue:
        assert queue.damage == []
        assert values(queue) == due


def test_an_empty_pack_of_a_crash_is_removed_and_kills_nothing(tmp_path: Path) -> None:
    """The original makes the empty pack first: a crash there cost it 8 of 16 items."""
    lay_out("kestrel", "rotated", tmp_path)
    pack = tmp_path / "cars.1474163985068.pack"
    pack.touch()
    assert list_parts(files_of(tmp_path, "cars"), "cars").dead == [str(pack)]
    assert len(kestrel.replay(tmp_path, "cars").items) == 16
    with kestrel.Queue(tmp_path, "cars", now_ms=lambda: 1) as queue:
        assert len(queue) == 16
    assert not pack.exists()


def test_a_journal_that_ends_with_a_state_dump_takes_new_items(tmp_path: Path) -> None:
    """A replay reads nothing after a state dump, so a put must not write there."""
    lay_out("kestrel", "state_dump", tmp_path)
    (tmp_path / "cars").unlink()
    (tmp_path / "cars.1475195912703").rename(tmp_path / "cars")
    with kestrel.Queue(tmp_path, "cars", now_ms=lambda: 1) as queue:
        count = len(queue)
        queue.put(b"new")
    with kestrel.Queue(tmp_path, "cars", now_ms=lambda: 1) as queue:
        assert len(queue) == count + 1


def test_what_stands_behind_zeros_is_kept(tmp_path: Path) -> None:
    lay_out("libkestrel", "zero_hole", tmp_path)
    before = (tmp_path / "jobs.1475195912694").read_bytes()
    with segmented.Queue(tmp_path, "jobs", now_ms=lambda: 5) as queue:
        assert len(queue.damage) == 1
    assert (tmp_path / "kept" / "jobs.1475195912694.174.5").read_bytes() == before[174:]


@pytest.mark.parametrize("case", cases("libkestrel"))
def test_opening_delivers_what_is_pending(case: str, tmp_path: Path) -> None:
    """Every golden case: each reader gets what the documents say it has yet to see. Others' files are left alone."""
    lay_out("libkestrel", case, tmp_path)
    state, before = segmented.load(tmp_path, "jobs"), tree(tmp_path)
    with segmented.Queue(tmp_path, "jobs", now_ms=lambda: 0) as queue:
        assert {(place.file, place.position) for place in queue.damage if ".read." not in place.file} == {
            (place.file, place.position)
            for place in (*state.damage, *state.beyond_end)
            if ".read." not in place.file and before[place.file]
        }
        for name in state.readers:
            reader = queue.reader(name)
            assert len(reader) == len(state.pending(name))
            for number in state.pending(name):
                item = reader.get()
                assert item is not None and item.id == number and reader.commit(item)
            assert reader.get() is None
            assert reader.bookmark == (state.tail_id, frozenset())
        assert queue.put(b"next") == state.tail_id + 1
    assert segmented.load(tmp_path, "jobs").damage == [place for place in state.damage if case == "wrong_magic_writer"]
    after = tree(tmp_path)
    assert {name: data for name, data in before.items() if not name.startswith("jobs")}.items() <= after.items()
    assert not [name for name, data in before.items() if not data and name in after]  # an empty file is removed


def test_a_duplicate_id_is_delivered(tmp_path: Path) -> None:
    """The original gives ids again after it lost the end of a file."""
    for stamp, ids in (("1", (1, 2, 3)), ("2", (2, 4))):
        (tmp_path / f"jobs.{stamp}").write_bytes(
            bytes.fromhex("27642603")
            + b"".join(
                encode_put(segmented.Item(number, 1, None, 0, b"%s.%d" % (stamp.encode(), number))) for number in ids
            )
        )
    with segmented.Queue(tmp_path, "jobs") as queue:
        reader = queue.reader(start="first")
        got = []
        while (item := reader.get()) is not None:
            got.append(item.data)
            reader.commit(item.id)
    assert got[:3] == [b"1.1", b"1.2", b"1.3"]
    assert got[-1] == b"2.4"


def exported(path: Path) -> object:
    with sej.Writer(path.with_name("journal")) as writer:
        return kestrel.export(path, "jobs", writer)


def journals(path: Path) -> dict[str, bytes]:
    """Return the files of a directory without the lock file, which has the name of its holder."""
    return {name: data for name, data in tree(path).items() if not name.endswith("~~lock")}


@pytest.mark.parametrize(
    ("made", "use"),
    [
        (segmented.Queue, lambda path: kestrel.Queue(path, "jobs")),
        (segmented.Queue, lambda path: kestrel.pack(path, "jobs")),
        (segmented.Queue, lambda path: kestrel.import_(path, "jobs", [])),
        (segmented.Queue, exported),
        (kestrel.Queue, lambda path: segmented.Queue(path, "jobs")),
    ],
)
def test_files_of_one_format_are_no_damaged_files_of_the_other(
    made: Any, use: Callable[[Path], object], tmp_path: Path
) -> None:
    """Both name a file ``jobs.<ms>``; taken for a journal of operations it would be cut to nothing."""
    with made(tmp_path, "jobs") as queue:
        queue.put(b"item")
    before = journals(tmp_path)
    with pytest.raises(kestrel.DamageError, match="Kestrel 3" if made is segmented.Queue else "Kestrel 2"):
        use(tmp_path)
    assert journals(tmp_path) == before
    load: Any = segmented.load if made is segmented.Queue else kestrel.replay
    assert data(load(tmp_path, "jobs").items) == [b"item"]
    made(tmp_path, "jobs").close()


@pytest.mark.parametrize(
    "record", [bytes.fromhex("a1 04000000") + b"data", encode_put(segmented.Item(0, 1, None, 0, b"0"))]
)
def test_records_that_are_no_items_are_kept_aside(record: bytes, tmp_path: Path) -> None:
    (tmp_path / "jobs.1").write_bytes(WRITER_MAGIC + record)
    with segmented.Queue(tmp_path, "jobs", now_ms=lambda: 5) as queue:
        assert [place.file for place in queue.damage] == ["jobs.1"]
    assert tree(tmp_path)["kept/jobs.1.0.5"] == WRITER_MAGIC + record


def test_behind_the_last_of_all_ids_nothing_is_put(tmp_path: Path) -> None:
    (tmp_path / "jobs.1").write_bytes(WRITER_MAGIC + encode_put(segmented.Item(2**63 - 1, 1, None, 0, b"last")))
    with segmented.Queue(tmp_path, "jobs") as queue:
        with pytest.raises(FullError, match="the last id"):
            queue.put(b"one more")
        item = queue.reader().get()
        assert item is not None
        assert item.data == b"last"


# --- What libkestrel would do with our files, and what we do with the files that its crash leaves


NOW = 1_500_000_000_000


def put(number: int, data: bytes = b"item") -> bytes:
    return encode_put(segmented.Item(number, NOW, None, 0, data))


TORN = {
    "zeros from the id on": put(300)[:9] + bytes(len(put(300)) - 9),
    "the id of the one before": put(299),
    "half an id": put(300)[:10] + bytes(len(put(300)) - 10),
}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_last_item_is_reported_and_cut(torn: bytes, alone: bool, tmp_path: Path) -> None:
    """The original takes its id for the last one: everything above counts as not put, and it delivers nothing."""
    good = WRITER_MAGIC + b"".join(map(put, range(1, 300)))
    path = first = tmp_path / f"jobs.{NOW}"
    if alone:
        path = tmp_path / f"jobs.{NOW + 1}"
        path.write_bytes(WRITER_MAGIC + torn)
    first.write_bytes(good if alone else good + torn)
    damage = [(str(path), MAGIC_SIZE if alone else len(good))]
    found = segmented.load(tmp_path, "jobs")
    assert [item.id for item in found.items] == [*range(1, 300)]
    assert [(one.path, one.position) for one in found.damage] == damage
    with sej.Writer(tmp_path / "target") as writer:
        assert segmented.export(tmp_path, "jobs", writer).count == 299
    with segmented.Queue(tmp_path, "jobs") as queue:
        assert [(one.path, one.position) for one in queue.damage] == damage
        assert first.read_bytes() == good
        assert path.exists() is not alone
        assert [kept.read_bytes() for kept in (tmp_path / "kept").iterdir()] == [WRITER_MAGIC * alone + torn]
        assert queue.put(b"next") == 300
        assert len(queue.reader()) == 300


def reader_file(path: Path) -> tuple[int, list[int]]:
    """A reader file as the original writes it: one READ_HEAD, one READ_DONE."""
    data = path.read_bytes()
    (head,) = struct.unpack_from("<q", data, MAGIC_SIZE + 1)
    return head, [number for (number,) in struct.iter_unpack("<q", data[MAGIC_SIZE + 9 + 5 :])]


def test_a_written_head_is_not_directly_below_a_done_id(tmp_path: Path) -> None:
    """The original never looks at done ids when it delivers, and keeps every file from the head on."""
    with segmented.Queue(tmp_path, "jobs", journal_bytes=100) as queue:
        reader = queue.reader("r")
        queue.put_many([b"item"] * 6)
        items = [reader.get() for _ in range(6)]
        for item in items[1:4]:
            assert item is not None
            reader.commit(item)
    with segmented.Queue(tmp_path, "jobs", journal_bytes=100) as queue:
        reader = queue.reader("r")
        first = reader.get()
        assert first is not None
        assert first.id == 1
        reader.commit(first)  # and the done ids above it have not been read yet
        queue.checkpoint()
        assert reader_file(tmp_path / "jobs.read.r") == (4, [])
        assert len([*tmp_path.glob("jobs.[0-9]*")]) == 1
        assert [item.id for item in iter(reader.get, None)] == [5, 6]
        assert len(reader) == 2


def test_writer_files_stay_within_the_size_of_a_running_original(tmp_path: Path) -> None:
    """It maps its last file at its full size, and cannot open a longer one."""
    records = WRITER_MAGIC + put(1)
    (tmp_path / f"jobs.{NOW}").write_bytes(records + bytes(500 - len(records)))
    with segmented.Queue(tmp_path, "jobs") as queue:
        for _ in range(40):
            queue.put(b"item")
        with pytest.raises(TooLargeError):
            queue.put(bytes(480))
    assert max(path.stat().st_size for path in tmp_path.glob("jobs.[0-9]*")) <= 500


# --- The pages of both formats say what the code does: their tables are the code's


PAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "formats"


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose first header cells are those."""
    (table,) = re.findall(rf"^{re.escape(head)}.*\n.*\n((?:\|.*\n)+)", (PAGES / page).read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_opcodes_are_those_of_the_code() -> None:
    layouts = [*format.LAYOUTS.values()]
    layouts.insert(9, format.STATE_DUMP)
    assert rows("kestrel-2.md", "| opcode |") == [
        [
            str(layout.opcode),
            layout.name,
            ", ".join(layout.fields),
            "yes" if layout.opcode in format.WRITTEN and layout is not format.STATE_DUMP else "",
        ]
        for layout in layouts
    ]


def test_the_fields_are_those_of_the_code() -> None:
    sizes = {"i": "4", "q": "8"}
    found = {cells[0]: cells[1] for cells in rows("kestrel-2.md", "| field |")}
    assert found == {name: sizes[code] for name, code in format.FIELDS.items()}


def test_the_commands_are_those_of_the_code() -> None:
    assert [cells[:6] for cells in rows("kestrel-3.md", "| command |")] == [
        [
            str(command.command),
            command.name,
            command.file,
            ", ".join(map(str, command.words)),
            ", ".join(f"{command.byte(words):02x}" for words in command.words),
            ", ".join(f"{name} {size}" for name, size in command.fields),
        ]
        for command in segmented_format.COMMANDS.values()
    ]
    for command in segmented_format.COMMANDS.values():
        assert max(command.words) * 4 == sum(size for _, size in command.fields)


def test_the_magics_and_the_limit_are_those_of_the_code() -> None:
    assert {cells[0]: bytes.fromhex(cells[1]) for cells in rows("kestrel-3.md", "| file | magic")} == {
        "writer": WRITER_MAGIC,
        "reader": READER_MAGIC,
    }
    assert f"({segmented_format.MAX_DATA_SIZE})" in (PAGES / "kestrel-3.md").read_text()


def test_the_dumps_are_the_bytes_of_the_examples() -> None:
    operations = (format.REMOVE_TENTATIVE_XID, format.CONFIRM_REMOVE)
    journal = format.addx(b"car", 1475195922485) + b"".join(format.xid_operation(which, 1) for which in operations)
    writer = WRITER_MAGIC + segmented_format.encode_put(Item(7, 1475195922485, None, 0, b"job"))
    reader = READER_MAGIC + segmented_format.encode_head(4) + segmented_format.encode_done([6])
    for page, code in (("kestrel-2.md", journal), ("kestrel-3.md", writer + reader)):
        lines = (PAGES / page).read_text().splitlines()
        assert bytes.fromhex("".join(line[10:49] for line in lines if re.match(r"[0-9]{8}: ", line))) == code
