"""Scanners that wait: time-outs, other threads and processes, segments that come and go under them."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

import sej
from sej import CorruptionError, OffsetTooSmallError
from sej.journal.directory import Directory
from sej.journal.retention import clean
from sej.system.disk import OS
from sej.system.watch import Watch
from tests.sej.hooks import PATIENCE_S, HookedDisk, MeanwhileDisk, Worker, output, script, until
from tests.sej.support import STAMP, by_hand, encoded, packed, read_all, sample, segment, values, write

pytestmark = pytest.mark.either_codec


def empty(path: Path) -> Path:
    sej.Writer(path).close()
    return path


def test_a_timeout_is_kept_to(tmp_path: Path) -> None:
    with sej.Scanner(empty(tmp_path), timeout=0.05) as s:
        for own in (None, 0.05):
            start = time.monotonic()
            assert (list(s) if own is None else s.read(timeout=own)) == []
            assert 0.04 < time.monotonic() - start < PATIENCE_S


def test_a_timeout_of_zero_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sej.Scanner(empty(tmp_path), timeout=0.001) as s:
        assert s.read() == [], "it waits once, so there is a watch"
        monkeypatch.setattr(Watch, "wait", None)  # a wait raises
        assert s.read(timeout=0.0) == []


def test_a_timeout_is_a_bound_whatever_else_happens_in_the_directory(tmp_path: Path) -> None:
    with sej.Scanner(empty(tmp_path), 10, timeout=0.2) as s, sej.Writer(tmp_path) as w:
        reader = Worker(lambda: s.read())
        start = time.monotonic()
        while reader.is_alive() and w.offset < 9:
            w.append(b"not the one that is waited for")
        assert reader.result() == []
        assert time.monotonic() - start < PATIENCE_S


def test_read_returns_as_soon_as_there_is_one(tmp_path: Path) -> None:
    with sej.Scanner(empty(tmp_path), timeout=None) as s, sej.Writer(tmp_path) as w:
        for n in range(20):
            reader = Worker(s.read)
            w.append(b"%d" % n)
            assert values(reader.result()) == [b"%d" % n]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "step_ns"),
    [
        pytest.param(lambda now: now - 3600 * 10**9 - 1, 1, id="long ago"),
        pytest.param(lambda now: now + 3600 * 10**9, 0, id="in the future"),
        pytest.param(lambda now: now, 0, id="in one tick"),
        pytest.param(lambda now: now - now % 10**9, 0, id="in one second, where only seconds are kept"),
        pytest.param(lambda now: 0, 0, id="never"),
    ],
)
def test_a_change_of_the_directory_is_seen_whatever_its_times_say(
    before: Callable[[int], int], step_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader at the end looks at the directory's time first; a change may carry the time of the one before it."""
    now = time.time_ns()
    monkeypatch.setattr("sej.journal.cursor.time.time_ns", lambda: now)  # however slow this machine is
    at = before(now)
    with sej.Writer(tmp_path, segment_bytes=100) as w, sej.Scanner(tmp_path) as s:
        w.append(b"first")
        os.utime(tmp_path / "jnl", ns=(at, at))
        assert values(s.read()) == [b"first"]
        assert s.read() == s.read() == []
        w.append_many([b"%d" % n for n in range(20)])
        assert len(list((tmp_path / "jnl").iterdir())) > 2
        os.utime(tmp_path / "jnl", ns=(at + step_ns, at + step_ns))
        assert values(list(s)) == [b"%d" % n for n in range(20)]


def test_an_offset_beyond_the_end_waits_until_it_is_there(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=60) as w, sej.Scanner(tmp_path, 50, timeout=None) as s:
        reader = Worker(s.read)
        for n in range(50):
            w.append(b"%d" % n)
        assert reader.is_alive()
        w.append(b"50")
        assert values(reader.result()) == [b"50"]  # type: ignore[arg-type]


@pytest.mark.parametrize("iterate", [True, False])
def test_closing_from_another_thread_ends_the_wait(iterate: bool, tmp_path: Path) -> None:
    s = sej.Scanner(empty(tmp_path), timeout=None)
    reader = Worker(lambda: list(s) if iterate else s.read())
    until(lambda: s._reading)
    s.close()
    assert reader.result() == []


def test_a_signal_handler_may_close_in_the_middle_of_a_read(tmp_path: Path) -> None:
    s = sej.Scanner(empty(tmp_path), timeout=None)
    before = signal.signal(signal.SIGUSR1, lambda *_: s.close())

    def send() -> None:
        until(lambda: s._watch is not None)
        os.kill(os.getpid(), signal.SIGUSR1)

    try:
        sender = Worker(send)
        assert s.read() == []
        sender.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert s.closed and s._watch is not None and s._watch._closed


def test_closing_ends_an_iteration_that_has_messages(tmp_path: Path) -> None:
    write(tmp_path, [b"v"] * 10)
    s = sej.Scanner(tmp_path)
    seen = []
    for message in s:
        seen.append(message)
        s.close()
    assert len(seen) >= 1


def test_old_segments_may_go_under_a_tailing_scanner(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=1) as w, sej.Scanner(tmp_path, timeout=None) as s:
        for n in range(100):
            w.append(b"%d" % n)
            assert values(s.read()) == [b"%d" % n]
            (tmp_path / "jnl" / f"{n:016x}.jnl").unlink()
            (tmp_path / "jnl" / f"foreign-{n}").write_bytes(b"")


def test_a_slow_reader_reads_its_open_segment_and_then_gets_an_error(tmp_path: Path) -> None:
    rows = sample(40)
    with sej.Writer(tmp_path, segment_bytes=200) as w:
        w.append_messages(rows)
    names = sorted((tmp_path / "jnl").iterdir())
    with sej.Scanner(tmp_path) as s:
        assert s.read(1) == rows[:1]
        for name in names[:3]:
            name.unlink()
        there = int(names[1].name[:16], 16)
        assert s.read(100) == rows[1:there], "what is open stays readable"
        with pytest.raises(OffsetTooSmallError) as raised:
            s.read()
        assert (raised.value.offset, raised.value.first_available) == (there, int(names[3].name[:16], 16))
        s.seek(raised.value.first_available)
        assert list(s) == rows[raised.value.first_available :]


def test_the_journal_may_be_removed_and_start_again_at_a_higher_offset(tmp_path: Path) -> None:
    rows = sample(20)
    path = by_hand(tmp_path, (0, packed(rows[:10])))
    with sej.Scanner(path) as s:
        assert s.read() == rows[:10]
        segment(path, 0).unlink()
        assert s.read() == []
        by_hand(path, (10, packed(rows[10:])))
        assert s.read() == rows[10:]


def test_damage_that_lasts_for_a_second_is_judged_while_following(tmp_path: Path) -> None:
    rows = sample(5)
    bad = bytearray(encoded(3, STAMP, 0, b"", b"v"))
    bad[17] = 0xFF
    path = by_hand(tmp_path, (0, packed(rows[:3]) + bytes(bad) + packed(rows[4:])))
    with sej.Scanner(path, timeout=None) as s:
        assert s.read() == rows[:3]
        with pytest.raises(CorruptionError):
            Worker(s.read).result()


FOLLOWER = """
import sys, sej
with sej.Scanner(sys.argv[1], timeout=None) as s:
    print("ready", flush=True)
    for message in s:
        assert message.value == b"%d" % message.offset
        if message.offset + 1 == int(sys.argv[2]):
            break
print(s.offset)
"""


def test_eight_processes_follow_one_writer_that_rotates_every_ten(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=270) as w:
        readers = [script(FOLLOWER, tmp_path, 500) for _ in range(8)]
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        for n in range(500):
            w.append(b"%d" % n)
        assert [reader.communicate(timeout=30)[0] for reader in readers] == ["500\n"] * 8


NO_INOTIFY = """
import ctypes, itertools, sys, threading, sej, sej.system.watch
sej.system.watch._inotify_init = lambda: None  # the system gives no inotify instance
path = sys.argv[1]
with sej.Writer(path, segment_bytes=50) as w, sej.Scanner(path, timeout=None) as s:
    w.append(b"first")
    s.read()
    assert s.read(timeout=0.001) == []  # it waits once, so there is a watch however late the reader is
    def work():
        for n in range(100):
            w.append(b"%d" % n)
    threading.Thread(target=work).start()
    found = [message.value for message in itertools.islice(s, 100)]
assert s._watch.polling
print(found == [b"%d" % n for n in range(100)])
"""


def test_following_works_where_there_is_no_inotify(tmp_path: Path) -> None:
    assert output(NO_INOTIFY, tmp_path) == "True"


@pytest.mark.parametrize("count", [1, 40, 41, 100])
@pytest.mark.parametrize("has_id", [True, False])
def test_a_reader_of_a_journal_that_was_created_again_says_so(count: int, has_id: bool, tmp_path: Path) -> None:
    def fill(start: int, stop: int) -> None:
        write(path, [b"%d" % n for n in range(start, stop)], segment_bytes=300)
        if not has_id:  # as the original wrote it
            (path / "id").unlink()

    path = tmp_path / "journal"
    fill(0, 40)
    with sej.Scanner(path) as behind, sej.Scanner(path) as at_end:
        assert [m.value for m in behind.read(3)] == [b"0", b"1", b"2"]
        assert [m.value for m in at_end] == [b"%d" % n for n in range(40)]
        path.rename(tmp_path / "old")
        with pytest.raises(sej.JournalNotFoundError):
            at_end.read()
        fill(1000, 1000 + count)
        for scanner in (behind, at_end):
            found: list[bytes] = []
            with pytest.raises(sej.JournalNotFoundError, match="re-created"):
                found += [m.value for m in scanner]
            assert all(int(value) < 40 for value in found)
            with pytest.raises(sej.JournalNotFoundError, match="re-created"):
                scanner.read()


def test_an_identity_that_was_touched_or_replaced_by_an_equal_one_is_the_same(tmp_path: Path) -> None:
    identity = tmp_path / "id"
    with sej.Writer(tmp_path, segment_bytes=300) as w, sej.Scanner(tmp_path) as s:
        w.append_many([b"%d" % n for n in range(40)])
        assert len(s.read(3)) == 3
        os.utime(identity, (1, 1))
        assert len(list(s)) == 37
        w.append_many([b"%d" % n for n in range(40)])
        shutil.copy(identity, tmp_path / "copy")
        (tmp_path / "copy").rename(identity)
        assert len(list(s)) == 40


def test_a_copy_in_the_place_of_a_journal_is_another_one(tmp_path: Path) -> None:
    path, copy = tmp_path / "journal", tmp_path / "copy"
    write(path, [b"%d" % n for n in range(40)], segment_bytes=300)
    with sej.Scanner(path) as s:
        assert len(s.read(3)) == 3
        shutil.copytree(path, copy)
        path.rename(tmp_path / "old")
        copy.rename(path)
        with pytest.raises(sej.JournalNotFoundError, match="re-created"):
            list(s)


# --- a writer completes the last message while a reader judges it: it is never taken for damage


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
