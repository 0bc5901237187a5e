"""What a journal of many segments costs: counted in calls to the disk, which no busy machine changes."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import sej
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.system.disk import Mode, OsDisk, OsFile, Status
from tests.queue.support import FakeClock
from tests.sej.support import read_all, write

FEW, MANY = 20, 80


class CallsDisk(OsDisk):
    """The real disk, and how often each verb was used."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        self.calls["open"] += 1
        return super().open(path, mode)

    def status(self, path: str | os.PathLike[str]) -> Status | None:
        self.calls["status"] += 1
        return super().status(path)

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        self.calls["list"] += 1
        return super().list(path)


def journal(path: Path, count: int) -> Path:
    """A journal of so many segments of one message each."""
    write(path, [b"%d" % n for n in range(count)], segment_bytes=1)
    for n, segment in enumerate(sorted((path / "jnl").iterdir())):  # on a coarse clock, some would have equal times
        os.utime(segment, ns=(10**18 + n, 10**18 + n))
    return path


def scan(path: Path, disk: CallsDisk) -> None:
    assert len(read_all(path, disk=disk)) in (FEW, MANY)


def scan_verified(path: Path, disk: CallsDisk) -> None:
    assert len(read_all(path, verify=True, disk=disk)) in (FEW, MANY)


def consume(path: Path, disk: CallsDisk) -> None:
    consumer = sej.Consumer(path, "reader", timeout=0.0, commit_interval_s=3600.0, disk=disk)
    assert consumer.run(lambda message: None) in (FEW, MANY)


def work(path: Path, disk: CallsDisk) -> None:
    with sej.open_queue(path, "queue", disk=disk, clock=FakeClock()) as q:
        while item := q.get(timeout=0.0):
            item.done()
        assert q.stats().ready == 0


def backwards(path: Path, disk: CallsDisk) -> None:
    assert len(list(sej.Journal(path, disk=disk).reversed())) in (FEW, MANY)


OPERATIONS: dict[str, Callable[[Path, CallsDisk], object]] = {
    "scan": scan,
    "scan_verified": scan_verified,
    "consume": consume,
    "queue": work,
    "reversed": backwards,
    "writer": lambda path, disk: sej.Writer(path, disk=disk).close(),
    "segments": lambda path, disk: sej.Journal(path, disk=disk).segments,
    "find_time": lambda path, disk: sej.Journal(path, disk=disk).find_time(1 << 62),
    "verify": lambda path, disk: sej.Journal(path, disk=disk).verify(),
    "repair": lambda path, disk: sej.Journal(path, disk=disk).repair(),
    "reindex": lambda path, disk: sej.Journal(path, disk=disk).reindex(),
    "clean": lambda path, disk: sej.Journal(path, disk=disk).clean(max_bytes=1),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass, in a year when no directory has changed for long: the clock decides no call."""
    monkeypatch.setattr("sej.journal.cursor.time", SimpleNamespace(time_ns=lambda: 1 << 62, monotonic_ns=lambda: 0))
    monkeypatch.setattr("sej.writing.appender._LOOK_S", 3600.0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("name", OPERATIONS)
def test_costs_no_more_than_linear(name: str, tmp_path: Path) -> None:
    few, many = CallsDisk(), CallsDisk()
    OPERATIONS[name](journal(tmp_path / "few", FEW), few)
    OPERATIONS[name](journal(tmp_path / "many", MANY), many)
    assert many.calls["list"] <= few.calls["list"]
    for verb in ("open", "status"):
        assert many.calls[verb] <= (MANY // FEW) * few.calls[verb]


def test_a_parked_reader_is_opened_again_without_a_listing(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_many([b"%d" % n for n in range(100)])
    disk = CallsDisk()
    cursor = Cursor(Directory(tmp_path, disk), 0)
    assert len(cursor.read(10)) == 10
    cursor.park()
    listed = disk.calls["list"]
    assert cursor.read(1)[0].offset == 10
    assert disk.calls["list"] == listed
    cursor.close()
