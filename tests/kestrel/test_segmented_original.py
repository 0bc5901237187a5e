"""What libkestrel would do with our files, and what we do with the files that its crash leaves."""

import struct
from pathlib import Path

import pytest

import sej
from kestrel import segmented
from kestrel.errors import TooLargeError
from kestrel.files import MAGIC_SIZE, WRITER_MAGIC
from kestrel.segmented.format import encode_put

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
