"""Of many processes that wait for an item, three watch the queue: an item wakes these, and none is missed."""

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import sej
from sej.queue import core
from sej.system.watch import Watch
from tests.crash.harness import fork, seeded_random
from tests.forking import Program
from tests.queue.support import FakeClock, opened
from tests.queue.waiter import FOR_EVER_S

LIMIT_S = 60
"""Far more than a wake-up takes on a busy machine."""


@pytest.fixture
def events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but an event wakes what waits."""
    assert Watch.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Watch.__init__.__kwdefaults__, "safety_s", FOR_EVER_S)


@pytest.fixture
def waiting(tmp_path: Path, events_only: None) -> Iterator[list[core.QueueCore]]:
    """The cores of six open queues that wait, in the order in which they began."""
    with contextlib.ExitStack() as stack:
        cores = [stack.enter_context(opened(tmp_path, FakeClock()))._core for _ in range(6)]
        for one in cores:
            assert one.wait(0.0, shared=True) == (one in cores[:3])  # what begins to watch looks first
        for one in cores:
            bell = one.watchers.join()
            while bell is not None and bell.wait(0.05):  # the files that were made
                pass
        yield cores


def watching(cores: list[core.QueueCore]) -> list[int]:
    return [number for number, one in enumerate(cores) if one.watchers.join() is None]


def rings(one: core.QueueCore, timeout: float = LIMIT_S) -> bool:
    bell = one.watchers._bell
    assert bell is not None
    return bell.wait(timeout)


def test_three_watch_and_two_of_them_are_enough(waiting: list[core.QueueCore]) -> None:
    assert watching(waiting) == [0, 1, 2]
    waiting[1].stop_waiting()
    assert not rings(waiting[5], 0.05)
    assert waiting[5].wait(0.0, shared=True)
    assert watching(waiting[2:]) == [0, 3]


def test_others_are_called_if_one_is_left(waiting: list[core.QueueCore]) -> None:
    waiting[0].stop_waiting()
    waiting[2].stop_waiting()
    assert rings(waiting[4])
    assert waiting[4].wait(0.0, shared=True)
    assert watching([waiting[1], waiting[4]]) == [0, 1]


def test_others_are_called_if_one_closes(waiting: list[core.QueueCore]) -> None:
    waiting[0].close()
    assert rings(waiting[3])
    assert watching(waiting[1:]) == [0, 1, 2]


def test_a_process_that_applies_a_limit_always_watches(tmp_path: Path, waiting: list[core.QueueCore]) -> None:
    with opened(tmp_path, FakeClock(), rate="1/h") as q:
        assert q._wait(0.0)
        assert q._core.watchers._bell is None
        assert len(q._core._watched) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_process_that_cannot_open_the_files_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_path: str, _mode: str) -> None:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path, FakeClock()) as q:
        with monkeypatch.context() as patch:
            patch.setattr(q._core.watchers, "_disk", SimpleNamespace(open=refuse))
            for _ in range(2):
                q._wait(0.0)
                assert len(q._core._watched) == 2
        q._wait(0.0)
        assert q._core.watchers._mine is not None


@pytest.mark.usefixtures("events_only")
def test_every_thread_gets_an_item(tmp_path: Path) -> None:
    got: list[bytes] = []
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(sej.open_queue(tmp_path)) for _ in range(4)]

        def work(q: sej.WorkQueue) -> None:
            while (item := q.get()) is not None and item.value != b"end":
                got.append(item.value)
                item.done()
            if item is not None:
                item.done()

        threads = [threading.Thread(target=work, args=(queues[number % 4],), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        values = [b"%d" % number for number in range(40)]
        with sej.SharedWriter(tmp_path) as w:
            for value in values:
                w.append(value)
                if value.endswith(b"9"):
                    assert queues[0].wait_empty(LIMIT_S)
            w.append_many([b"end"] * len(threads))
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    assert sorted(got) == sorted(values)


def watchers(path: Path) -> set[int]:
    """Return the processes that watch the queue, as the kernel knows them."""
    files = {file.stat().st_ino for file in (path / "ofs" / "queue.slots").glob("watch-*.lck")}
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    return {int(lock[4]) for lock in locks if int(lock[5].split(":")[2]) in files}


def test_no_item_is_missed_though_processes_that_watch_are_killed(tmp_path: Path, torture_s: float) -> None:
    dice, path = seeded_random(), tmp_path / "q"
    alive: dict[Path, Program] = {}

    def pause(seconds: float) -> None:
        for one in alive.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(seconds / len(alive))
                raise AssertionError("a worker ended by itself")

    with sej.open_queue(path) as q, sej.SharedWriter(path) as w:
        end, rounds = time.monotonic() + torture_s, 0
        while rounds < 12 or time.monotonic() < end:
            rounds += 1
            for number in range(7 - len(alive)):
                output = tmp_path / f"{rounds}-{number}"
                alive[output] = fork(["tests.queue.waiter", str(path)], output)
            while not all(output.read_bytes() for output in alive):  # one that starts would look for items
                pause(0.01)
            pause(0.1)
            first, pause_s = dice.random() < 0.5, dice.choice([0.0, dice.uniform(0, 0.002), dice.uniform(0, 0.3)])
            if first:
                w.append(b"x")
            pause(pause_s)
            some, those = dice.sample(list(alive), dice.choice([0, 1, 2])), watchers(path)
            victims = dice.choice([some, *2 * [[output for output in alive if alive[output].pid in those]]])
            for victim in victims:
                alive[victim].send_signal(signal.SIGKILL)
            if not first:
                w.append(b"x")
            assert q.wait_empty(LIMIT_S), f"no worker got the item of round {rounds}"
            for victim in victims:
                assert alive.pop(victim).wait(LIMIT_S) == -signal.SIGKILL
        for one in alive.values():
            one.send_signal(signal.SIGKILL)
            one.wait(LIMIT_S)
