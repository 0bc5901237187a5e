"""Scanners that wait: time-outs, other threads and processes, segments that come and go under them."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from sej import CorruptionError, OffsetTooSmallError
from sej.system.watch import Watch
from tests.sej.hooks import PATIENCE_S, Worker, output, script, until
from tests.sej.support import STAMP, by_hand, encoded, packed, sample, segment, values, write

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


FORKED = """
import os, sys, sej
path = sys.argv[1]
w = sej.Writer(path)
with sej.Scanner(path, timeout=0.01) as s:
    assert s.read() == []  # this process watches
    child = os.fork()
    if child == 0:
        with sej.Scanner(path, timeout=30) as own:
            os._exit([message.value for message in own.read()] != [b"v"])
    w.append(b"v")
    assert s.read(timeout=30)[0].value == b"v"
print(os.waitpid(child, 0)[1])
w.close()
"""


def test_parent_and_forked_child_follow_side_by_side(tmp_path: Path) -> None:
    assert output(FORKED, tmp_path) == "0"


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
