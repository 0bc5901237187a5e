"""Reading one journal file: the codec's three outcomes, both meanings of opcode 8, bounds."""

import contextlib
import random
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import BadNameError, MissingError
from kestrel.v2 import format
from kestrel.v2.format import PLAIN, Operation, decode
from kestrel.v2.journal import Dialect
from tests.crash.disk import CrashDisk
from tests.crash.harness import SAME_OR_LONG, dice_of_cases
from tests.kestrel.support import GOLDEN, outcome
from tests.sej.hooks import bounded

TIMES = st.integers(0, 2**63 - 1)
XIDS = st.integers(-(2**31), 2**31 - 1)
WRITTEN = st.one_of(
    st.builds(format.addx, st.binary(max_size=60), TIMES, TIMES),
    st.builds(format.continue_, XIDS, st.binary(max_size=60), TIMES, TIMES),
    st.builds(
        format.xid_operation,
        st.sampled_from([format.UNREMOVE, format.CONFIRM_REMOVE, format.REMOVE_TENTATIVE_XID]),
        XIDS,
    ),
    st.just(b"\x01"),
)


def read(path: Path, data: bytes, dialect: Dialect = "auto") -> tuple[list[Operation], kestrel.KestrelError | None]:
    path.write_bytes(data)
    return outcome(kestrel.read_journal(path, dialect=dialect))


@given(st.lists(WRITTEN, max_size=8))
def test_what_is_written_is_read(parts: list[bytes]) -> None:
    data = b"".join(parts)
    at = 0
    for part in parts:
        operation, size = decode(data, at, 100 + at)
        assert operation is not None
        assert (operation.position, operation.size, size) == (100 + at, len(part), len(part))
        some, used = PLAIN.decode(data, 100, at)
        assert some[:1] == ([operation] if operation.opcode != format.CONTINUE else [])
        assert used >= at + sum(one.size for one in some)
        at += len(part)
    assert at == len(data)


@given(WRITTEN)
def test_every_shorter_one_needs_more(data: bytes) -> None:
    for size in range(len(data)):
        operation, whole = decode(data[:size])
        assert operation is None
        assert whole in (None, len(data))
        assert PLAIN.decode(data[:size]) == ([], 0)


@given(st.binary(max_size=200))
def test_anything_is_read_or_refused(data: bytes) -> None:
    found, used = PLAIN.decode(data)
    assert sum(operation.size for operation in found) == used <= len(data)
    with contextlib.suppress(kestrel.DamageError):
        decode(data, used)


def test_a_block_boundary_anywhere_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = format.addx(b"x" * 9, 1) + format.continue_(5, b"y" * 30, 2) + b"\x01" + format.xid_operation(6, 5) * 3
    expected, _ = read(tmp_path / "j", data)
    assert len(expected) == 6
    for block in range(1, 40):
        monkeypatch.setattr("kestrel.reading._BLOCK", block)
        for cut in (0, 1, 7, 20):
            found, error = read(tmp_path / "j", data[: len(data) - cut])
            assert found == expected[: len(found)]
            assert (error is None) == (sum(op.size for op in found) == len(data) - cut)


def test_opcode_8_can_be_forced(tmp_path: Path) -> None:
    dump = b"\x08" + (4).to_bytes(4, "little") + (0).to_bytes(4, "little")
    assert [op.name for op in read(tmp_path / "j", dump)[0]] == ["STATE_DUMP"]
    found, error = read(tmp_path / "j", dump, "2.4")
    assert found == []
    assert error is not None
    assert error.position == 0
    added = format.continue_(7, b"item", 1475195912693)
    assert [op.name for op in read(tmp_path / "j", added)[0]] == ["CONTINUE"]
    assert [op.name for op in read(tmp_path / "j", added, "classic")[0]][:1] == ["STATE_DUMP"]


def test_a_continue_that_begins_like_a_dump_is_a_continue(tmp_path: Path) -> None:
    # Its add time begins with the byte 7, the opcode of ADD_XID.
    added = format.continue_(7, b"item", 1475195912693 & ~0xFF | 7)
    assert [op.name for op in read(tmp_path / "j", added + added)[0]] == ["CONTINUE", "CONTINUE"]


def test_unknown_dialects_files_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dialect must be one of 'auto', 'classic'"):
        list(kestrel.read_journal(tmp_path / "j", dialect="3"))  # type: ignore[arg-type]
    with pytest.raises(MissingError):
        list(kestrel.read_journal(tmp_path / "j"))
    with pytest.raises(MissingError):
        kestrel.replay(tmp_path / "none", "cars")
    for name in ("", "a.b", "a/b", "a~b", "..", "a\0"):
        with pytest.raises(BadNameError):
            kestrel.replay(tmp_path, name)


LIKE_A_DUMP = 1475195912693 & ~0xFF | 7
"""An add time with which a CONTINUE looks like a state dump at first, so that each is looked at by itself."""


@pytest.mark.parametrize(
    "record",
    [format.addx(b"v" * 1000, 1), *(format.continue_(7, b"v" * 1000, LIKE_A_DUMP + n) for n in (0, 1))],
    ids=["addx", "like a dump", "continue"],
)
def test_a_long_journal_is_read_in_bounded_memory(record: bytes, tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(record * 6_000)
    with bounded(4 << 20):
        assert sum(1 for _ in kestrel.read_journal(tmp_path / "j")) == 6_000


def test_what_needs_a_queue_makes_none(tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(kestrel.KestrelError, match=r"does not exist|no file of a queue"):
            kestrel.pack(directory, "cars")
        with sej.Writer(tmp_path.parent / f"{tmp_path.name}.out") as writer:
            with pytest.raises(kestrel.KestrelError, match=r"does not exist|no file of a queue"):
                kestrel.export(directory, "cars", writer)
            assert writer.offset == 0
    assert list(tmp_path.iterdir()) == []


# --- Any bytes in any file: only KestrelError, bounded memory, and what is opened can be used


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
