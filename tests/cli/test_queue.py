"""sej queue: work queues from the command line, on a journal and on a text file."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import sej as library
from sej.cli import main
from sej.cli.queue import _renewed, _work
from sej.cli.shared.units import iso_time
from sej.durations import Seconds
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


def test_put_and_get(queue: Path) -> None:
    assert sej("queue", "get", queue).returncode == 4
    assert sej("queue", "put", queue, "one", "two").returncode == 0
    assert sej("queue", "put", queue, stdin=b"three\nfour\n").returncode == 0
    assert stats(queue)["ready"] == 4
    done = sej("queue", "get", queue)
    assert (done.returncode, done.stdout) == (0, b"one\n")
    assert sej("queue", "get", "--count", "2", queue).stdout == b"two\nthree\n"
    assert sej("queue", "get", queue, "--", *CAT).stdout == b"FOUR"
    assert sej("queue", "get", queue).returncode == 4
    assert stats(queue)["done"] == 4


def test_an_item_that_fails_too_often_is_dead_and_can_be_redriven(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    sej("queue", "put", "--key", "k", queue, stdin=b"\xff\x00\n")
    for command in ("dead", "redrive", "stats", "purge"):
        assert sej("queue", command, "--name", "typo", queue).returncode == 4
    assert not (queue / "ofs" / "typo.ofs").exists()
    assert sej("queue", "get", "--max-attempts", "1", queue, "--", *FAIL).returncode == 1
    assert stats(queue)["dead"] == 1
    done = sej("queue", "dead", "--format", "hex", queue)
    assert done.stdout.endswith(b"\t6b\tff00\n")
    assert b"exit code 3" in done.stderr
    assert sej("queue", "redrive", queue).stdout == b"1\n"
    assert stats(queue)["ready"] == 1
    assert sej("queue", "purge", queue, stdin=b"n\n").returncode == 1
    assert stats(queue)["ready"] == 1
    assert sej("queue", "purge", "--yes", queue).stdout == b"1\n"
    assert stats(queue)["ready"] == 0


def test_a_delayed_item_waits(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    sej("queue", "put", "--delay", "1h", queue, "later")
    sej("queue", "put", "--priority", "1", queue, "sooner")
    assert stats(queue) == {"ready": 1, "delayed": 1, "leased": 0, "done": 0, "dead": 0, "lost": 0}
    assert sej("queue", "get", queue).stdout == b"sooner\n"
    assert sej("queue", "get", queue).returncode == 4


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with library.open_queue("mails") as queue:
        queue.put(b"one")
    assert sej("queue", "get", "mails").stdout == b"one\n"


def test_what_fails_is_said_and_counts(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    sej("queue", "put", "--key", "k", queue, "one")
    done = sej("queue", "get", queue, "--", *FAIL)
    assert (done.returncode, b"attempt 1 of message 0" in done.stderr, b"exit code 3" in done.stderr) == (1, True, True)
    assert sej("queue", "get", queue, "--", "./no-such-program").returncode == 2
    done = sej("queue", "get", "--json", queue, "--", *CAT)
    assert done.returncode == 2 and b"--json is for printing" in done.stderr
    assert sej("queue", "get", queue, "--cuont", "3").returncode == 2
    row = json.loads(sej("queue", "get", "--json", "--timeout", "30s", queue).stdout)
    timestamp = row.pop("timestamp_ns")
    assert row == {"offset": 0, "time": iso_time(timestamp), "type": 0, "key": "k", "value": "one", "attempts": 2}


@pytest.mark.parametrize("backend", ["kestrel", "libkestrel"])
def test_another_backend_is_named(backend: str, tmp_path: Path) -> None:
    queue = tmp_path / "cars"
    by = ("--backend", backend)
    assert sej("queue", "get", *by, queue).returncode == 4
    assert sej("queue", "stats", *by, queue).returncode == 4
    assert list(tmp_path.iterdir()) == []
    assert sej("queue", "put", *by, queue, "one", "two").returncode == 0
    assert json.loads(sej("queue", "stats", "--json", *by, queue).stdout)["ready"] == 2
    assert sej("queue", "get", *by, queue).stdout == b"one\n"
    assert sej("queue", "get", "--max-attempts", "1", *by, queue, "--", *FAIL).returncode == 1
    dead = sej("queue", "dead", *by, queue)
    assert dead.returncode == 2 and b"QUEUE_dead" in dead.stderr
    assert sej("queue", "get", *by, f"{queue}_dead").stdout == b"two\n"


def test_a_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = sej("queue", "put", "--backend", "rabbit", tmp_path / "cars", "one")
    assert done.returncode == 2 and b"backend must be one of journal, kestrel" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_items_and_keys_may_be_any_bytes(tmp_path: Path) -> None:
    queue, key = tmp_path / "mails", os.fsdecode(b"\xff\xfe")
    assert sej("queue", "put", "--key", key, queue, stdin=b"a\rb\nc\r\n\nd\xff").returncode == 0
    rows = [json.loads(sej("queue", "get", "--json", queue).stdout) for _ in range(4)]
    assert [row.get("value", row.get("value_b64")) for row in rows] == ["a\rb", "c", "", "ZP8="]
    assert {row["key_b64"] for row in rows} == {"//4="}
    assert sej("append", "--key", key, queue, stdin=b"x\n").returncode == 0
    (message,) = library.Journal(queue).tail(1)
    assert message.key == b"\xff\xfe"


def test_an_item_may_expire_and_be_put_once(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    for _ in range(2):
        assert sej("queue", "put", "--dedupe-key", "17", queue, "one").returncode == 0
    assert sej("queue", "put", "--expire", "0s", queue, "late").returncode == 0
    done = sej("queue", "put", "--dedupe-key", "17", queue, "one", "two")
    assert done.returncode == 2 and b"--dedupe-key needs exactly one item, got 2" in done.stderr
    assert sej("queue", "get", "--count", "9", queue).stdout == b"one\n"
    assert sej("queue", "put", "--expire", "1h", tmp_path / "mails.tq", "one").returncode == 1


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


class Held(library.Item):
    """Counts how often it was extended, and is lost then; the first two times fail."""

    value = key = b""
    message = None
    attempts, ended = 1, False

    def __init__(self, lost_after: int) -> None:
        self.times, self.lost_after = 0, lost_after

    def extend(self, lease_s: Seconds) -> None:
        self.times += 1
        if self.times == self.lost_after:
            raise library.LeaseLostError("lost")
        if self.times <= 2:
            raise OSError("too many open files") if self.times == 1 else library.LockedError("locked")

    def done(self, result: object = None) -> None:
        """Not here."""

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Not here."""

    def fail(self, reason: str | BaseException = "") -> None:
        """Not here."""


def test_an_item_is_held_while_its_command_runs() -> None:
    lost, held = Held(4), Held(0)
    with _renewed(lost, 0.003), _renewed(held, 0.003):
        until(lambda: lost.times == 4 and held.times > 4)
    assert lost.times == 4


def test_an_item_may_be_held_for_longer_than_a_thread_can_wait(queue: Path) -> None:
    sej("queue", "put", queue, "one")
    done = sej("queue", "get", "--lease", "400000d", queue, "--", *CAT)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ONE", b"")


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


def test_an_option_of_the_program_before_the_separator(tmp_path: Path) -> None:
    done = sej("queue", "get", tmp_path / "q", "cat", "-A")
    assert (done.returncode, b"Put the program after --" in done.stderr) == (2, True)


def test_a_killed_program_is_reported_with_its_signal(tmp_path: Path) -> None:
    sej("queue", "put", tmp_path / "q", "one")
    done = sej("queue", "get", "--count", "1", tmp_path / "q", "--", "sh", "-c", "kill -TERM $$")
    assert (done.returncode, b"attempt 1 of message 0: sh: killed by SIGTERM" in done.stderr) == (1, True)


def test_a_question_without_an_answer(tmp_path: Path) -> None:
    sej("queue", "put", tmp_path / "q", "one")
    done = sej("queue", "purge", tmp_path / "q")
    assert (done.returncode, b"nothing was changed; use --yes" in done.stderr) == (1, True)
    done = sej("queue", "purge", tmp_path / "q", stdin=b"n\n")
    assert (done.returncode, b"sej: nothing was changed\n" in done.stderr) == (1, True)
    assert b"ready    1\n" in sej("queue", "stats", tmp_path / "q").stdout


def test_items_are_listed_and_single_ones_changed(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    sej("queue", "put", "--key", "k", queue, "one", "two")
    sej("queue", "put", "--delay", "1h", queue, "late")
    assert sej("queue", "get", "--max-attempts", "1", "--count", "1", queue, "--", *FAIL).returncode == 1
    lines = sej("queue", "ls", queue).stdout.decode().splitlines()
    assert [line.split("\t")[:3] for line in lines] == [["1", "ready", "0"], ["2", "delayed", "0"]]
    assert lines[0].endswith("\tk\ttwo")
    (row,) = map(json.loads, sej("queue", "ls", "--json", "--state", "dead", queue).stdout.splitlines())
    assert (row["offset"], row["value"], row["state"], row["attempts"]) == (0, "one", "dead", 1)
    assert "exit code 3" in row["reason"]
    assert sej("queue", "peek", "--count", "5", queue).stdout == b"two\n"
    assert b"state     delayed\n" in sej("queue", "show", queue, "2").stdout
    assert b"state     dead\n" in sej("queue", "show", queue, "0").stdout
    assert sej("queue", "requeue", queue, "0").stdout == b"3\n"
    assert sej("queue", "requeue", queue, "0").returncode == 4
    assert sej("queue", "cancel", queue, "1").returncode == 0
    assert sej("queue", "cancel", queue, "1").returncode == 4
    assert sej("queue", "show", queue, "1").returncode == 4
    assert sej("queue", "get", "--count", "9", queue).stdout == b"one\n"
    assert sej("queue", "peek", queue).returncode == 4
    assert sej("queue", "ls", "--name", "typo", queue).returncode == 4
    assert sej("queue", "peek", tmp_path / "mails.tq").returncode == 4


def test_a_reason_that_is_not_valid_unicode_is_printed(tmp_path: Path) -> None:
    with library.open_queue(tmp_path / "q") as queue:
        queue.put(b"one")
        item = queue.get(timeout=0)
        assert item is not None
        item.fail("no file x\udcff")  # as the name of a file that is not UTF-8 in a text of Python
    listed = sej("queue", "ls", "--state", "dead", "--json", tmp_path / "q")
    assert json.loads(listed.stdout)["reason"] == "no file x\\udcff"
    assert b"\nreason    no file x\\udcff\n" in sej("queue", "show", tmp_path / "q", "0").stdout


def test_headers_are_put_and_shown(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    assert sej("queue", "put", "--header", "user=17", "--header", "empty=", queue, "one").returncode == 0
    assert sej("queue", "put", queue, "two").returncode == 0
    lines = sej("queue", "show", queue, "0").stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("header")] == ["header    user=17", "header    empty="]
    rows = [json.loads(line) for line in sej("queue", "peek", "--json", "--count", "2", queue).stdout.splitlines()]
    assert [row["headers"] for row in rows] == [{"user": "17", "empty": ""}, {}]
    taken = [json.loads(line) for line in sej("queue", "get", "--json", "--count", "2", queue).stdout.splitlines()]
    assert [row.get("headers") for row in taken] == [{"user": "17", "empty": ""}, None]
    for wrong in ("user", "=17"):
        done = sej("queue", "put", "--header", wrong, queue, "one")
        assert done.returncode == 2 and b"--header must be NAME=TEXT" in done.stderr


def test_a_paused_queue_delivers_nothing(tmp_path: Path) -> None:
    queue = tmp_path / "mails"
    sej("queue", "put", queue, "one")
    assert sej("queue", "pause", queue).returncode == 0
    assert sej("queue", "get", queue).returncode == 4
    assert json.loads(sej("queue", "stats", "--json", queue).stdout)["paused"] is True
    assert sej("queue", "resume", queue).returncode == 0
    assert sej("queue", "get", queue).stdout == b"one\n"


def test_wait_needs_a_time(tmp_path: Path) -> None:
    done = sej("queue", "get", "--wait", tmp_path / "later")
    assert (done.returncode, b"--wait needs --follow, or --timeout" in done.stderr) == (2, True)
    assert sej("queue", "get", "--wait", "--timeout", "0.01s", tmp_path / "later").returncode == 4
