"""Four workers and a person with an editor on one file."""

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from textqueue import TextQueue

ROOT = Path(__file__).parent.parent.parent
WORKER = Path(__file__).with_name("worker.py")
MUTEX = "mutex=" + " " * 30


class Person:
    """Edits the file as editors do: reads all of it, changes something, saves all of it. Knows no lock.

    Messages carry a number, so that nobody can take one for another. The person never deletes a message, so that all of
    them must be handled.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.written = 0
        self.comments = 0

    def edit(self) -> None:
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


def content(data: bytes) -> Counter[bytes]:
    """Lines without what the library may edit: the control byte of a message and its mutex."""
    lines = re.sub(rb"(?m)^\\mutex=.*$", b"\\\\mutex", data).split(b"\n")
    return Counter(re.sub(rb"^[-=!]", b"*", line) for line in lines if line)


def run(path: Path, seconds: float, *, person: Person | None, messages: int) -> None:
    notes, stop = path.with_name("notes"), path.with_name("stop")
    notes.touch()
    expected: set[str] = set()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen([sys.executable, str(WORKER), str(path), str(notes), str(stop)], env=env) for _ in range(4)
    ]
    writer = TextQueue(path)
    end = time.monotonic() + seconds
    number = 0
    try:
        while time.monotonic() < end and number < messages:
            number += 1
            text = f"program {number}"
            if person is None:
                expected.add(text)
                writer.append(text, variables=[MUTEX] if number % 2 else [])
            else:
                person.edit()
    finally:
        stop.touch()
        for worker in workers:
            assert worker.wait(timeout=120) == 0
    if person is not None:
        expected |= {f"person {n}\nof two lines" for n in range(1, person.written + 1)}
    text = notes.read_text()
    assert "\n!" not in "\n" + text, text[-2000:]
    handled = re.findall(r"^- \d+ ((?:program|person) \d+(?:\nof two lines)?)$", text, re.MULTILINE)
    begun = re.findall(r"^\+ (\d+) ((?:program|person) \d+(?:\nof two lines)?)$", text, re.MULTILINE)
    assert len(begun) == len(handled)
    twice = {value: count for value, count in Counter(handled).items() if count > 1}
    assert not twice, f"handled more than once: {twice}"
    assert set(handled) == expected
    rest = path.read_bytes()
    assert not re.search(rb"(?m)^-", rest)


@pytest.mark.torture
def test_workers_share_what_programs_append(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "jobs.tq"
    run(path, torture_s, person=None, messages=100_000)
    lines = path.read_bytes().split(b"\n")
    assert lines[0] == b"=program 1"
    assert {line[:8] for line in lines if line} <= {b"=program", b"\\mutex= "}


@pytest.mark.torture
def test_workers_and_a_person_share_one_file(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"# a file that people edit\n")
    person = Person(path, seed=1)
    run(path, torture_s, person=person, messages=100_000)
    data = content(path.read_bytes())
    assert data[b"# a file that people edit"] == 1
    for n in range(1, person.written + 1):
        assert data[b"*person %d" % n] == 1
    for n in range(1, person.comments + 1):
        assert data[b"# note %d" % n] == 1
    assert data[b" of two lines"] == person.written
    assert data[b" and more"] == person.comments
    assert len(data) == 3 + person.written + person.comments + (1 if b"\\mutex" in data else 0)
