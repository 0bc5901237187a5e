"""Bugs of the original that do not live here, each by its number; those that other tests show are not repeated.

A: scanner, B: writer and format, C: kept offsets, E: what is built upon them.
"""

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

import sej
from tests.sej.hooks import HookedDisk
from tests.sej.support import by_hand, golden, packed, read_all, sample


def filled(path: Path, count: int = 20) -> Path:
    with sej.Writer(path) as w:
        w.append_messages(sample(count))
    return path


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
