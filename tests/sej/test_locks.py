"""Locks: one writer whatever the original does to the file, the holder in the error, death frees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import ClosedError, LockedError, LockLostError
from sej.queue.work import _until_signal
from sej.system.disk import OS, OsFile
from sej.system.locks import Lock, host_name, is_running, process_start, take_file_lease
from sej.system.process import stop_on_signals, wait_for_signal
from tests.sej.hooks import PATIENCE_S, ROOT, Worker, WrappingDisk, script, until

pytestmark = pytest.mark.either_codec

HOLDER = """
import sys, sej
w = sej.Writer(sys.argv[1])
w.append(b"held")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_with_the_name_of_the_holder(tmp_path: Path) -> None:
    holder = script(HOLDER, tmp_path)
    assert holder.stdout.readline() == "held\n"
    start = time.monotonic()
    with pytest.raises(LockedError, match="writer lock is held by") as raised:
        sej.Writer(tmp_path)
    assert time.monotonic() - start < PATIENCE_S
    assert raised.value.path == str(tmp_path / "jnl.lck")
    assert raised.value.holder is not None
    for part in (f"pid={holder.pid}", f"host={host_name()}", "start=20"):
        assert part in raised.value.holder and part in str(raised.value)
    holder.communicate()
    sej.Writer(tmp_path).close()


def test_waiting_for_the_lock_ends_when_it_is_free_or_time_is_up(tmp_path: Path) -> None:
    w = sej.Writer(tmp_path)
    with pytest.raises(LockedError):
        sej.Writer(tmp_path, lock_timeout=0.02)
    waiting = Worker(lambda: sej.Writer(tmp_path, lock_timeout=None))
    w.close()
    second = waiting.result()
    assert isinstance(second, sej.Writer)
    second.close()


def test_the_file_is_never_removed_and_only_its_holder_truncates_it(tmp_path: Path) -> None:
    path = tmp_path / "jnl.lck"
    with sej.Writer(tmp_path):
        inode, text = path.stat().st_ino, path.read_bytes()
        assert text.startswith(b"pid=%d host=" % os.getpid())
        with pytest.raises(LockedError):
            sej.Writer(tmp_path)
        assert path.read_bytes() == text
    assert path.stat().st_ino == inode
    sej.Writer(tmp_path).close()
    assert path.stat().st_ino == inode


def test_a_holder_that_signs_nothing_is_another_process(tmp_path: Path) -> None:
    """The original empties the file: the lock counts all the same."""
    path = tmp_path / "jnl.lck"
    with open(path, "wb") as file:
        assert OsFile(os.dup(file.fileno()), str(path)).lock(exclusive=True)
    original = OS.open(path, "append")
    assert original.lock()
    with pytest.raises(LockedError, match="another process") as raised:
        sej.Writer(tmp_path)
    assert raised.value.holder is None
    original.close()
    sej.Writer(tmp_path).close()


class _UnlinkedWhenLocked(OsFile):
    disk: Any

    def lock(self, *, exclusive: bool = True, wait: bool = False, held: bool = False) -> bool:
        taken = super().lock(exclusive=exclusive, wait=wait, held=held)
        if taken and self.path.endswith("jnl.lck") and not self.disk.unlinked:
            os.unlink(self.path)
            self.disk.unlinked = True
        return taken


class UnlinkingDisk(WrappingDisk):
    """An original writer goes while we come: it unlocked and closed already, and unlinks after we locked."""

    kind = _UnlinkedWhenLocked
    unlinked = False


def test_a_lock_on_a_file_that_loses_its_name_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "jnl.lck").write_bytes(b"")
    with sej.Writer(tmp_path, disk=UnlinkingDisk()) as w:
        with pytest.raises(LockedError):
            sej.Writer(tmp_path)
        w.append(b"one writer")
        w.sync()


# --- the lock itself


def test_shared_locks_keep_exclusive_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Lock(path, exclusive=False), Lock(path, exclusive=False), pytest.raises(LockedError):
        Lock(path).acquire()
    with Lock(path) as lock:
        assert lock.held
        with pytest.raises(LockedError):
            Lock(path, exclusive=False).acquire()
        with pytest.raises(LockedError, match="this object"):
            lock.acquire()


def test_check_tells_when_the_lock_is_worth_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l"
    lock = Lock(path, what="the thing")
    with pytest.raises(ClosedError):
        lock.check()
    with lock:
        lock.check()
        os.replace(path, tmp_path / "moved")
        with pytest.raises(LockLostError, match="the thing"):
            lock.check()
        path.write_bytes(b"another file of that name")
        with pytest.raises(LockLostError):
            lock.check()
    lock.release()
    assert not lock.held and path.read_bytes() == b"another file of that name"


def test_a_process_is_known_by_pid_and_start() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", ""], cwd=ROOT)
    until(lambda: process_start(child.pid) is None)  # a zombie holds nothing
    child.wait()
    assert process_start(child.pid) is None


@pytest.mark.parametrize("hidden", [PermissionError, FileNotFoundError])
def test_a_process_that_the_system_hides_counts_as_running(
    monkeypatch: pytest.MonkeyPatch, hidden: type[OSError]
) -> None:
    """As with ``/proc`` mounted with hidepid=1 and hidepid=2, for the processes of other users."""
    ended = subprocess.Popen([sys.executable, "-c", ""], cwd=ROOT)
    ended.wait()
    start = process_start(os.getppid())
    assert start is not None
    assert is_running(os.getppid(), start)

    def hide(*_: object) -> None:
        raise hidden

    monkeypatch.setattr("builtins.open", hide)
    assert process_start(os.getppid()) == 0
    assert is_running(os.getppid(), start)
    assert not is_running(ended.pid, start)
    assert not any(is_running(pid, start) for pid in (0, 2**31, 10**20 - 1))
    kill = os.kill

    def refuse(pid: int, signal: int) -> None:
        kill(pid, signal)
        raise PermissionError

    monkeypatch.setattr("os.kill", refuse)
    assert is_running(os.getppid(), start)
    assert not is_running(ended.pid, start)


def test_a_lease_is_had_alone_and_for_as_long_as_the_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "leased"
    path.write_bytes(b"")
    with open(path, "rb"):
        file = OS.open(path, "edit")
        assert not take_file_lease(file), "another process has it open"
        file.close()
    file = OS.open(path, "edit")
    assert take_file_lease(file)
    other = script("import sys; open(sys.argv[1]).close(); print('opened')", path)
    file.close()
    assert other.communicate(timeout=30)[0] == "opened\n"


def test_two_writers_never_append_whatever_becomes_of_the_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sej.journal.writer_lock._DYING_S", 0.0)
    monkeypatch.setattr("sej.writing.appender._LOOK_S", 3600.0)  # one appends before it looks at its lock again
    one = sej.Writer(tmp_path)
    one.append(b"a")
    (tmp_path / "jnl.lck").unlink()
    with pytest.raises(LockedError, match="removed while"):
        sej.Writer(tmp_path)
    with pytest.raises(LockedError):
        sej.Journal(tmp_path).repair()
    one.append(b"b")
    with pytest.raises(LockLostError):
        one.close()
    two = sej.Writer(tmp_path, segment_bytes=60)
    for value in (b"c", b"d", b"e"):
        two.append(value)
    (tmp_path / "jnl.lck").unlink()
    with pytest.raises(LockedError):
        sej.Writer(tmp_path)
    with pytest.raises(LockLostError):
        two.close()
    with sej.Scanner(tmp_path) as s:
        assert [message.value for message in s] == [b"a", b"b", b"c", b"d", b"e"]


# --- programs that a signal stops at any moment, also while the main thread holds the lock of the event that it sets


NUMBERS = [signal.SIGTERM, signal.SIGINT]


@contextmanager
def by_command(_: threading.Event) -> Iterator[threading.Event]:
    before = [signal.getsignal(number) for number in NUMBERS]
    try:
        yield stop_on_signals()
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def by_work(stop: threading.Event) -> Iterator[threading.Event]:
    with _until_signal(stop):
        yield stop


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("waiting", [by_command, by_work])
def test_a_signal_while_the_main_thread_is_about_to_wait(
    waiting: Callable[[threading.Event], AbstractContextManager[threading.Event]], number: signal.Signals
) -> None:
    with waiting(threading.Event()) as stop:
        with getattr(stop, "_cond"):  # noqa: B009 - as in wait(); private
            signal.raise_signal(number)
        assert stop.wait(PATIENCE_S)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_gets(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP: the main thread waits, and nothing wakes it to run the handler."""
    monkeypatch.setattr("sej.system.process._LOOK_S", 0.01)

    def get() -> None:
        until(lambda: bool(getattr(stop, "_cond")._waiters))  # noqa: B009 - the main thread waits; private
        signal.pthread_kill(threading.get_ident(), number)

    with by_command(threading.Event()) as stop:
        worker = Worker(get)
        wait_for_signal(stop)
        worker.result()
    assert stop.is_set()
