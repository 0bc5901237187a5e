"""Bugs of the original that do not live here, each by its number; those that other tests show are not repeated.

A: scanner, B: writer and format, C: kept offsets, E: what is built upon them.
"""

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

import sej
from sej import CorruptionError, InvalidMessageError, JournalNotFoundError
from tests.crash.disk import CrashDisk
from tests.sej.hooks import CountingDisk, HookedDisk, Worker
from tests.sej.support import STAMP, by_hand, encoded, golden, packed, read_all, sample, segment, segments, values


def filled(path: Path, count: int = 20, segment_bytes: int = 1 << 30) -> Path:
    with sej.Writer(path, segment_bytes=segment_bytes) as w:
        w.append_messages(sample(count))
    return path


def test_a1_no_message_is_read_twice_after_files_come_and_go(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=60) as w, sej.Scanner(tmp_path, timeout=None) as s:
        for n in range(30):
            w.append(b"%d" % n)
            (tmp_path / "jnl" / f"foreign-{n}").write_bytes(b"")
            if len(names := sorted((tmp_path / "jnl").glob("*.jnl"))) > 2:
                names[0].unlink()
            assert values(s.read()) == [b"%d" % n]


@pytest.mark.parametrize("case", ["torn-nonlast-first-message", "torn-nonlast", "gap-middle-segment-missing"])
def test_a2_a_segment_that_ends_too_early_is_an_error_at_its_own_place(case: str, tmp_path: Path) -> None:
    with sej.Scanner(golden(case, tmp_path), timeout=None) as s:
        reader = Worker(lambda: list(s))
        with pytest.raises(CorruptionError) as raised:
            reader.result()
        assert raised.value.offset == s.offset > 0


def test_a2_an_empty_first_file_before_a_gap(tmp_path: Path) -> None:
    path = by_hand(tmp_path, (0, b""), (5, packed(sample(3, start=5))))
    with sej.Scanner(path) as s, pytest.raises(sej.OffsetGapError) as raised:
        s.read()
    assert raised.value.offset == 0


def test_a3_an_empty_key_is_empty(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"a", b"key")
        w.append(b"b")
    assert [message.key for message in read_all(tmp_path)] == [b"key", b""]


def test_a6_reading_creates_nothing_and_numbers_never_restart(tmp_path: Path) -> None:
    for call in (sej.Scanner, sej.Journal, lambda path: sej.Offset(path, "r")):
        with pytest.raises(JournalNotFoundError):
            call(tmp_path / "missing")
    assert not list(tmp_path.iterdir())
    path = golden("only-empty-high", tmp_path)
    before = segments(path)
    assert read_all(path) == [] and segments(path) == before
    assert sej.Journal(path).end_offset == 5


def test_a7_waiting_keeps_no_memory(tmp_path: Path) -> None:
    with sej.Scanner(filled(tmp_path), sej.LAST, timeout=0.0005) as s:
        s.read()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(200):
                s.read()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 20_000
        finally:
            tracemalloc.stop()


def test_a8_starting_far_in_costs_a_block_not_the_segment(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability="buffer") as w:
        w.append_many([b"v" * 100] * 100_000)
    disk = CountingDisk()
    with sej.Scanner(tmp_path, 90_000, disk=disk) as s:
        assert s.read(1)[0].offset == 90_000
    assert disk.bytes_read < 2 << 20, "not 11 MB"


def test_a9_failed_openings_and_polls_leak_no_descriptor(tmp_path: Path) -> None:
    filled(tmp_path)
    with sej.Scanner(tmp_path, sej.LAST, timeout=0.0) as s:
        s.read(timeout=0.001)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            s.read(timeout=0.0005)
        (tmp_path / "ofs" / "bad.ofs").write_bytes(b"123")
        for _ in range(50):
            with pytest.raises(sej.BadOffsetFileError):
                sej.Offset(tmp_path, "bad")
            with pytest.raises(ValueError, match="offset"):
                sej.Scanner(tmp_path, -1)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_b2_the_tail_is_cut_under_the_lock(tmp_path: Path) -> None:
    """B1, the lock file that loses its name: tests/sej/test_locks.py."""
    path = golden("torn-cut-half", tmp_path)
    cut = 0

    def hook(verb: str, *_: object) -> None:
        nonlocal cut
        if verb == "truncate" and (path / "kept").exists():
            cut += 1
            with pytest.raises(sej.LockedError):
                sej.Writer(path)

    sej.Writer(path, disk=HookedDisk(hook)).close()
    assert cut >= 1


@pytest.mark.parametrize(("case", "due"), [("torn-only-message", 0), ("torn-only-message-of-last-segment", 3)])
def test_b4_a_recovery_reports_the_offset_of_the_first_message_that_was_cut(
    case: str, due: int, tmp_path: Path
) -> None:
    with sej.Writer(golden(case, tmp_path)) as w:
        assert w.recovery is not None and w.recovery.offset == due == w.offset


@pytest.mark.parametrize("size", [128, 255, 256, 300])
def test_b7_a_long_key_is_refused_and_the_writer_continues(size: int, tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        with pytest.raises(InvalidMessageError, match=str(size)):
            w.append(b"", b"k" * size)
        with pytest.raises(InvalidMessageError):
            w.append(bytes(2**31 - 26))
        assert w.append(b"", b"k" * 127) == 0


def test_b10_a_close_that_fails_lets_go_of_the_lock(tmp_path: Path) -> None:
    def hook(verb: str, *_: object) -> None:
        if armed and verb == "sync":
            raise OSError(5, "broken")

    armed = False
    w = sej.Writer(tmp_path, disk=HookedDisk(hook))
    w.append(b"v")
    armed = True
    with pytest.raises(sej.WriterFailedError):
        w.close()
    sej.Writer(tmp_path).close()


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, -15_000_000_000 * 10**9, 10**19])
def test_b11_a_time_that_does_not_fit_is_refused(timestamp: int, tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        with pytest.raises(InvalidMessageError, match="timestamp"):
            w.append(b"", timestamp=timestamp)
        w.append_many([b""] * 3, timestamp=[2**63 - 1, -(2**63) + 1, sej.NO_TIMESTAMP])
    rows = read_all(tmp_path)
    assert [row.timestamp for row in rows] == [2**63 - 1, -(2**63) + 1, sej.NO_TIMESTAMP]
    times = [row.time for row in rows]
    assert times[0] is not None and times[0].year == 2262
    assert times[1] is not None and times[1].year == 1677 and times[2] is None


def test_b12_names_are_durable_when_a_writer_has_opened_or_rotated() -> None:
    disk = CrashDisk()
    w = sej.Writer("/j", segment_bytes=30, disk=disk)
    assert disk.crash().list("/j/jnl") == [f"{0:016x}.jnl"]
    w.append(b"v" * 10)
    assert disk.crash().list("/j/jnl") == [f"{0:016x}.jnl", f"{1:016x}.jnl"]
    w.close()


def test_b14_a_repair_costs_what_is_torn(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability="buffer") as w:
        w.append_many([b"v" * 100] * 100_000)
    with open(segment(tmp_path, 0), "ab") as file:
        file.write(encoded(100_000, STAMP, 0, b"", b"torn")[:-1])
    disk = CountingDisk()
    with sej.Writer(tmp_path, disk=disk) as w:
        assert w.recovery is not None
    assert disk.bytes_read < 2 << 20, "not 12 MB"


def test_b15_types_are_unsigned_and_segments_at_least_as_long_as_asked(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=100) as w:
        for type in (127, 128, 255):
            w.append(b"v" * 30, type=type)
    assert [row.type for row in read_all(tmp_path)] == [127, 128, 255]
    sizes = [len(data) for data in segments(tmp_path).values()]
    assert sizes == [112, 56], "the message that crosses the limit ends the segment, an empty one is fine"


def test_c1_what_was_written_meanwhile_is_not_skipped(tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path), "r", sej.LAST) as o:
        o.commit(o.value)
    filled(tmp_path, 5)
    with sej.Offset(tmp_path, "r", sej.LAST) as o:
        assert o.value == 20


def test_c2_a_short_file_is_the_same_error_twice(tmp_path: Path) -> None:
    (filled(tmp_path) / "ofs" / "r.ofs").write_bytes(b"123")
    for _ in range(2):
        with pytest.raises(sej.BadOffsetFileError):
            sej.Offset(tmp_path, "r")


def test_c5_an_offset_is_compared_with_the_journal(tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path), "r") as o:
        with pytest.raises(sej.OffsetBeyondEndError):
            o.commit(21)
        o.commit(10)
        o.commit(4)
        assert o.value == 10
    (tmp_path / "ofs" / "r.ofs").write_bytes(bytes(8) + b"more")
    with pytest.raises(sej.BadOffsetFileError):
        sej.read_offset(tmp_path, "r")


def test_e2_an_empty_journal_commits_nothing(tmp_path: Path) -> None:
    sej.Writer(tmp_path).close()
    sej.Consumer(tmp_path, "r", timeout=0.0).run(lambda message: None)
    assert sej.read_offset(tmp_path, "r") in (None, 0)
    filled(tmp_path, 1)
    with sej.Offset(tmp_path, "r") as o:
        assert o.value == 0


def test_e4_an_empty_last_segment_does_not_move_a_time(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=1) as w:
        w.append_many([b"v"] * 50, timestamp=range(100, 150))
    assert segments(tmp_path)[segment(tmp_path, 50).name] == b""
    j = sej.Journal(tmp_path)
    assert [j.find_time(at) for at in (0, 100, 125, 149, 150)] == [0, 0, 25, 49, 50]
