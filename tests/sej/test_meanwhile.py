"""A writer completes the last message while a reader decides whether it is damaged; it is never taken for damage."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.retention import clean
from sej.system.disk import OS
from tests.sej.hooks import HookedDisk, MeanwhileDisk
from tests.sej.support import by_hand, packed, read_all, sample, segment

pytestmark = pytest.mark.either_codec

ROWS = sample(8)
WHOLE = packed(ROWS[:4])
ENDS = {
    "few bytes": packed(ROWS[4:5])[:10],
    "most bytes": packed(ROWS[4:5])[:30],
    "zeros": bytes(50),
    "noise": packed(ROWS[4:5])[:20] + b"\x90" * 30,
}
"""What an append that is not finished leaves, and what a killed writer may leave for the next one to cut."""


def append(path: Path, *, rotate: bool) -> None:
    """Cut a torn tail if there is one, then append messages 4 to 7."""
    with segment(path, 0).open("r+b") as file:
        file.truncate(len(WHOLE))
        file.seek(len(WHOLE))
        file.write(packed(ROWS[4:6] if rotate else ROWS[4:]))
    if rotate:
        by_hand(path, (6, packed(ROWS[6:])))


def read(
    path: Path, disk: MeanwhileDisk, *, on_corruption: Literal["raise", "skip"] = "raise", verify: bool = False
) -> None:
    with sej.Scanner(path, on_corruption=on_corruption, verify=verify, disk=disk) as scanner:
        found = [*scanner.read(), *scanner.read()]
        disk.act()
        assert [*found, *scanner] == ROWS
        assert scanner.gaps == []


def find_times(path: Path, disk: MeanwhileDisk) -> None:
    assert sej.Journal(path, disk=disk).find_time(ROWS[4].timestamp) == 4
    assert 4 <= sej.Journal(path, disk=disk).find_time(ROWS[6].timestamp) <= 6


def look_at_end(path: Path, disk: MeanwhileDisk) -> None:
    journal = sej.Journal(path, disk=disk)
    assert 4 <= journal.end_offset <= 8
    tail = journal.tail(2)
    assert tail == ROWS[tail[0].offset :][:2]
    assert {problem.kind for problem in journal.verify()} <= {"torn tail"}


READERS: dict[str, Callable[[Path, MeanwhileDisk], None]] = {
    "scanner": read,
    "verifying scanner": lambda path, disk: read(path, disk, verify=True),
    "skipping scanner": lambda path, disk: read(path, disk, on_corruption="skip"),
    "skipping and verifying scanner": lambda path, disk: read(path, disk, on_corruption="skip", verify=True),
    "find_time": find_times,
    "end": look_at_end,
}


def at_every_call(
    path: Path, make: Callable[[Path], object], act: Callable[[Path], object], least: int
) -> Iterator[tuple[Path, MeanwhileDisk]]:
    """Yield a journal of its own for each call before which another process acts; there are more than so many."""
    for k in count(1):
        make(path / str(k))
        disk = MeanwhileDisk(k, partial(act, path / str(k)))
        yield path / str(k), disk
        if disk.calls < k:
            break
    assert k > least


@pytest.mark.parametrize("rotate", [False, True], ids=["appends", "appends and rotates"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_message_that_is_completed_in_the_meantime_is_read(
    reader: str, end: str, rotate: bool, tmp_path: Path
) -> None:
    torn = lambda path: by_hand(path, (0, WHOLE + ENDS[end]))  # noqa: E731
    for path, disk in at_every_call(tmp_path, torn, partial(append, rotate=rotate), 10):
        READERS[reader](path, disk)


def segments_of(*pieces: tuple[int, int]) -> Callable[[Path], Path]:
    """Return what makes a journal of these ranges of messages."""
    return lambda path: by_hand(path, *((first, packed(ROWS[first:stop])) for first, stop in pieces))


def test_a_journal_that_is_moved_away_is_not_read_in_part(tmp_path: Path) -> None:
    errors = 0
    away = lambda path: path.rename(path.with_suffix(".moved"))  # noqa: E731
    for path, disk in at_every_call(tmp_path, segments_of(*((n, n + 1) for n in range(8))), away, 8):
        try:
            assert sej.Journal(path, disk=disk).tail(8) == ROWS
        except sej.JournalNotFoundError:
            errors += 1
    assert errors > 8


def test_a_journal_that_is_removed_is_sound_or_not_found(tmp_path: Path) -> None:
    for path, disk in at_every_call(tmp_path, segments_of((0, 2), (2, 4), (4, 8)), shutil.rmtree, 10):
        with suppress(sej.JournalNotFoundError):
            assert sej.Journal(path, disk=disk).verify() == []


def open_writer(path: Path, disk: MeanwhileDisk) -> None:
    with sej.SharedWriter(path, disk=disk) as writer:
        assert writer.append(b"") == 0


def look(path: Path, disk: MeanwhileDisk) -> None:
    with suppress(sej.JournalNotFoundError):
        assert sej.Journal(path, disk=disk).end_offset == 0


@pytest.mark.parametrize("opens", [open_writer, look])
def test_a_journal_that_another_process_just_creates_is_opened(
    opens: Callable[[Path, MeanwhileDisk], None], tmp_path: Path
) -> None:
    for path, disk in at_every_call(tmp_path, Path.mkdir, lambda path: (path / "jnl").mkdir(exist_ok=True), 3):
        opens(path, disk)


def clean_now(path: Path) -> None:
    """What a writer's retention does: nothing while another process removes segments."""
    clean(Directory(path, OS), sej.Retention(max_bytes=1), wait=False)


def test_a_repair_during_retention_is_done_or_says_what_to_do(tmp_path: Path) -> None:
    errors = set()
    for path, disk in at_every_call(tmp_path, segments_of((0, 2), (2, 4), (4, 6), (6, 8)), clean_now, 8):
        try:
            assert sej.Journal(path, disk=disk).repair() == ([], [], [], [])
        except sej.LockedError as error:
            errors.add(error.reason)
        assert sej.Journal(path).repair() == ([], [], [], [])
    assert errors == {"retention removed this segment during the repair; run the repair again"}


def promise(path: Path) -> list[bytes]:
    """Leave what a writer leaves that dies after it has appended a batch over five segments and before it is done."""
    batch = [b"%030d" % n for n in range(10)]
    kept: dict[Path, bytes] = {}
    promised = [path / "txn" / "b.intent", path / "tmp" / "b.rows"]

    def look(*_: object) -> None:
        if all(file.exists() for file in promised):
            kept.update({file: file.read_bytes() for file in promised})

    by_hand(path, (0, packed(ROWS)))
    with sej.Writer(path, segment_bytes=100, disk=HookedDisk(look)) as writer:
        writer.append(b"before")
        writer.append_once("b", 1, batch)
    (path / "txn" / "b.done").unlink()
    for file, data in kept.items():
        file.write_bytes(data)
    return batch


def test_a_batch_is_completed_once_though_segments_are_deleted(tmp_path: Path) -> None:
    everything = [*(row.value for row in ROWS), b"before", *promise(tmp_path / "promised")]
    for path, disk in at_every_call(tmp_path, partial(shutil.copytree, tmp_path / "promised"), clean_now, 20):
        sej.Writer(path, disk=disk).close()
        found = [message.value for message in read_all(path)]
        assert sej.Journal(path).end_offset == len(everything)
        assert found == everything[len(everything) - len(found) :]
