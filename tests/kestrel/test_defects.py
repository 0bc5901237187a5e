"""Each known defect of the originals: ours keeps the item."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import FullError
from kestrel.files import WRITER_MAGIC, files_of
from kestrel.segmented.format import encode_put
from kestrel.v2.journal import list_parts
from tests.kestrel.support import cases, lay_out, plain, tree, values


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
