"""Reading next to a live original: nothing in its directory changes, and a change of its own is noticed."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kestrel
import pipeline
import sej
from kestrel import segmented
from kestrel.errors import BusyError
from kestrel.files import WRITER_MAGIC, formats_of, magic_of
from kestrel.segmented.format import encode_put
from kestrel.v2.format import addx
from pipeline.reading.rows import KestrelItems
from tests.cli.command import sej as command
from tests.kestrel.support import HookedWriter
from tests.sej.support import overwrite

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


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(addx(b"three", NOW))


def segmented_spool(directory: Path) -> None:
    with segmented.Queue(directory, "jobs", journal_bytes=80) as queue:
        queue.reader("worker")
        queue.put_many([b"one", b"two", b"three"])
    for name in ("jobs~~lock", "jobs~~durable"):  # the original has neither
        (directory / name).unlink()
    with max(directory.glob("jobs.[0-9]*")).open("ab") as file:
        file.write(bytes(64))  # its last file is mapped at its full size
    (directory / f"jobs.read.worker~~{NOW}").write_bytes(b"\x26")  # a checkpoint of the original, under way


EXPORTS: dict[str, Any] = {"cars": kestrel.export, "jobs": partial(segmented.export, reader="worker")}


def exported(name: str, spool: Path, target: Path) -> None:
    with sej.Writer(target) as writer:
        EXPORTS[name](spool, name, writer)


def checkpoint(spool: Path) -> None:
    target = spool / "jobs.read.worker"
    os.rename(spool / f"jobs.read.worker~~{NOW}", target)


def put(spool: Path) -> None:
    """Into the mapped file, so that its size stays."""
    path = max(spool.glob("jobs.[0-9]*"))
    end = len(path.read_bytes().rstrip(b"\0"))
    overwrite(path, end, encode_put(segmented.Item(4, NOW, None, 0, b"four")))


READERS: dict[tuple[str, str], Callable[[Path, Path], Any]] = {
    ("cars", "export"): partial(exported, "cars"),
    ("cars", "replay"): lambda spool, _: kestrel.replay(spool, "cars"),
    ("cars", "dump"): lambda spool, _: [*kestrel.read_journal(spool / "cars")],
    ("cars", "spark"): lambda spool, _: [*KestrelItems([]).rows((str(spool), "cars"))],
    ("cars", "command export"): lambda spool, target: command("kestrel", "export", spool, "cars", target),
    ("cars", "command state"): lambda spool, _: command("kestrel", "state", spool, "cars"),
    ("cars", "command dump"): lambda spool, _: command("kestrel", "dump", spool / "cars"),
    ("jobs", "export"): partial(exported, "jobs"),
    ("jobs", "load"): lambda spool, _: segmented.load(spool, "jobs"),
    ("jobs", "spark"): lambda spool, _: [*KestrelItems([], reader="worker").rows((str(spool), "jobs"))],
    ("jobs", "command export"): lambda spool, to: command("kestrel", "export", "--reader", "worker", spool, "jobs", to),
    ("jobs", "command state"): lambda spool, _: command("kestrel", "state", spool, "jobs"),
    ("jobs", "command dump"): lambda spool, _: command("kestrel", "dump", spool / "jobs.read.worker"),
}
SPOOLS = {"cars": spool_in_a_rewrite, "jobs": segmented_spool}


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_reading_changes_nothing_next_to_a_live_original(name: str, reader: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    SPOOLS[name](spool)
    before = tree(spool)
    READERS[name, reader](spool, tmp_path / "target")
    assert tree(spool) == before
    if name == "cars":
        rewrite_ends(spool)
        assert [item.data for item in kestrel.replay(spool, "cars").items] == [b"one", b"two"]


CHANGES: dict[tuple[str, str], Callable[[Path], object]] = {
    ("cars", "rewrite"): rewrite_ends,
    ("cars", "append"): lambda spool: appended(spool / "cars"),
    ("cars", "rotation"): lambda spool: os.rename(spool / "cars", spool / f"cars.{NOW + 5}"),
    ("cars", "deletion"): lambda spool: os.unlink(spool / "cars"),
    ("jobs", "checkpoint"): checkpoint,
    ("jobs", "put"): put,
    ("jobs", "rotation"): lambda spool: (spool / f"jobs.{4 * NOW}").write_bytes(WRITER_MAGIC),
    ("jobs", "retirement"): lambda spool: os.unlink(min(spool.glob("jobs.[0-9]*"))),
}


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_an_export_fails_if_the_original_changes_the_queue(name: str, change: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    SPOOLS[name](spool)
    with sej.Writer(tmp_path / "target") as writer, pytest.raises(BusyError, match="changed while"):
        EXPORTS[name](spool, name, HookedWriter(writer, lambda after: after or CHANGES[name, change](spool)))


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
        (lambda: len(list(KestrelItems([]).rows((str(tmp_path), "cars")))), 1),
    ):
        rotated.write_bytes(addx(b"old car", NOW, 0))
        assert look() == expected
