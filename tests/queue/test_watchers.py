"""Of many processes that wait for an item, three watch the queue: an item wakes these, and none is missed."""

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import sej
from sej.queue import core
from sej.system.watch import Watch, wait_any
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


def waits(one: core.QueueCore, left_s: float = 0.0) -> bool:
    return one.wait(left_s, None, shared=True)


@pytest.fixture
def waiting(tmp_path: Path, events_only: None) -> Iterator[list[core.QueueCore]]:
    """The cores of six open queues that wait, in the order in which they began."""
    with contextlib.ExitStack() as stack:
        cores = [stack.enter_context(opened(tmp_path, FakeClock()))._core for _ in range(6)]
        for one in cores:
            assert waits(one), "what begins to watch looks first"
        for one in cores:
            while waits(one, 0.05):  # the files that were made
                pass
        yield cores


def watching(cores: list[core.QueueCore]) -> list[int]:
    return [number for number, one in enumerate(cores) if not one._follows]


def test_three_watch_and_two_of_them_are_enough(waiting: list[core.QueueCore]) -> None:
    assert watching(waiting) == [0, 1, 2]
    waiting[1].stop_waiting()
    assert not wait_any(waiting[5]._watched, 0.05)
    assert waits(waiting[5]), "it begins to watch"
    assert watching(waiting[2:]) == [0, 3]


def test_others_are_called_if_one_is_left(waiting: list[core.QueueCore]) -> None:
    waiting[0].stop_waiting()
    waiting[2].stop_waiting()
    assert waits(waiting[4], LIMIT_S)
    assert watching([waiting[1], waiting[4]]) == [0, 1]


def test_others_are_called_if_one_closes(waiting: list[core.QueueCore]) -> None:
    waiting[0].close()
    waiting[1].close()
    assert waits(waiting[3], LIMIT_S)
    assert watching(waiting[2:]) == [0, 1]


def test_the_threads_of_a_queue_begin_to_watch_together(waiting: list[core.QueueCore]) -> None:
    """One of them takes the event, and may leave with an item."""
    followed = list(waiting[4]._watched)
    waiting[0].stop_waiting()
    waiting[2].stop_waiting()
    assert waits(waiting[4], LIMIT_S)
    assert wait_any(followed, LIMIT_S), "the other one is not woken"


def test_a_process_that_applies_a_limit_always_watches(tmp_path: Path, waiting: list[core.QueueCore]) -> None:
    with opened(tmp_path, FakeClock(), rate="1/h") as q:
        assert q._wait(0.0)
        assert not q._core._follows


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_process_that_cannot_open_the_files_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_path: str, _mode: str) -> None:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path, FakeClock()) as q:
        with monkeypatch.context() as patch:
            patch.setattr(q._core.watchers, "_disk", SimpleNamespace(open=refuse))
            q._wait(0.0)
            assert not q._core._follows
            assert q._core.watchers._mine is None
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


def test_a_wait_that_is_interrupted_lets_others_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, FakeClock()) as q:
        q._wait(0.0)
        monkeypatch.setattr(core, "wait_any", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            q.get()
        assert q._core.watchers._mine is None


class Waiters:
    """Processes that wait for items."""

    def __init__(self, path: Path, output: Path, how: str) -> None:
        self._path, self._output, self._how = path, output, how
        self.alive: dict[Path, Program] = {}
        self._started = 0

    def fill(self, count: int) -> None:
        """Start processes until so many wait."""
        for _ in range(count - len(self.alive)):
            output = self._output / f"waiter{self._started}"
            self._started += 1
            self.alive[output] = fork(["tests.queue.waiter", str(self._path), self._how], output)
        while not all(output.read_bytes() for output in self.alive):  # one that starts would look for items
            self.pause(0.01)

    def pause(self, seconds: float) -> None:
        for one in self.alive.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(seconds / len(self.alive))
                raise AssertionError("a worker ended by itself")

    def watchers(self) -> list[Path]:
        """Return those that watch the queue, as the kernel knows them."""
        files = {file.stat().st_ino for file in (self._path / "ofs" / "queue.slots").glob("watch-*.lck")}
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
        those = {int(lock[4]) for lock in locks if int(lock[5].split(":")[2]) in files}
        return [output for output, one in self.alive.items() if one.pid in those]

    def kill(self, victims: list[Path]) -> None:
        for victim in victims:
            self.alive[victim].send_signal(signal.SIGKILL)
        for victim in victims:
            assert self.alive.pop(victim).wait(LIMIT_S) == -signal.SIGKILL


def test_no_item_is_missed_without_a_safety_net(tmp_path: Path, torture_s: float) -> None:
    dice, path = seeded_random(), tmp_path / "q"
    waiters = Waiters(path, tmp_path, "events")
    with sej.open_queue(path) as q, sej.SharedWriter(path) as w:
        waiters.fill(7)
        for number in range(50 if torture_s < 1 else int(torture_s * 20)):
            for _ in range(dice.choice([1, 1, 2, 3, 7])):
                w.append(b"x")
                waiters.pause(dice.choice([0.0, 0.0, dice.uniform(0, 0.002)]))
            assert q.wait_empty(LIMIT_S), f"no worker got the items of round {number}"
        waiters.kill(list(waiters.alive))


def test_an_item_waits_for_a_moment_if_those_that_watch_are_killed(tmp_path: Path, torture_s: float) -> None:
    dice, path = seeded_random(), tmp_path / "q"
    waiters = Waiters(path, tmp_path, "safely")
    with sej.open_queue(path) as q, sej.SharedWriter(path) as w:
        for number in range(8 if torture_s < 1 else int(torture_s)):
            waiters.fill(7)
            waiters.pause(0.1)
            victims = dice.choice([dice.sample(list(waiters.alive), 2), *3 * [waiters.watchers()]])
            first = dice.random() < 0.5
            if first:
                w.append(b"x")
            waiters.kill(victims)
            if not first:
                w.append(b"x")
            assert q.wait_empty(LIMIT_S), f"no worker got the item of round {number}"
        waiters.kill(list(waiters.alive))
