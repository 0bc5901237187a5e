"""sej worker and sej shard work: a function or a program for each item, in threads and processes."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shard
from tests.cli.command import sej, start
from tests.forking import Piped
from tests.sej.hooks import until

TASKS = """import os, sys

def write(item):
    with open("seen", "ab") as file:
        file.write(item.value + b" %d\\n" % os.getpid())

def fail(item):
    raise ValueError("no")

def hang(item):
    import threading
    if item.attempts == 1:
        threading.Event().wait()

def send(item):
    open(item.value["to"], "w").close()

async def later(item):
    pass

def forgets():
    pass

NUMBER = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stats() -> dict[str, int]:
    row: dict[str, int] = json.loads(sej("queue", "stats", "--json", "mails").stdout)
    return row


@contextmanager
def running(*words: str) -> Iterator[Piped]:
    """A worker that is ended with the test, also if the test fails."""
    with start(*words) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def test_it_works_the_queue_off(folder: Path) -> None:
    sej("queue", "put", "mails", "a", "b", "c")
    done = sej("worker", "mails", "my_tasks:write", "--threads", "2", "--until-empty")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(line.split()[0] for line in (folder / "seen").read_bytes().splitlines()) == [b"a", b"b", b"c"]
    assert stats()["done"] == 3


def test_a_failure_is_one_line_with_its_traceback_and_a_dead_letter_in_the_end(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    done = sej("worker", "mails", "my_tasks:fail", "--max-attempts", "1", "--until-empty")
    assert done.returncode == 0
    line, *trace = done.stderr.decode().splitlines()
    assert line.startswith("sej: ") and line.endswith("attempt 1 of item 0 failed: ValueError: no")
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: no")
    assert sej("queue", "show", "mails", "0").stdout.decode().splitlines()[-len(trace) :] == trace
    assert sej("queue", "dead", "mails").stderr.decode().splitlines()[1:] == trace
    assert stats()["dead"] == 1


@pytest.mark.parametrize(
    "target",
    [
        *("my_tasks", ".my_tasks:write", "my_tasks.py:write", "my_tasks:none", "no_tasks:write", "my_tasks:NUMBER"),
        *("my_tasks:later", "my_tasks:forgets", "not_python:write"),
    ],
)
def test_a_wrong_function_is_wrong_usage(folder: Path, target: str) -> None:
    (folder / "not_python.py").write_text("not a program\n")
    sej("queue", "put", "mails", "a")
    done = sej("worker", "mails", target, "--processes", "2")
    assert done.returncode == 2 and b"Usage" in done.stderr
    assert stats()["ready"] == 1


@pytest.mark.parametrize("words", [(), ("--processes", "2")])
def test_it_waits_for_a_journal_and_decodes_its_values(folder: Path, words: tuple[str, ...]) -> None:
    with running("worker", "mails", "my_tasks:send", "--wait", "--serializer", "json", *words):
        sej("queue", "put", "mails", '{"to": "alice"}')
        until(lambda: (folder / "alice").exists())


def test_a_worker_that_fails_is_started_again(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    (folder / "my_tasks.py").write_text(TASKS + "import os\nif os.environ.get('SEJ_SUPERVISED'): os._exit(3)\n")
    with running("worker", "mails", "my_tasks:write", "--time-limit", "1h") as process:
        for _ in range(3):
            line = process.stderr.readline()
            assert line == b"sej: a worker process ended with exit code 3; starting another one\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (3, 0)  # 0: the next one had been started, and has not failed yet
    assert stats()["ready"] == 1


def test_sigterm_ends_all_processes_and_a_killed_one_is_replaced(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    seen = folder / "seen"
    with running("worker", "mails", "my_tasks:write", "--processes", "2") as process:
        until(lambda: seen.exists() and bool(seen.read_bytes()))
        os.kill(int(seen.read_bytes().split()[1]), signal.SIGKILL)
        assert b"ended with exit code -9; starting another one" in process.stderr.readline()
        sej("queue", "put", "mails", "b")
        # Another worker writes the first one again, if it was killed before it was done.
        until(lambda: {line.split()[0] for line in seen.read_bytes().splitlines()} == {b"a", b"b"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert stats()["done"] == 2


def test_a_process_whose_item_takes_too_long_is_replaced(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    with running("worker", "mails", "my_tasks:hang", "--time-limit", "0.2s") as process:
        assert b"reached its time limit of 0.2 s" in process.stderr.readline()
        assert b"exit code 75; starting another one" in process.stderr.readline()
        until(lambda: stats()["done"] == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.timeout(60)
def test_workers_end_though_their_supervisor_is_killed(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    seen = folder / "seen"
    with running("worker", "mails", "my_tasks:write", "--processes", "2") as process:
        until(lambda: seen.exists() and bool(seen.read_bytes()))
        process.kill()
        assert process.stderr.read() == b""  # its end: no worker has it open


def test_reload_starts_again_after_a_change(folder: Path) -> None:
    sej("queue", "put", "mails", "a")
    seen = folder / "seen"
    with running("worker", "mails", "my_tasks:write", "--reload") as process:
        until(lambda: seen.exists() and bool(seen.read_bytes()))
        (folder / "my_tasks.py").write_text(TASKS.replace("item.value", "item.value.upper()"))
        assert b"a file has changed" in process.stderr.readline()
        sej("queue", "put", "mails", "b")
        until(lambda: b"B " in seen.read_bytes())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_shard_worker_starts_before_its_tree_and_ends_by_sigterm(tmp_path: Path) -> None:
    with start("shard", "work", tmp_path / "orders.2", "mailer", "--", "cat") as running:
        assert b"waiting for the first" in running.stderr.readline()
        with shard.Writer(shard.Path(tmp_path, "orders", 2)) as writer:
            writer.append(b"one", b"key")
        assert running.stdout.read(3) == b"one"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
