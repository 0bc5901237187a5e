"""Scanners: where they start, what they refuse, bounded memory, seeking, damage that is skipped or loud."""

import errno
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import CorruptionError, Message, OffsetGapError, OffsetTooSmallError, TruncatedError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.index import IndexFile
from sej.system.disk import OS, OsFile
from tests.sej.hooks import HookedDisk, LookingDisk, WrappingDisk, bounded
from tests.sej.support import (
    STAMP,
    by_hand,
    encoded,
    filled,
    flip,
    golden,
    packed,
    read_all,
    sample,
    segment,
    values,
    write,
)


def test_first_and_last_on_an_empty_journal(tmp_path: Path) -> None:
    w = sej.Writer(tmp_path, first_offset=5)
    with w, sej.Scanner(tmp_path, sej.LAST) as last, sej.Scanner(tmp_path) as first:
        assert last.read() == first.read() == []
        w.append(b"v")
        assert values(last.read()) == values(first.read()) == [b"v"]


def test_an_offset_that_was_deleted_names_the_first_that_is_there(tmp_path: Path) -> None:
    filled(tmp_path, first=20)
    with pytest.raises(OffsetTooSmallError) as raised:
        sej.Scanner(tmp_path, 19)
    assert (raised.value.first_available, raised.value.offset, raised.value.path) == (20, 19, str(tmp_path))
    with sej.Scanner(tmp_path) as s:
        with pytest.raises(OffsetTooSmallError):
            s.seek(3)
        assert next(iter(s)).offset == 20, "it stays where it was"


def test_an_offset_beyond_the_end_yields_nothing_less(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sej.Writer(filled(tmp_path)) as w, sej.Scanner(tmp_path, 33) as s:
        assert list(s) == [] and s.offset == 33
        w.append_many([b"30", b"31", b"32"])
        assert list(s) == [] and s.offset == 33
        w.append_many([b"33", b"34"])
        assert values(list(s)) == [b"33", b"34"]
        assert list(s) == []
    (found,) = caplog.records
    assert found.getMessage() == f"{tmp_path}: waiting for offset 33, but the journal ends at 30"


def test_read_returns_at_most_what_was_requested_and_iteration_continues(tmp_path: Path) -> None:
    filled(tmp_path)
    with sej.Scanner(tmp_path) as s:
        assert s.read(1) == sample(1)
        found = [next(iter(s)), *s.read(3)]
        assert s.offset == 5
        for message in s:
            found.append(message)
            if message.offset == 9:
                break
        assert s.offset == 10
        while batch := s.read(4):
            assert len(batch) <= 4
            found += batch
            assert s.offset == found[-1].offset + 1
        assert found == sample(30)[1:]
        assert s.read() == []
        for bad in (0, -1):
            with pytest.raises(ValueError, match="max_messages"):
                s.read(bad)


def test_read_fills_up_over_small_segments_but_not_beyond_a_chunk(tmp_path: Path) -> None:
    filled(tmp_path / "small", 30)
    with sej.Scanner(tmp_path / "small") as s:
        assert s.read(20) == sample(30)[:20] and s.read(100) == sample(30)[20:] and s.read(100) == []
    write(tmp_path / "large", [bytes(100_000)] * 50, segment_bytes=1 << 20)
    with sej.Scanner(tmp_path / "large") as s:
        batches = iter(lambda: len(s.read(1000)), 0)
        sizes = list(batches)
        assert sum(sizes) == 50 and max(sizes) <= 5  # those that begin in a chunk


def test_a_batch_has_no_gap_inside(tmp_path: Path) -> None:
    rows = sample(30)
    path = by_hand(tmp_path, (0, packed(rows[:3])), (5, packed(rows[5:8])), (20, packed(rows[20:])))
    sej.Journal(path).repair()
    with sej.Scanner(path) as s:
        ready = iter(s)
        for row in rows[:3] + rows[5:8] + rows[20:]:
            assert next(ready) == row
            assert s.offset in (row.offset + 1, *(gap.stop for gap in s.gaps if gap.start == row.offset + 1))
        assert [(gap.start, gap.stop) for gap in s.gaps] == [(3, 5), (8, 20)]
    with sej.Scanner(path) as s:
        assert [s.read(100), s.read(100), s.read(100), s.read(100)] == [rows[:3], rows[5:8], rows[20:], []]
        assert len(s.gaps) == 2


def test_a_read_that_fails_half_way_loses_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    third = sorted((tmp_path / "jnl").iterdir())[2]

    broken: list[str] = []

    def break_once(verb: str, path: str) -> None:
        """Too many files are open when the third segment's turn comes."""
        if verb == "open" and path == str(third) and not broken:
            broken.append(path)
            raise OSError(errno.EMFILE, "once", path)

    with sej.Scanner(tmp_path, disk=LookingDisk(break_once)) as s:
        found = []
        failed = 0
        while s.offset < 30:
            try:
                found += s.read(100)
            except OSError:
                failed += 1
        assert (found, failed) == (sample(30), 1)


def test_blocks_that_are_indexed_while_it_follows_are_verified(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w, sej.Scanner(tmp_path, verify=True) as s:
        w.append(b"first")
        assert values(s.read()) == [b"first"]
        for _ in range(10):
            w.append_many([b"v" * 1000] * 300)
        w.close()
        flip(segment(tmp_path, 0), -2_000_000)
        with pytest.raises(CorruptionError, match="CRC32C"):
            list(s)


def test_seek_goes_anywhere_also_while_iterating(tmp_path: Path) -> None:
    filled(tmp_path)
    with sej.Scanner(tmp_path) as s:
        seen = []
        for message in s:
            seen.append(message.offset)
            if len(seen) == 3:
                s.seek(25)
        assert seen == [0, 1, 2, *range(25, 30)]
        s.seek(7)
        assert (s.offset, s.read(1)[0].offset) == (7, 7)
        s.seek(sej.LAST)
        assert s.offset == 30 and s.read() == []
        s.seek(sej.FIRST)
        assert list(s) == sample(30)


@pytest.mark.parametrize("segment_bytes", [1, 150, 1 << 30])
@pytest.mark.parametrize("big", [0, 70_000])
def test_seek_time_finds_the_first_that_is_as_new_on_unsorted_clocks(
    segment_bytes: int, big: int, tmp_path: Path
) -> None:
    times = [5, 3, 9, 9, 1, 4, 12, sej.NO_TIMESTAMP, -8, 12, 11, 20, 2]
    write(tmp_path, [bytes(big)] * len(times), timestamp=times, segment_bytes=segment_bytes)
    with sej.Scanner(tmp_path) as s:
        for asked in [*range(-10, 22), sej.NO_TIMESTAMP, 2**63 - 1]:
            due = next((n for n, at in enumerate(times) if at >= asked), len(times))
            assert sej.Journal(tmp_path).find_time(asked) == due
            s.seek_time(asked)
            assert s.offset == due
            assert [message.offset for message in s] == list(range(due, len(times)))


# --- damage


def damaged(path: Path) -> tuple[Path, int]:
    """Ten messages, the fifth with a wrong trailing size; its position."""
    rows = sample(10)
    data = bytearray(packed(rows))
    position = len(packed(rows[:4]))
    data[position + len(packed(rows[4:5])) - 1] ^= 1
    return by_hand(path, (0, bytes(data))), position


def test_corruption_raises_with_its_place_every_time(tmp_path: Path) -> None:
    path, position = damaged(tmp_path)
    with sej.Scanner(path) as s:
        assert s.read() == sample(4)
        for _ in range(3):  # as often as it is asked
            with pytest.raises(CorruptionError) as raised:
                s.read()
            assert (raised.value.path, raised.value.position, raised.value.offset) == (
                str(segment(path, 0)), position, 4,
            )  # fmt: skip
        assert s.offset == 4
        s.seek(0)
        assert s.read(4) == sample(4)


def test_a_start_inside_a_gap_is_not_a_jump(tmp_path: Path) -> None:
    rows = sample(30)
    path = by_hand(tmp_path, (0, packed(rows[:10])), (20, packed(rows[20:])))
    with pytest.raises(OffsetGapError), sej.Scanner(path, 15) as s:
        list(s)
    directory = Directory(path, OS)
    with pytest.raises(OffsetGapError):
        Cursor(directory, 15).read_columns(5)
    with pytest.raises(OffsetGapError):
        Cursor(directory, 15).read_encoded(5)
    with sej.Scanner(path, 15, on_corruption="skip") as s:
        assert list(s) == rows[20:] and s.gaps


def test_truncation_below_what_was_read_is_loud(tmp_path: Path) -> None:
    filled(tmp_path, segment_bytes=1 << 30)
    with sej.Scanner(tmp_path) as s:
        assert len(s.read(100)) == 30
        with open(segment(tmp_path, 0), "r+b") as file:
            file.truncate(len(packed(sample(20))))
        with pytest.raises(TruncatedError) as raised:
            s.read()
    assert (raised.value.path, raised.value.offset) == (str(segment(tmp_path, 0)), 30)


@pytest.mark.parametrize("writer", [sej.Writer, sej.SharedWriter])
@pytest.mark.parametrize(
    "torn",
    [encoded(5, STAMP, 0, b"", b"never finished " * 5)[:-9], bytes(14), bytes(26), bytes(300)],
    ids=["torn", "14 zeros", "26 zeros", "300 zeros"],
)
def test_an_incomplete_message_that_is_cut_and_written_again_is_read_again(
    torn: bytes, writer: Any, tmp_path: Path
) -> None:
    rows = sample(5)
    path = by_hand(tmp_path, (0, packed(rows) + torn))
    with sej.Scanner(path) as s:
        assert s.read() == rows
        assert s.read() == []
        with writer(path) as w:
            w.append(b"other", timestamp=STAMP)
            w.append(b"more" * 40, timestamp=STAMP)
        assert values(s.read()) == [b"other", b"more" * 40]


@pytest.mark.parametrize("claim", [2**31 - 1 - 26, 10**9, 300_000])
def test_lying_lengths_cost_no_memory(claim: int, tmp_path: Path) -> None:
    rows = sample(5)
    lie = encoded(5, STAMP, 0, b"", b"")[:18] + claim.to_bytes(4, "big") + bytes(280_000)
    path = by_hand(tmp_path, (0, packed(rows) + lie))
    # The judgement reads the tail in windows of 4 MiB at most; a chunk has a quarter of one.
    with bounded(16 << 20), sej.Scanner(path) as s:
        assert list(s) == rows
        assert s.read() == []


@pytest.mark.parametrize("where", [0, 40_000, 150_000, -30])
def test_a_flipped_bit_in_a_value_is_found_by_verify(where: int, tmp_path: Path) -> None:
    rows = [bytes([n % 250 + 1]) * 100 for n in range(1600)]
    with sej.Writer(tmp_path, segment_bytes=1 << 30) as w:
        w.append_many(rows, timestamp=STAMP)
        w.end.rotate()
        w.append(b"another segment")  # sealed: the short last block has its entry too
    file = segment(tmp_path, 0)
    at = where % file.stat().st_size // 126 * 126 + 60
    flip(file, at, 4)
    assert len(read_all(tmp_path)) == 1601, "nothing in the format tells: that is what the checksums are for"
    found: list[Message] = []
    with sej.Scanner(tmp_path, verify=True) as s, pytest.raises(CorruptionError, match="CRC32C") as raised:
        found.extend(s)
    assert values(found) == rows[: len(found)], "no message of the damaged block was given out"
    assert raised.value.path == str(file) and raised.value.position is not None and raised.value.position <= at
    (problem,) = sej.Journal(tmp_path).verify()
    assert problem.kind == "checksum" and problem.position <= at < (problem.end or 0)


@pytest.mark.parametrize("offset", [0, 512, 900])
@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 18])
def test_a_changed_time_of_a_blocks_first_or_last_message_is_found_by_verify(
    offset: int, chunk_bytes: int, tmp_path: Path
) -> None:
    """The entry of its block then looks stale. The next entry shows that it is not."""
    size = len(encoded(0, STAMP, 0, b"", bytes(1000)))
    write(tmp_path, [bytes(1000)] * 1200, timestamp=STAMP, segment_bytes=1 << 30)
    index = IndexFile(Directory(tmp_path, OS), Directory(tmp_path, OS).segments()[0])
    file = segment(tmp_path, 0)
    opened = OS.open(file, "read")
    blocks = index.load(opened).blocks
    opened.close()
    assert len(blocks) > 3
    block = next(block for block in blocks if block.next_offset > offset)
    for at in (block.first_offset, block.next_offset - 1):
        flip(file, at * size + 15)
    found: list[Message] = []
    cursor = Cursor(Directory(tmp_path, OS), 0, verify=True, chunk_bytes=chunk_bytes)
    with pytest.raises(CorruptionError, match="CRC32C") as raised:
        found.extend(message for batch in iter(lambda: cursor.read(100), []) for message in batch)
    cursor.close()
    assert raised.value.offset == block.first_offset == len(found)
    (problem,) = sej.Journal(tmp_path).verify()
    assert (problem.kind, problem.offset) == ("checksum", block.first_offset)


class _FailingRead(OsFile):
    """Fails once, in the middle of a read, if ``fail`` is set."""

    fail = False

    def read(self, size: int, position: int) -> bytes:
        if type(self).fail and self.path.endswith(".jnl") and size > 4096:  # the reference codec's way
            type(self).fail = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        return super().read(size, position)

    def read_into(self, buffer: memoryview, position: int) -> int:
        if type(self).fail:
            type(self).fail = False
            super().read_into(buffer[: len(buffer) // 2], position)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        return super().read_into(buffer, position)


class _FailingReads(WrappingDisk):
    kind = _FailingRead


def test_bytes_that_a_failed_read_left_in_memory_are_never_returned(tmp_path: Path) -> None:
    write(tmp_path, [b"%08d" % n * 4 for n in range(20000)])
    with sej.Scanner(tmp_path, disk=_FailingReads()) as s:
        found: list[Message] = []
        for at in range(1000):
            _FailingRead.fail = at % 2 == 1
            try:
                batch = s.read(100_000)
            except OSError:
                continue
            if not batch and not _FailingRead.fail:
                break
            found += batch
        _FailingRead.fail = False
    assert values(found) == [b"%08d" % n * 4 for n in range(20000)]


def test_a_relative_path_means_the_directory_of_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write("j", [b"%s%d" % (name.encode(), n) for n in range(10)], segment_bytes=100)
    monkeypatch.chdir(tmp_path / "a")
    with (
        sej.Scanner("j") as s,
        sej.Offset("j", "r") as kept,
        sej.Writer("j", segment_bytes=100, durability="disk") as w,
    ):
        first = s.read(1)
        monkeypatch.chdir(tmp_path / "b")
        kept.commit(5)
        w.append_many([b"more"] * 10)
        assert values([*first, *s]) == [b"a%d" % n for n in range(10)] + [b"more"] * 10
    monkeypatch.chdir(tmp_path)
    assert sej.read_offset("a/j", "r") == 5 and sej.Journal("b/j").end_offset == 10


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize(
    "rest",
    [bytes(1), bytes(30), bytes(5000), b"?" * 40, encoded(3, STAMP, 0, b"", b"v")[:-2]],
    ids=["zero", "30 zeros", "5000 zeros", "garbage", "torn"],
)
def test_a_scanner_passes_what_is_no_message_at_the_end_of_a_segment_if_no_message_is_missing(
    tmp_path: Path, rest: bytes, mode: Any
) -> None:
    by_hand(tmp_path, (0, packed(sample(3)) + rest), (3, packed(sample(2, start=3))))
    with sej.Scanner(tmp_path, on_corruption=mode) as s:
        assert list(s) == sample(5)
        assert s.gaps == []
    assert [problem.kind for problem in sej.Journal(tmp_path).verify()] == ["corruption"]


# --- bugs of the original that do not live here, each by its number; those that other tests show are not repeated


def test_a2_an_empty_first_file_before_a_gap(tmp_path: Path) -> None:
    path = by_hand(tmp_path, (0, b""), (5, packed(sample(3, start=5))))
    with sej.Scanner(path) as s, pytest.raises(sej.OffsetGapError) as raised:
        s.read()
    assert raised.value.offset == 0


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


def test_b11_the_largest_and_smallest_times_are_kept(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_many([b""] * 3, timestamp=[2**63 - 1, -(2**63) + 1, sej.NO_TIMESTAMP])
    rows = read_all(tmp_path)
    assert [row.timestamp for row in rows] == [2**63 - 1, -(2**63) + 1, sej.NO_TIMESTAMP]
    assert [row.time and row.time.year for row in rows] == [2262, 1677, None]


def test_e2_an_empty_journal_commits_nothing(tmp_path: Path) -> None:
    sej.Writer(tmp_path).close()
    sej.Consumer(tmp_path, "r", timeout=0.0).run(lambda message: None)
    assert sej.read_offset(tmp_path, "r") in (None, 0)
    filled(tmp_path, 1)
    with sej.Offset(tmp_path, "r") as o:
        assert o.value == 0
