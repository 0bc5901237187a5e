"""A directory that is copied while workers use its queue: the copy loses no item."""

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import take

ITEMS = 12
PARTS = ["ofs/w.check", "ofs/w.ofs", "ofs/w.queue"]


@contextmanager
def queue(path: Path) -> Iterator[JournalQueue]:
    with sej.open_queue(path, "w") as q:
        assert isinstance(q, JournalQueue)
        yield q


def work(path: Path, count: int) -> None:
    """Finish items. Each opening keeps the position, as a worker does now and then.

    Earlier files remain under another name, so that no copy gets the inode of one of them.
    """
    for _ in range(count):
        os.link(path / "ofs" / "w.ofs", path / f"old.{len(list(path.iterdir()))}")
        with queue(path) as q:
            item = take(q)
            item.done()


def copied(path: Path, copy: Path, order: tuple[str, ...]) -> None:
    """Copy the files of a queue in an order, while a worker finishes items, and at last the journal."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("jnl", "ofs", "old.*"))
    (copy / "ofs").mkdir()
    for part in order:
        shutil.copy2(path / part, copy / part)
        work(path, 3)
    shutil.copytree(path / "jnl", copy / "jnl")


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS)), ids="-".join)
def test_the_files_of_a_queue_are_of_different_moments(tmp_path: Path, order: tuple[str, ...]) -> None:
    path, copy = tmp_path / "q", tmp_path / "copy"
    with queue(path) as q:
        q.put_many([b"%d" % number for number in range(ITEMS)])
    work(path, 2)
    copied(path, copy, order)
    with queue(copy) as q:
        left = [item.value for item in q.get_many(ITEMS, timeout=0)]
    assert left == [b"%d" % number for number in range(ITEMS - len(left), ITEMS)]
    assert len(left) >= ITEMS - 2 - 2 * 3, "what was done when the last file was copied"
    with queue(copy) as q:
        assert q.recovered is None


def test_a_pair_of_different_moments_is_reported(tmp_path: Path) -> None:
    path, copy = tmp_path / "q", tmp_path / "copy"
    with queue(path) as q:
        q.put_many([b"%d" % number for number in range(ITEMS)])
    work(path, 2)
    copied(path, copy, ("ofs/w.check", "ofs/w.ofs", "ofs/w.queue"))
    with queue(copy) as q:
        assert "this file and its twin differ, as in a copy" in (q.recovered or "")
        assert q.stats().ready == ITEMS - 2
    assert sej.read_offset(copy, "w") == 2


def test_changed_bytes_in_the_file_that_was_written_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with queue(path) as q:
        q.put_many([b"%d" % number for number in range(ITEMS)])
    work(path, 2)
    file = path / "ofs" / "w.ofs"
    before = file.stat()
    with file.open("r+b") as disk:
        disk.write((9).to_bytes(8, "big"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(sej.BadOffsetFileError), queue(path):
        pass
