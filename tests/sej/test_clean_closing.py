"""Closing a writer by the compiled call: it writes what the reference writes, and leaves the rest to it."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.system.disk import OS, OsDisk
from sej.writing import last_segment
from tests.sej.interrupts import open_below
from tests.sej.support import read_all

INDEX, DURABLE = "idx/0000000000000000.idx", "idx/durable"
RANDOM_CASES = 40
pytestmark = pytest.mark.skipif(last_segment._record is None, reason="needs the compiled module")
Change = Callable[[Path], object]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each close was done by the compiled call."""
    found: list[bool] = []
    record = last_segment._record
    assert record is not None

    def noted(*arguments: object) -> bool:
        found.append(record(*arguments))
        return found[-1]

    monkeypatch.setattr(last_segment, "_record", noted)
    return found


def records(path: Path) -> dict[str, bytes]:
    """The files in ``idx/``, without the inode in the durable position and the checksum over it."""
    found = {file.name: file.read_bytes() for file in sorted(path.glob("idx/*")) if file.is_file()}
    if "durable" in found:
        found["durable"] = found["durable"][:16] + found["durable"][24:44]
    return found


def appended(w: sej.Writer, chance: random.Random) -> None:
    """A few messages, or many, in different ways."""
    for _ in range(chance.choice([0, 1, 1, 1, 3])):
        count, size = chance.choice([(1, 10), (1, 300_000), (40, 10_000), (3, 0)])
        times = [chance.randrange(10**6) for _ in range(count)]
        if chance.random() < 0.3:
            w.append_many([b"v" * size] * count, timestamp=times)
        else:
            for time in times:
                w.append(b"v" * size, b"key", timestamp=time)
        if chance.random() < 0.1:
            w.sync()


@pytest.mark.parametrize("seed", range(RANDOM_CASES))
def test_the_compiled_call_leaves_what_the_reference_leaves(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {
        "segment_bytes": chance.choice([1 << 30, 1 << 30, 700_000]),
        "durability": chance.choice(["os", "os", "buffer", "disk"]),
    }
    for _ in range(4):
        state = chance.getstate()
        found = []
        for name, disk in ("compiled", OS), ("reference", OsDisk()):
            chance.setstate(state)
            with sej.Writer(tmp_path / name, disk=disk, **options) as w:
                appended(w, chance)
            found.append((records(tmp_path / name), w.durable_offset, w.tail.last.synced_position))
        assert found[0] == found[1]
    assert sej.Journal(tmp_path / "compiled").verify() == []


def test_the_ordinary_close_is_by_the_compiled_call(tmp_path: Path, recorded: list[bool]) -> None:
    for _ in range(4):
        with sej.Writer(tmp_path) as w:
            w.append(b"v" * 100)
    assert recorded == [True] * 3, "the first writer makes the two files"
    with sej.Writer(tmp_path) as w:
        w.append_many([b"v" * 100_000] * 9)
        w.append(b"v")
    with sej.Writer(tmp_path) as w:
        w.append(b"v")
    assert recorded == [True] * 4, "the call before has a whole block to write"
    assert sej.Journal(tmp_path).verify() == []


def removed(name: str) -> Change:
    return lambda path: (path / name).unlink()


def longer(name: str) -> Change:
    return lambda path: (path / name).write_bytes((path / name).read_bytes() + bytes(64))


def shorter(name: str) -> Change:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:10])


def fifo(name: str) -> Change:
    def change(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return change


SURPRISES: dict[str, tuple[Change, bool]] = {
    "the index is removed": (removed(INDEX), True),
    "the index is longer": (longer(INDEX), True),
    "the index is shorter": (shorter(INDEX), True),
    "the index is a FIFO": (fifo(INDEX), False),
    "the durable position is removed": (removed(DURABLE), True),
    "the durable position is shorter": (shorter(DURABLE), True),
    "the durable position is a FIFO": (fifo(DURABLE), True),
}


@pytest.mark.filterwarnings("ignore:the index .* could not be written:RuntimeWarning")
@pytest.mark.parametrize("name", SURPRISES)
def test_a_surprise_is_left_to_the_reference(name: str, tmp_path: Path, recorded: list[bool]) -> None:
    change, sound = SURPRISES[name]
    found = []
    for kind, disk in ("compiled", OS), ("reference", OsDisk()):
        path = tmp_path / kind
        for n in range(2):
            with sej.Writer(path, disk=disk) as w:
                w.append(b"v" * 100, timestamp=n)
        with sej.Writer(path, disk=disk) as w:
            w.append(b"last", timestamp=9)
            change(path)
        assert open_below(path) == []
        found.append(records(path))
        assert len(read_all(path)) == 3 and (not sound or sej.Journal(path).verify() == [])
    assert found[0] == found[1]
    assert recorded == [True, name == "the durable position is shorter"], "which is repaired by writing it"


@pytest.mark.parametrize("fails", [False, True])
def test_the_records_are_written_after_the_sync(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with sej.Writer(tmp_path) as w:
            w.append(b"v" * 100)
    before, sync, seen = records(tmp_path), os.fdatasync, []

    def synced(fd: int) -> None:
        seen.append(records(tmp_path))
        if fails:
            raise OSError(5, "Input/output error")
        sync(fd)

    w = sej.Writer(tmp_path)
    w.append(b"v")
    monkeypatch.setattr(os, "fdatasync", synced)
    if fails:
        with pytest.raises(sej.WriterFailedError):
            w.close()
    else:
        w.close()
    assert seen == [before]
    assert (records(tmp_path) == before) is fails


@pytest.mark.parametrize("what", ["jnl.lck", "jnl/0000000000000000.jnl"])
def test_nothing_is_recorded_for_a_lost_name(what: str, tmp_path: Path, recorded: list[bool]) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"v" * 100)
    before = records(tmp_path)
    w = sej.Writer(tmp_path)
    w.append(b"v")
    (tmp_path / what).unlink()
    with pytest.raises(sej.WriterFailedError):
        w.close()
    assert records(tmp_path) == before and recorded == []
