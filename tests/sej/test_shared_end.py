"""What a turn of a shared writer costs, and what must not hold it up."""

import tracemalloc
from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.retention import readers_lock
from sej.system.disk import OS
from tests.sej.hooks import Worker
from tests.sej.support import read_all


def test_catching_up_with_others_takes_bounded_memory(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one, sej.SharedWriter(tmp_path) as other:
        one.append(b"first")
        for _ in range(40):
            other.append(b"v" * 1_000_000)
        tracemalloc.start()
        try:
            assert one.append(b"last") == 41
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 20_000_000
        assert other.append(b"other") == 42
    assert sej.Journal(tmp_path).verify() == []


def test_an_append_does_not_wait_for_a_process_that_deletes_segments(tmp_path: Path) -> None:
    retention = sej.Retention(max_bytes=300)
    with sej.SharedWriter(tmp_path, segment_bytes=100, retention=retention) as w:
        w.append(b"first")
        with readers_lock(Directory(tmp_path, OS)):
            assert Worker(lambda: w.append_many([b"v" * 50] * 9)).result() == range(1, 10)
            assert len(read_all(tmp_path)) == 10
        w.append_many([b"v" * 50] * 9)
    assert len(read_all(tmp_path)) < 10


def test_retention_that_fails_does_not_fail_the_append(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, segment_bytes=100, retention=sej.Retention(max_bytes=300)) as w:
        (tmp_path / "ofs" / ".lock").mkdir()
        with pytest.warns(RuntimeWarning, match="retention failed"):
            assert w.append(b"v" * 100) == 0
        with pytest.warns(RuntimeWarning, match="retention failed"):
            assert w.append(b"v" * 100) == 1
    assert len(read_all(tmp_path)) == 2
