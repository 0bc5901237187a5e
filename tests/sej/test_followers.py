"""Readers of the original that follow a journal, by their system calls, while segments are removed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sej
from tests.crash import original_reader
from tests.crash.disk import CrashDisk
from tests.sej.support import segments

pytestmark = pytest.mark.either_codec

COUNT = 30
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sej.Writer(tmp_path / "j", segment_bytes=200) as writer:
        for number in range(COUNT):
            writer.append(b"%030d" % number)
    return tmp_path / "j"


def append(path: Path, count: int = 1) -> None:
    with sej.Writer(path) as writer:
        writer.append_many([b"x"] * count)


class Follower:
    """A reader of the original in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> list[str]:
        """Let it end; return what it printed since."""
        return self._process.communicate(timeout=60)[0].split()


@contextmanager
def following(path: Path, offset: int) -> Iterator[Follower]:
    command = [sys.executable, original_reader.__file__, str(path), str(offset)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        follower = Follower(process)
        assert follower.line() == "waits"
        yield follower
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()


def test_a_deleted_name_ends_it(path: Path) -> None:
    with following(path, COUNT) as follower:
        (path / "jnl" / next(iter(segments(path)))).unlink()
        assert follower.line().startswith("ScanOffsetError")


def test_retention_ends_none(path: Path) -> None:
    with following(path, COUNT) as follower:
        assert len(sej.Journal(path).clean(max_bytes=0)) > 3
        append(path, 3)
        assert [follower.line() for _ in range(3)] == [str(COUNT + number) for number in range(3)]
        assert not list((path / "tmp").iterdir())
        assert follower.end() == []


def test_the_next_writer_deletes_what_a_crash_left_in_tmp() -> None:
    disk = CrashDisk()
    with sej.Writer("/j", segment_bytes=200, disk=disk) as writer:
        for number in range(COUNT):
            writer.append(b"%030d" % number)
    start = disk.settle()
    removed = sej.Journal("/j", disk=disk).clean(max_bytes=400)
    left = 0
    for crash in disk.crash_states(since=start):
        if crash.disk.status("/j/tmp") is not None:
            left += any(name.endswith(".removed") for name in crash.disk.list("/j/tmp"))
        with sej.Writer("/j", disk=crash.disk) as writer:
            assert writer.offset == COUNT
        assert crash.disk.status("/j/tmp") is None or not crash.disk.list("/j/tmp")
        assert sej.Journal("/j", disk=crash.disk).verify() == []
    assert removed
    assert left > 0
