"""Marks that follow each other closely, while other programs save the file."""

import threading
from pathlib import Path

import pytest

from sej.system.disk import OS
from tests.crash.disk import FaultyDisk
from tests.textqueue.claiming import lined, plain
from textqueue import Message, TextQueue

COUNT = 50
LINES = [b"-message %02d\n" % n for n in range(COUNT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(lined(b"".join(LINES)))
    return path


def begun(q: TextQueue) -> list[Message]:
    """Mark the first three messages, and return all."""
    found = list(q.messages())
    for message in found[:3]:
        message.mark_as_cleared()
    return found


def cleared(count: int) -> bytes:
    return b"".join(b"=" + line[1:] for line in LINES[:count]) + b"".join(LINES[count:])


def test_threads_share_a_queue(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)[3:]

        def work(part: list[Message]) -> None:
            for message in part:
                message.mark_as_cleared()

        threads = [threading.Thread(target=work, args=(messages[start::3],)) for start in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert plain(path) == cleared(COUNT)


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failed_write_is_an_error_and_later_marks_succeed(path: Path, fail_at: int) -> None:
    disk = FaultyDisk(OS, 10_000, "enospc")
    with TextQueue(path, disk=disk) as q:
        messages = begun(q)
        disk.fail_at = disk.calls + fail_at
        failed = 0
        for message in messages[3:10]:
            try:
                message.mark_as_cleared()
            except OSError:
                failed += 1
                message.mark_as_cleared()
        assert failed == 1
        assert disk.failed in ("write_at", "write")
        assert q.conflicts == []
    assert plain(path) == cleared(10)
