"""Four workers and a user with an editor on one file."""

import ast
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.textqueue.claiming import ENV, lined

WORKER = Path(__file__).with_name("worker.py")
MUTEX = "mutex=" + " " * 30


class Person:
    """Edits the file as editors do: reads it, changes it, saves it. It takes no lock.

    Each message has a number, so that no two are equal. The user never deletes a message, so all must be handled.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.written = 0
        self.comments = 0

    def edit(self) -> bool:
        before = self.path.read_bytes()
        blocks = re.findall(rb"[^ \\][^\n]*\n(?:[ \\][^\n]*\n)*|\n", before)
        assert b"".join(blocks) == before
        at = self.random.randrange(len(blocks) + 1)
        match self.random.randrange(4):
            case 0:
                self.comments += 1
                blocks.insert(at, b"# note %d\n and more\n" % self.comments)
            case 1:
                self.written += 1
                mutex = b"\\%s\n" % MUTEX.encode() if self.random.random() < 0.5 else b""
                blocks.insert(at, b"-person %d\n of two lines\n%s" % (self.written, mutex))
            case 2:
                blocks[at:at] = [b"\n"]
            case _:
                if len(blocks) > 2:
                    blocks.append(blocks.pop(self.random.randrange(len(blocks))))
        after = b"".join(blocks)
        if self.random.random() < 0.5:
            new = self.path.with_name(".saved")
            new.write_bytes(after)
            new.replace(self.path)
        else:
            self.path.write_bytes(after)
        return True


def content(data: bytes) -> Counter[bytes]:
    """Return the lines without the parts that the library may edit: control bytes and mutexes."""
    lines = re.sub(rb"(?m)^\\mutex=.*$", b"\\\\mutex", data).split(b"\n")
    return Counter(re.sub(rb"^[-=!]", b"*", line) for line in lines if line)


def concurrent(notes: str) -> list[str]:
    """Return the messages that two workers had at the same time, from their common log."""
    busy: dict[str, str] = {}
    found = []
    for line in notes.splitlines():
        what, who, text = line.split(" ", 2)
        if what == "+":
            if text in busy:
                found.append(f"{text}: {busy[text]} and {who}")
            busy[text] = who
        elif what == "-" and busy.pop(text, None) != who:
            found.append(f"{text}: {who} ended what it had not begun")
    return found + [f"{text}: {who} never ended" for text, who in busy.items()]


def run(path: Path, seconds: float, how: str, *, workers: int, act: Callable[[], bool]) -> Counter[str]:
    """Run workers and an actor on a file until the time is over or the actor ends; return counts by message."""
    notes, stop = path.with_name("notes"), path.with_name("stop")
    notes.touch()
    command = [sys.executable, str(WORKER), how, str(path), str(notes), str(stop)]
    started = [subprocess.Popen(command, env=ENV) for _ in range(workers)]
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and act():
            pass
    finally:
        stop.touch()
        for worker in started:
            assert worker.wait(timeout=seconds + 200) == 0
    text = notes.read_text()
    bad = [line for line in text.splitlines() if line.startswith("!")]
    assert not bad, bad
    assert not concurrent(text)
    return Counter(ast.literal_eval(line.split(" ", 2)[2]).decode() for line in text.splitlines() if line[0] == "-")


def texts(person: Person) -> set[str]:
    return {f"person {n}\nof two lines" for n in range(1, person.written + 1)}


def nothing_else_changed(data: bytes, person: Person) -> None:
    there = content(data)
    assert there[b"# a file that people edit"] == 1
    for n in range(1, person.written + 1):
        assert there[b"*person %d" % n] == 1
    for n in range(1, person.comments + 1):
        assert there[b"# note %d" % n] == 1
    assert there[b" of two lines"] == person.written
    assert there[b" and more"] == person.comments
    for number in re.findall(rb"(?m)^.seq=(\d{12})$", data):
        there -= content(lined(b"", int(number)))
    assert len(there) == 3 + person.written + person.comments + (1 if b"\\mutex" in there else 0)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_workers_and_a_user_share_one_file(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"# a file that people edit\n")
    person = Person(path, seed=1)
    handled = run(path, torture_s, "claim", workers=4, act=person.edit)
    assert handled == Counter(texts(person))
    data = path.read_bytes()
    assert not re.search(rb"(?m)^-", data)
    nothing_else_changed(data, person)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_marks_in_a_row_and_a_user_share_one_file(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "jobs.tq"
    before = b"".join(b"-program %d\n" % n for n in range(300))
    # With the line of a first claim: without it, a save of an old buffer would take marks back.
    path.write_bytes(lined(b"# a file that people edit\n" + before))
    person = Person(path, seed=2)
    handled = run(path, torture_s, "mark", workers=1, act=person.edit)
    assert handled == Counter({*texts(person), *(f"program {n}" for n in range(300))})
    data = path.read_bytes()
    for n in range(300):
        assert (b"\n=program %d\n", b"\n!program %d\n")[n % 2] % n in data
    for n in range(1, person.written + 1):
        assert (b"=person %d\n", b"!person %d\n")[n % 2] % n in data
    nothing_else_changed(re.sub(rb"(?m)^[=!]program .*\n", b"", data), person)
