"""sej queue: work queues from the command line, on a journal and on a text file."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import sej as library
from sej.checks import Seconds
from sej.cli import main
from sej.cli.queue import _renewed, _work
from tests.cli.command import sej, start
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import until

FAIL = [sys.executable, "-S", "-c", "import sys; sys.exit(3)"]
CAT = [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]


@pytest.fixture(params=["mails", "mails.tq"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def stats(queue: Path) -> dict[str, int]:
    row: dict[str, int] = json.loads(sej("queue", "stats", "--json", queue).stdout)
    return row


def test_sigterm_ends_after_the_item_in_hand(queue: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    sej("queue", "put", queue, "one", "two")
    program = "import sys; print('begun', flush=True); sys.exit(len(open(sys.argv[1]).read()))"
    with start("queue", "get", "--follow", queue, "--", sys.executable, "-S", "-c", program, gate) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        gate.write_bytes(b"")  # returns when the program has opened it
        assert process.wait(60) == 0
    found = stats(queue)
    assert (found["ready"], found["leased"], found["done"]) == (1, 0, 1)


def test_sigterm_ends_a_wait_for_an_item(queue: Path) -> None:
    sej("queue", "put", queue, "one")
    with start("queue", "get", "--follow", queue, "--", *CAT) as process:
        assert process.stdout.read(3) == b"ONE"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert stats(queue)["done"] == 1


def test_sigterm_while_an_item_is_taken_costs_it_no_attempt(queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sej("queue", "put", queue, "one")
    get = library.WorkQueue.get

    def get_late(self: library.WorkQueue, timeout: float | None = None) -> library.Item | None:
        item = get(self, timeout)
        signal.raise_signal(signal.SIGTERM)
        return item

    monkeypatch.setattr(library.WorkQueue, "get", get_late)
    assert main(["queue", "get", "--follow", "--max-attempts", "1", str(queue), "--", *CAT]) == 0
    monkeypatch.undo()
    with library.open_queue(queue, "queue", max_attempts=1) as opened:
        item = opened.get(timeout=0)
        assert item is not None and item.attempts == 1


def test_a_wait_ends_with_its_reader(queue: Path) -> None:
    sej("queue", "put", queue, "one")
    with start("queue", "get", "--follow", "--count", "5", queue) as process:
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        assert process.wait(60) == 0


class Held:
    """Counts how often it was extended, and is lost then; the first two times fail."""

    def __init__(self, lost_after: int) -> None:
        self.times, self.lost_after = 0, lost_after

    def extend(self, lease_s: Seconds) -> None:
        self.times += 1
        if self.times == self.lost_after:
            raise library.LeaseLostError("lost")
        if self.times <= 2:
            raise OSError("too many open files") if self.times == 1 else library.LockedError("locked")


def test_an_item_is_held_while_its_command_runs() -> None:
    lost: Any = Held(4)
    held: Any = Held(0)
    with _renewed(lost, 0.003), _renewed(held, 0.003):
        until(lambda: lost.times == 4 and held.times > 4)
    assert lost.times == 4


def test_what_was_lost_all_the_same_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock, lease_s=10) as q, opened(tmp_path, clock) as other:
        for command in ([sys.executable, "-S", "-c", ""], FAIL):
            q.put(b"one")
            item = q.get(timeout=0)
            assert item is not None
            clock.move(11)
            again = other.get(timeout=0)
            assert again is not None
            assert not _work(tmp_path, item, tuple(command), None)
            assert "is no longer held" in capfd.readouterr().err
            again.done()
