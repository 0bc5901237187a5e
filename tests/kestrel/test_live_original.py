"""Reading next to a live original: nothing in its directory changes, and a change of its own is noticed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kestrel
import pipeline
import sej
from kestrel import segmented
from kestrel.errors import BusyError
from kestrel.files import WRITER_MAGIC, formats_of, magic_of
from kestrel.segmented.codec import encode_put
from kestrel.v2.codec import addx
from pipeline.reading.rows import rows_of
from tests.cli.command import sej as command

NOW = 1_500_000_000_000


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory: inode and bytes."""
    return {
        str(path.relative_to(directory)): (path.stat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def spool_in_a_rewrite(directory: Path) -> None:
    """What the original has on the disk while it rewrites a journal of two files (Journal.scala, rewriteJournal)."""
    directory.mkdir()
    (directory / f"cars.{NOW}").write_bytes(addx(b"one", NOW))
    (directory / "cars").write_bytes(addx(b"two", NOW))
    (directory / f"cars~~{NOW + 1}").write_bytes(addx(b"one", NOW))  # and b"two" is still to be written


def rewrite_ends(directory: Path) -> None:
    """The original's system calls from there on."""
    with (directory / f"cars~~{NOW + 1}").open("ab") as file:
        file.write(addx(b"two", NOW))
    os.rename(directory / f"cars~~{NOW + 1}", directory / f"cars.{NOW + 2}.pack")
    os.unlink(directory / f"cars.{NOW}")
    os.unlink(directory / "cars")
    os.rename(directory / f"cars.{NOW + 2}.pack", directory / "cars")


def export_2(spool: Path, target: Path) -> None:
    with sej.Writer(target) as writer:
        kestrel.export(spool, "cars", writer)


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "export": export_2,
    "replay": lambda spool, _: kestrel.replay(spool, "cars"),
    "dump": lambda spool, _: [*kestrel.read_journal(spool / "cars")],
    "spark": lambda spool, _: [*rows_of(str(spool), queue="cars")],
    "command export": lambda spool, target: command("kestrel", "export", spool, "cars", target),
    "command state": lambda spool, _: command("kestrel", "state", spool, "cars"),
    "command dump": lambda spool, _: command("kestrel", "dump", spool / "cars"),
}


@pytest.mark.parametrize("reader", READERS)
def test_reading_changes_nothing_while_the_original_rewrites(reader: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool_in_a_rewrite(spool)
    before = tree(spool)
    READERS[reader](spool, tmp_path / "target")
    assert tree(spool) == before
    rewrite_ends(spool)
    assert [item.data for item in kestrel.replay(spool, "cars").items] == [b"one", b"two"]


class During:
    """A writer during whose first call the original continues."""

    def __init__(self, inner: sej.Writer, change: Callable[[], object]) -> None:
        self.inner = inner
        self.path = inner.path
        self.change: Callable[[], object] | None = change

    @property
    def offset(self) -> int:
        return self.inner.offset

    def append_many(self, *arguments: Any, **options: Any) -> object:
        change, self.change = self.change, None
        if change is not None:
            change()
        return self.inner.append_many(*arguments, **options)

    def sync(self) -> None:
        self.inner.sync()


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(addx(b"three", NOW))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewrite": rewrite_ends,
    "append": lambda spool: appended(spool / "cars"),
    "rotation": lambda spool: os.rename(spool / "cars", spool / f"cars.{NOW + 5}"),
    "deletion": lambda spool: os.unlink(spool / "cars"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_export_fails_if_the_original_changes_the_queue(change: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool_in_a_rewrite(spool)
    with sej.Writer(tmp_path / "target") as writer, pytest.raises(BusyError, match="changed while"):
        kestrel.export(spool, "cars", During(writer, lambda: CHANGES[change](spool)))


def segmented_spool(directory: Path) -> None:
    with segmented.Queue(directory, "jobs", journal_bytes=80) as queue:
        queue.reader("worker")
        queue.put_many([b"one", b"two", b"three"])
    for name in ("jobs~~lock", "jobs~~durable"):  # the original has neither
        (directory / name).unlink()
    with max(directory.glob("jobs.[0-9]*")).open("ab") as file:
        file.write(bytes(64))  # its last file is mapped at its full size
    (directory / f"jobs.read.worker~~{NOW}").write_bytes(b"\x26")  # a checkpoint of the original, under way


def export_3(spool: Path, target: Path) -> None:
    with sej.Writer(target) as writer:
        segmented.export(spool, "jobs", writer, reader="worker")


READERS_3: dict[str, Callable[[Path, Path], Any]] = {
    "export": export_3,
    "load": lambda spool, _: segmented.load(spool, "jobs"),
    "spark": lambda spool, _: [*rows_of(str(spool), queue="jobs", reader="worker")],
    "command export": lambda spool, to: command("kestrel", "export", "--reader", "worker", spool, "jobs", to),
    "command state": lambda spool, _: command("kestrel", "state", spool, "jobs"),
    "command dump": lambda spool, _: command("kestrel", "dump", spool / "jobs.read.worker"),
}


@pytest.mark.parametrize("reader", READERS_3)
def test_reading_changes_nothing_next_to_a_live_libkestrel(reader: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    segmented_spool(spool)
    before = tree(spool)
    READERS_3[reader](spool, tmp_path / "target")
    assert tree(spool) == before


def checkpoint(spool: Path) -> None:
    target = spool / "jobs.read.worker"
    os.rename(spool / f"jobs.read.worker~~{NOW}", target)


def put(spool: Path) -> None:
    """Into the mapped file, so that its size stays."""
    path = max(spool.glob("jobs.[0-9]*"))
    end = len(path.read_bytes().rstrip(b"\0"))
    with path.open("r+b") as file:
        file.seek(end)
        file.write(encode_put(segmented.Item(4, NOW, None, 0, b"four")))


CHANGES_3: dict[str, Callable[[Path], object]] = {
    "checkpoint": checkpoint,
    "put": put,
    "rotation": lambda spool: (spool / f"jobs.{4 * NOW}").write_bytes(WRITER_MAGIC),
    "retirement": lambda spool: os.unlink(min(spool.glob("jobs.[0-9]*"))),
}


@pytest.mark.parametrize("change", CHANGES_3)
def test_an_export_fails_if_libkestrel_changes_the_queue(change: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    segmented_spool(spool)
    with sej.Writer(tmp_path / "target") as writer, pytest.raises(BusyError, match="changed while"):
        segmented.export(spool, "jobs", During(writer, lambda: CHANGES_3[change](spool)), reader="worker")


def test_an_export_refuses_a_queue_that_another_process_has_open(tmp_path: Path) -> None:
    with kestrel.Queue(tmp_path / "spool", "cars") as queue:
        queue.put(b"one")
        with sej.Writer(tmp_path / "target") as writer:
            with pytest.raises(BusyError, match="is open"):
                kestrel.export(tmp_path / "spool", "cars", writer)
            assert writer.offset == 0


def test_a_file_that_a_live_original_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rotated = tmp_path / f"cars.{NOW}"

    def after_its_removal(path: str, *disk: Any) -> bytes:
        if path == str(rotated):
            rotated.unlink()
        return magic_of(path, *disk)

    with kestrel.Queue(tmp_path, "cars") as queue:
        queue.put(b"car")
    monkeypatch.setattr("kestrel.files.magic_of", after_its_removal)
    for look, expected in (
        (lambda: formats_of(tmp_path, "cars"), {False}),
        (lambda: pipeline.table(tmp_path).count(), 1),
        (lambda: len(list(rows_of(str(tmp_path), queue="cars"))), 1),
    ):
        rotated.write_bytes(addx(b"old car", NOW, 0))
        assert look() == expected
