"""An editing storm: sessions of a person with several editors, while programs work on the same file.

Each session loads the file, lets programs append, work, set variables and archive, changes the old buffer, and saves
it with the editors and programs of ``tests.textqueue.saving``. So most saves are stale. The person inserts, deletes,
changes and comments messages, sorts the file, and trims blanks. The history is chosen at random from a seed, and
everything happens in one order, so a failure is repeated by its seed.

One sequence looks the same as a person who writes old texts again, see docs/guarantees.md: ``unclear`` counts it.
"""

import ast
import itertools
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.textqueue.claiming import ENV, lined, plain
from tests.textqueue.saving import MISSING, SAVERS, WAYS, git
from tests.ticks import next_tick
from textqueue import TextQueue
from textqueue.format.parser import essence

SESSIONS = 1000
WORKER = Path(__file__).with_name("worker.py")
WHOLE_S = 60.0
"""With this time for a test or more, all sessions are run."""


class Storm:
    """One file, the programs, and what is known about each text."""

    ways: Sequence[str] = WAYS

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.worker = TextQueue(path, settle_s=0)
        self.done: Counter[str] = Counter()
        self.back: set[str] = set()  # given back: if a save removes it, that is not reported
        self.gone: set[str] = set()  # a person deleted, changed or commented it
        self.texts: set[str] = set()
        self.unclear: Counter[str] = Counter()  # as often as it may be delivered again
        names = [*SAVERS, *["git"] * ("git" not in MISSING)]
        self.chance.shuffle(names)
        self.names = itertools.cycle(names)
        self.variables = [["mutex=" + " " * 40], ["retries=9 "], ["v=0   "]] * self.chance.randrange(3)

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
            variables = self.chance.choice([[], *self.variables])
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
                self.back.add(text)
            elif claim.done():
                self.done[text] += 1

    def archive(self) -> None:
        target = self.path.with_name("old.tq")
        self.worker.archive(target)

    def session(self) -> None:
        """A person loads the file, changes it, and saves it with some editor."""
        before = self.path.read_bytes()
        name = next(self.names)
        opened = SAVERS[name](self.path) if name in SAVERS else git(self.path, self.chance, self.work, self.ways)
        with opened as save:
            for _ in range(self.chance.randrange(4)):
                self.work()
            now = self.path.read_bytes()
            data = self.change(before)
            next_tick(self.path)
            save(data)
        saved = self.path.read_bytes()
        if saved != data and name == "git":
            self.count_merged(entries_of(before + now), entries_of(data), entries_of(now), entries_of(saved))
        self.look(saved)
        self.work()

    def look(self, saved: bytes) -> None:
        """Let the queue look at what was saved: it reports each status of the person that it changes."""
        known = len(self.worker.conflicts)
        claim = self.worker.take()
        if claim is not None:
            assert claim.give_back()
            self.back.add(claim.message.value)
        reported = {conflict.text for conflict in self.worker.conflicts[known:]}
        meant, made = statuses(saved), statuses(self.path.read_bytes())
        assert {text for text in meant | made if meant.get(text) != made.get(text)} <= reported

    def count_merged(self, known: list[bytes], mine: list[bytes], now: list[bytes], merged: list[bytes]) -> None:
        """Find the texts that Git lost, wrote twice, or gave the variables of others, and those that it reopened.

        A merge may take back one mark, or a move to the archive, and keep the newer number. A person who queues a
        message again does the same.
        """
        sides = known + mine
        queued = {value(entry) for entry in now if entry[:1] == b"-"}
        reopened = {value(entry) for entry in merged if entry[:1] == b"-"} - queued
        self.unclear.update(reopened & {value(entry) for entry in known})
        before, after = Counter(map(essence, sides)), Counter(value(entry) for entry in merged)
        strange = {value(entry) for entry in merged if essence(entry) not in before}
        self.gone |= strange | {value(entry) for entry in sides} - after.keys()
        self.unclear.update(strange | {text for text, count in after.items() if count > 1})

    def change(self, data: bytes) -> bytes:
        entries = entries_of(data, messages=False)
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
        named = [text for text in reported if re.fullmatch(r"\d+:[0-9a-f]{8}", text)]  # by position and hash
        lost = [text for text in self.texts - self.gone - self.back - reported if not self.done[text]]
        for text in sorted(self.texts):
            assert self.done[text] <= 1 + self.unclear[text], f"{text} was done {self.done[text]} times"
        assert len(lost) <= len(named), f"{lost} were lost without a report"
        self.require_whole_lines()

    def require_whole_lines(self) -> None:
        for line in plain(self.path).splitlines(keepends=True):
            assert re.fullmatch(
                rb"#queue\n|\\seq= *\n|[-=!#][puc]\d+\n|\\(?:mutex=[^\n]*|retries=\d+ ?|v=\d+ *)\n", line
            ), line


class Shared(Storm):
    """Worker processes while the person edits; some are killed. No program appends, archives, or adds the line."""

    ways = WAYS[:2]

    def __init__(self, path: Path, seed: int, workers: int) -> None:
        super().__init__(path, seed)
        self.notes, self.stop = path.with_name("notes"), path.with_name("stop")
        self.notes.touch()
        self.running = [self.start() for _ in range(workers)]
        self.killed: set[int] = set()

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(WORKER), "claim", *map(str, (self.path, self.notes, self.stop))]
        return subprocess.Popen(command, env=ENV)

    def work(self) -> None:
        """Let the workers do something, and kill one now and then."""
        for _ in range(self.chance.randrange(100)):
            os.sched_yield()
        if self.chance.random() < 0.05:
            worker = self.running.pop(0)
            worker.kill()
            worker.wait()
            self.killed.add(worker.pid)
            self.running.append(self.start())

    def look(self, saved: bytes) -> None:
        """The workers look."""

    def count_merged(self, known: list[bytes], mine: list[bytes], now: list[bytes], merged: list[bytes]) -> None:
        """Nothing was merged: the workers have changed the file since."""

    def change(self, data: bytes) -> bytes:
        """Queue a message again, too, that is done in the buffer."""
        done = re.findall(rb"(?m)^=(\w+)$", data)
        if done and self.chance.random() < 0.3:
            text = self.chance.choice(done)
            self.unclear[text.decode()] += 1
            data = data.replace(b"=%s\n" % text, b"-%s\n" % text)
        return super().change(data)

    def end(self) -> None:
        """Let the workers finish what is left, and compare."""
        self.worker.close()
        self.stop.touch()
        assert [worker.wait(timeout=300) for worker in self.running] == [0] * len(self.running)
        busy: dict[str, int] = {}
        for line in self.notes.read_text().splitlines():
            what, who, name = line.split(" ", 2)
            text, pid = ast.literal_eval(name).decode(), int(who)
            if what == "!":  # the worker could not mark it, because a save had removed it for a moment
                self.unclear[text.split("'")[1]] += 1
            elif what == "+":
                assert busy.get(text, pid) in self.killed | {pid}, f"two workers have {text}"
                self.unclear[text] += text in busy
                busy[text] = pid
            elif what == "-":
                self.done[text] += 1
                if pid not in self.killed:  # otherwise it may die before the mark
                    del busy[text]
        there = statuses(plain(self.path))
        for text in sorted(self.texts):
            assert self.done[text] <= 1 + self.unclear[text], f"{text} was done {self.done[text]} times"
            if text not in self.gone:
                assert there.get(text) == [b"="] and self.done[text], f"{text}: {there.get(text)}"
        self.require_whole_lines()


def entries_of(data: bytes, *, messages: bool = True) -> list[bytes]:
    entries = re.findall(rb"[^ \\].*\n(?:[ \\].*\n)*", data)
    assert b"".join(entries) == data
    return [entry for entry in entries if not entry.startswith(b"#queue")] if messages else entries


def statuses(data: bytes) -> dict[str, list[bytes]]:
    """Return the control bytes of each text."""
    found: dict[str, list[bytes]] = {}
    for entry in entries_of(data):
        found[value(entry)] = sorted([*found.get(value(entry), []), entry[:1]])
    return found


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
@pytest.mark.timeout(3600)
def test_a_thousand_sessions_lose_and_repeat_nothing(tmp_path: Path, torture_s: float) -> None:
    """In `make torture`, there are as many sessions as the name says, however long they take."""
    first = int(os.environ.get("SEJ_SEED", time.time_ns() % 2**32))
    until = time.monotonic() + (torture_s if torture_s < WHOLE_S else float("inf"))
    count = 0
    for seed in range(first, first + SESSIONS):
        if count >= SESSIONS or time.monotonic() >= until:
            break
        print(f"SEJ_SEED={seed}")
        count += storm(tmp_path / str(seed), seed, 25, until)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_sessions_while_workers_are_killed_lose_and_repeat_nothing(
    tmp_path: Path, torture_s: float, workers: int
) -> None:
    """As many sessions as there, half with two workers, half with four. Each file has 50 sessions."""
    first = int(os.environ.get("SEJ_SEED", time.time_ns() % 2**32))
    until = time.monotonic() + (torture_s if torture_s < WHOLE_S else float("inf"))
    for seed in range(first, first + SESSIONS // 100):
        print(f"SEJ_SEED={seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "jobs.tq").write_bytes(lined(b""))
        run = Shared(folder / "jobs.tq", seed, workers)
        for _ in range(50):
            run.session()
        run.end()
        print(f"{workers} workers, {len(run.killed)} killed, {sum(run.done.values())} done, {len(run.texts)} texts")
        if time.monotonic() > until:
            break
