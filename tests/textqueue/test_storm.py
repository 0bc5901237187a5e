"""An editing storm: sessions of a person with several editors, while programs work on the same file.

Each session loads the file, lets programs append, work, set variables and archive, changes the old buffer, and saves
it. So most saves are stale. The person inserts, deletes, changes and comments messages, sorts the file, and trims
blanks. The history is chosen at random from a seed, and everything happens in one order, so a failure is repeated by
its seed.

One sequence looks the same as a person who writes old texts again, see docs/guarantees.md: ``unclear`` counts it.
"""

import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from textqueue import TextQueue

SESSIONS = 1000
VIM = shutil.which("vim")


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def by_rename(path: Path, data: bytes) -> None:
    new = path.with_name("new~")
    new.write_bytes(data)
    new.replace(path)


def by_dd(path: Path, data: bytes) -> None:
    subprocess.run(["dd", f"of={path}", "bs=7", "status=none"], input=data, check=True)


def by_cp(path: Path, data: bytes) -> None:
    buffer = path.with_name("buffer~")
    buffer.write_bytes(data)
    subprocess.run(["cp", buffer, path], check=True)


def by_vim(path: Path, data: bytes) -> None:
    """Vim in the terminal's silent mode: it writes its buffer as it does for a person."""
    assert VIM is not None, "this test needs Vim: apt-get install vim"
    buffer = path.with_name("buffer~")
    buffer.write_bytes(data)
    steps = ["%d _", f"0r {buffer}", "w!", "q!"]  # in this mode, 0r replaces the empty line
    command = [VIM, "-Nu", "NONE", "-n", "-es", *(word for step in steps for word in ("-c", step)), str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    assert path.read_bytes() == data


SAVES: list[Callable[[Path, bytes], None]] = [in_place, by_rename, by_dd, by_cp, by_vim]


class Storm:
    """One file, the programs, and what is known about each text."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.worker = TextQueue(path, on_lost="restore", settle_s=0)
        self.done: Counter[str] = Counter()
        self.gone: set[str] = set()  # a person deleted, changed or commented it
        self.texts: set[str] = set()
        self.runs: list[set[str]] = []  # the texts of each archive run of this session
        self.unclear: Counter[str] = Counter()  # as often as it may be delivered again

    def text(self, who: str) -> str:
        text = f"{who}{len(self.texts)}"
        self.texts.add(text)
        return text

    def work(self) -> None:
        """A program makes one edit."""
        step = self.chance.random()
        if step < 0.1:
            self.archive()
        elif step < 0.45:
            variables = self.chance.choice([[], ["mutex=" + " " * 40], ["retries=9 "], ["v=0   "]])
            self.worker.append(self.text("p"), variables)
        else:
            claim = self.worker.take()
            if claim is None:
                return
            text = claim.message.value
            if "v" in claim.message and self.chance.random() < 0.7:
                claim.message["v"] = str(self.chance.randrange(10))
            if self.chance.random() < 0.2:
                claim.give_back()
            elif claim.done():
                self.done[text] += 1

    def archive(self) -> None:
        target = self.path.with_name("old.tq")
        size = target.stat().st_size if target.exists() else 0
        if self.worker.archive(target):
            self.runs.append({value(entry) for entry in entries_of(target.read_bytes()[size:]) if entry[:1] == b"="})

    def session(self) -> None:
        """A person loads the file, changes it, and saves it with some editor."""
        before = self.path.read_bytes()
        self.runs.clear()
        for _ in range(self.chance.randrange(4)):
            self.work()
        data = self.change(before)
        self.count_unclear(data)
        self.chance.choice(SAVES if data else SAVES[:2])(self.path, data)
        self.work()

    def count_unclear(self, data: bytes) -> None:
        """Find archive runs if a save brings back at most half of their messages, and none with its mark."""
        back = {value(entry): entry[:1] for entry in entries_of(data)}
        for run in self.runs:
            there = run & back.keys()
            if any(back[text] != b"-" for text in there):
                break  # this shows how old the buffer is
            if 2 * len(there) <= len(run):
                self.unclear.update(there)

    def change(self, data: bytes) -> bytes:
        entries = entries_of(data)
        for _ in range(self.chance.randrange(1, 3)):
            gesture = self.chance.choice(["insert", "insert", "sort", "trim", "delete", "change", "comment"])
            queued = [number for number, entry in enumerate(entries) if entry[:1] == b"-"]
            if gesture == "insert":
                line = f"-{self.text('u')}\n".encode()
                entries.insert(self.chance.randrange(len(entries) + 1), line)
            elif gesture == "trim":
                entries = [re.sub(rb"[ \t]+\n", b"\n", entry) for entry in entries]
            elif gesture == "sort":
                self.chance.shuffle(entries)
            elif queued:
                number = self.chance.choice(queued)
                self.gone.add(value(entries[number]))
                if gesture == "delete":
                    del entries[number]
                elif gesture == "comment":
                    entries[number] = b"#" + entries[number][1:]
                elif gesture == "change":
                    entries[number] = f"-{self.text('c')}\n".encode()
        return b"".join(entries)

    def end(self) -> None:
        """Finish what is left, and compare."""
        while (claim := self.worker.take()) is not None:
            text = claim.message.value
            assert claim.done()
            self.done[text] += 1
        self.worker.close()
        reported = {conflict.text for conflict in self.worker.conflicts}
        for text in sorted(self.texts):
            assert self.done[text] <= 1 + self.unclear[text], f"{text} was done {self.done[text]} times"
            if text not in self.gone | reported:
                assert self.done[text] >= 1, f"{text} was lost without a report"
        for line in self.path.read_bytes().splitlines(keepends=True):
            assert re.fullmatch(rb"[-=!#][puc]\d+\n|\\(?:mutex=[^\n]*|retries=\d+ ?|v=\d+ *)\n", line), line


def entries_of(data: bytes) -> list[bytes]:
    entries = re.findall(rb"[^ \\].*\n(?:[ \\].*\n)*", data)
    assert b"".join(entries) == data
    return entries


def value(entry: bytes) -> str:
    return entry[1:].split(b"\n")[0].decode()


def storm(folder: Path, seed: int, sessions: int, until: float) -> int:
    """Run sessions on one file, and return their number."""
    folder.mkdir()
    path = folder / "jobs.tq"
    path.write_bytes(b"")
    run = Storm(path, seed)
    count = 0
    while count < sessions and time.monotonic() < until:
        run.session()
        count += 1
    run.end()
    return count


@pytest.mark.parametrize("seed", range(4))
def test_a_small_storm_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    assert storm(tmp_path / "storm", seed, 12, time.monotonic() + 200) == 12


@pytest.mark.torture
def test_a_thousand_sessions_lose_and_repeat_nothing(tmp_path: Path, torture_s: float) -> None:
    first = int(os.environ.get("SEJ_SEED", time.time_ns() % 2**32))
    until = time.monotonic() + torture_s
    count = 0
    for seed in range(first, first + SESSIONS):
        if count >= SESSIONS or time.monotonic() >= until:
            break
        print(f"SEJ_SEED={seed}")
        count += storm(tmp_path / str(seed), seed, 25, until)
