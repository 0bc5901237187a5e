"""Any bytes in any file: only KestrelError, bounded memory, and what is opened can be used."""

import contextlib
import random
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kestrel
from kestrel import segmented
from tests.crash.disk import CrashDisk
from tests.crash.harness import SAME_OR_LONG, dice_of_cases
from tests.kestrel.support import GOLDEN
from tests.sej.hooks import bounded

SAMPLES = {
    kind: [path for path in sorted((GOLDEN / kind).rglob("journal/*")) if path.is_file()]
    for kind in ("kestrel", "libkestrel")
}


def disk_with(files: dict[str, bytes]) -> CrashDisk:
    disk = CrashDisk()
    disk.mkdir("/q")
    for name, data in files.items():
        file = disk.open(f"/q/{name}", "new")
        file.write(data)
        file.sync()
        file.close()
    return disk


def use_kestrel(files: dict[str, bytes]) -> None:
    disk = disk_with(files)
    state = kestrel.replay("/q", "cars", disk=disk)
    ticks = count(1)
    if any(data[:1] > b"\x09" for data in files.values()):
        with pytest.raises(kestrel.DamageError, match="move it away if it is another program's"):
            kestrel.Queue("/q", "cars", disk=disk)
        assert {name: disk.open(f"/q/{name}", "read").read(1 << 16, 0) for name in files} == files
        return
    with kestrel.Queue("/q", "cars", disk=disk, max_memory_bytes=500, now_ms=lambda: next(ticks)) as queue:
        assert len(queue) == len(state.recovered)
        assert len(queue.damage) == len(state.damage)
        queue.put(b"new")
    again = kestrel.replay("/q", "cars", disk=disk)
    assert again.damage == []
    assert again.items[-1].data == b"new"


def use_libkestrel(files: dict[str, bytes]) -> None:
    disk = disk_with(files)
    segmented.load("/q", "jobs", disk=disk)
    ticks = count(1)
    with segmented.Queue("/q", "jobs", disk=disk, now_ms=lambda: next(ticks)) as queue:
        for name in queue.readers:
            reader = queue.reader(name)
            for _ in range(5):
                item = reader.get()
                if item is not None:
                    reader.commit(item.id)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_a_kestrel_journal_or_damage(current: bytes, rotated: bytes) -> None:
    use_kestrel({"cars": current, "cars.5": rotated})


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_are_a_libkestrel_journal_or_damage(writer: bytes, reader: bytes) -> None:
    use_libkestrel({"jobs.5": b"\x27\x64\x26\x03" + writer, "jobs.read.a": b"\x26\x3c\x26\x03" + reader})


def mutated(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                found[at : at + 1] = bytes((chance.randrange(256),))
            case 1:
                del found[at : at + chance.randrange(20)]
            case 2:
                found[at:at] = found[chance.randrange(len(found) + 1) :][: chance.randrange(40)]
            case _:
                found[at : at + 4] = chance.choice(
                    [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80"]
                )
    return bytes(found)


def use_mutated(kind: str, chance: random.Random) -> None:
    data = mutated(chance.choice(SAMPLES[kind]).read_bytes(), chance)
    if kind == "kestrel":
        use_kestrel({"cars": data, "cars.5": mutated(chance.choice(SAMPLES[kind]).read_bytes(), chance)})
    else:
        use_libkestrel({"jobs.5": data, "jobs.read.a": mutated(chance.choice(SAMPLES[kind]).read_bytes(), chance)})


@SAME_OR_LONG
@pytest.mark.parametrize("kind", ["kestrel", "libkestrel"])
def test_mutated_files_are_used_or_reported(kind: str, brief_s: float, *, long: bool) -> None:
    for dice in dice_of_cases(150, brief_s, long=long):
        use_mutated(kind, dice)


def test_no_declared_size_makes_memory(tmp_path: Path) -> None:
    (tmp_path / "cars").write_bytes(b"\x02\xff\xff\xff\x7f" + bytes(64))
    (tmp_path / "jobs.1").write_bytes(bytes.fromhex("27642603 86 ffffffff") + bytes(64))
    (tmp_path / "jobs.2").write_bytes(bytes.fromhex("27642603 86 00000001") + bytes(64))
    with bounded(8 << 20):
        assert kestrel.replay(tmp_path, "cars").damage
        assert len(segmented.load(tmp_path, "jobs").damage) == 2
        for read in (kestrel.read_journal, segmented.read_writer_file):
            for path in tmp_path.iterdir():
                with contextlib.suppress(kestrel.KestrelError):
                    list(read(path))


def test_a_long_queue_is_opened_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 MiB of items and a limit of 1 MiB: opened, half read and packed within the limit and a little."""
    limit = 1 << 20
    with kestrel.Queue(tmp_path, "cars", max_memory_bytes=limit) as queue:
        for _ in range(12):
            queue.put_many([b"v" * 1000] * 1000)
    with bounded(limit + (8 << 20)):
        with kestrel.Queue(tmp_path, "cars", max_memory_bytes=limit) as queue:
            assert len(queue) == 12_000
            for _ in range(6000):
                queue.get()
        monkeypatch.setattr("kestrel.v2.contents.MEMORY_BYTES", limit)
        kestrel.pack(tmp_path, "cars")
    with kestrel.Queue(tmp_path, "cars", max_memory_bytes=limit) as queue:
        assert len(queue) == 6000
