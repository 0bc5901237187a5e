"""Random histories of one queue file in one process: workers claim messages while an editor loads and saves in steps.

A history is a list of steps, made from a seed. Each step can be left out. The judge is a model that counts: how many
equal messages were written, how many are claimed, and how many are done. In the end every message must be done, and no
worker may have got one message twice.

Some things a queue cannot know. If there are equal messages, a save of an old buffer may have the bytes that a save of
a new one has. And a step that ends within a message makes another message. In such histories, a message may be
delivered again; whether one is left is judged in all.
"""

import itertools
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final
from unittest.mock import patch

import pytest

from tests.textqueue.claiming import takes_lines
from textqueue import Claim, TextQueue

Step = tuple[Any, ...]

WORKERS: Final = 3
FOR_EVER_S: Final = 10.0**9
VARIABLES: Final = [
    b"",
    b"\\retries=9 \n\\mutex=" + b" " * 30 + b"\n",
    b"\\mutex=" + b" " * 40 + b"\n",
    b" more text\n\\reason=      \n",
]
_ENTRY: Final = re.compile(rb"[^ \\\n][^\n]*\n(?:[ \\][^\n]*\n)*|\n")


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """Let no limit of time decide: a slow machine gives the same results. What waits for an editor waits briefly."""
    with (
        patch("textqueue.editing.queue_file._FILE_LEASE_WAIT_S", 0.0003),
        patch("textqueue.editing.queue_file._PAUSE_S", 0.0001),
        patch("textqueue.editing.queue_file.MOMENT_S", 3600.0),
        patch("textqueue.editing.queue_file.SAVING_S", FOR_EVER_S),
        patch("textqueue.editing.tq_file._RENAMED_S", 0.002),
    ):
        yield


def history(seed: int) -> list[Step]:
    """Return the steps of a history: of every four, one has equal messages, and two end steps within messages."""
    chance = random.Random(seed)
    equal, whole = seed % 2 == 1, seed % 4 < 2
    steps: list[Step] = [("mode", whole, whole and not equal)]
    for _ in range(chance.choice([3, 8, 20])):
        steps.append(("entry", chance.randrange(4), equal and chance.random() < 0.3))

    def work(most: int) -> None:
        for _ in range(chance.randrange(most)):
            what = chance.random()
            if what < 0.45:
                steps.append(("take", chance.randrange(WORKERS)))
            elif what < 0.55:
                same = equal and not whole and chance.random() < 0.3
                steps.append(("append", chance.randrange(WORKERS), chance.randrange(4), same))
            else:
                how = chance.choice(["done"] * 5 + ["failed", "give_back", "give_back"])
                steps.append(("end", chance.randrange(WORKERS), chance.randrange(3), how))

    def parts(name: str) -> None:
        count = chance.choice([0, 0, 1, 2])
        for part in sorted(chance.choice([chance.random()] * 3 + [1.0, 0.0]) for _ in range(count)):
            steps.append((name, part))
            work(4)

    for _ in range(chance.choice([3, 6, 10])):
        work(6)
        if chance.random() < 0.85:
            steps.append(("load",))
            parts("load_part")
            steps.append(("loaded",))
            work(6)
            for _ in range(chance.choice([0, 1, 1, 2])):
                more = ["move"] * (not whole or not equal) + ["equal"] * (not whole)
                gesture = chance.choice(["note", "insert", *more])
                steps.append(("change", gesture, chance.random(), chance.randrange(4)))
        else:
            steps.append(("undo", chance.random()))
        if chance.random() < 0.4:
            steps.append(("rename",))
        else:
            steps.append(("save",))
            parts("save_part")
            steps.append(("saved",))
    return steps


def fault(steps: list[Step], folder: Path) -> str:
    """Run a history in a folder, and return what is wrong; empty: nothing."""
    world = _World(Path(tempfile.mkdtemp(dir=folder)) / "jobs.tq")
    try:
        for name, *arguments in steps:
            getattr(world, name)(*arguments)
        world.finish()
    finally:
        world.close()
    return world.fault


def entries_of(data: bytes) -> list[bytes]:
    return _ENTRY.findall(data)


def text_of(entry: bytes) -> str:
    return entry[1:].split(b"\n")[0].decode()


class _World:
    """The file, the workers, the editor and the model. The methods without an underscore are the steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        self._whole = self._exact = True
        self._unseen = False  # whether no worker has looked at what was saved
        self._workers = [takes_lines(TextQueue(path)) for _ in range(WORKERS)]
        self._held: list[list[Claim]] = [[] for _ in self._workers]
        self._kinds: list[tuple[str, int]] = []  # the texts, with their variables
        self._written: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._first: list[bytes] = []
        self._reading: BinaryIO | None = None
        self._writing: BinaryIO | None = None
        self._read = self._data = b""
        self._saved = 0
        self._buffer: list[bytes] | None = None
        self._versions: list[bytes] = []

    # The steps

    def mode(self, whole: bool, exact: bool) -> None:
        self._whole = whole
        self._exact = exact

    def entry(self, kind: int, same: bool) -> None:
        self._first.append(self._new(kind, same=same))

    def take(self, which: int) -> None:
        self._begin()
        if len(self._held[which]) < 3 and (claim := self._workers[which].take()) is not None:
            if not self._is_looked_at():
                self._wrong("during a save: a worker takes a message")
            self._held[which].append(self._delivered(which, claim))

    def append(self, which: int, kind: int, same: bool) -> None:
        self._begin()
        if self._is_looked_at():
            lines = self._new(kind, same=same)[1:].decode().split("\n")[:-1]
            text = "\n".join([lines[0], *(line[1:] for line in lines[1:] if line[0] == " ")])
            self._workers[which].append(text, [line[1:] for line in lines if line[0] == "\\"])

    def end(self, which: int, number: int, how: str) -> None:
        claims = self._held[which]
        if claims and self._is_looked_at():
            self._end(claims.pop(number % len(claims)), how)

    def load(self) -> None:
        self._begin()
        if self._reading is None and self._writing is None:
            self._reading = self.path.open("rb", buffering=0)
            self._read = b""

    def load_part(self, part: float) -> None:
        if self._reading is not None:
            end = self._step(part, self.path.read_bytes())
            self._read += self._reading.read(max(end - len(self._read), 0))

    def loaded(self) -> None:
        if self._reading is not None:
            self._read += self._reading.read()
            self._reading.close()
            self._reading = None
            self._buffer = entries_of(self._read)
            self._versions.append(self._read)

    def change(self, gesture: str, where: float, kind: int) -> None:
        entries = self._buffer
        if entries is None:
            return
        at = 1 + int(where * len(entries))
        if gesture == "note":
            entries.insert(at, b"# note\n")
        elif gesture == "move" and len(entries) > 2:
            entries.append(entries.pop(1 + int(where * (len(entries) - 1))))
        elif gesture in ("insert", "equal"):
            entries.insert(at, self._new(kind, same=gesture == "equal"))

    def undo(self, how_far: float) -> None:
        if self._versions and self._reading is None and self._writing is None:
            self._buffer = entries_of(self._versions[-1 - int(how_far * min(3, len(self._versions)))])

    def rename(self) -> None:
        if self._buffer is not None and self._writing is None:
            new = self.path.with_name("new")
            new.write_bytes(self._version())
            new.replace(self.path)
            self._ticked()

    def save(self) -> None:
        if self._buffer is not None and self._writing is None:
            self._data, self._saved = self._version(), 0
            self._writing = self.path.open("wb", buffering=0)
            self._ticked()

    def save_part(self, part: float) -> None:
        if self._writing is not None:
            self._write(self._step(part, self._data))

    def saved(self) -> None:
        if self._writing is not None:
            self._write(len(self._data))
            self._writing.close()
            self._writing = None

    # The rest

    def finish(self) -> None:
        """End all claims, do what is left, and judge."""
        self._begin()
        self.loaded()
        self.saved()
        for claims in self._held:
            while claims:
                self._end(claims.pop(), "done")
        while (claim := self._workers[0].take()) is not None:
            self._end(self._delivered(0, claim), "done")
        entries = entries_of(self.path.read_bytes())
        left = [text_of(entry) for entry in entries if entry[:1] == b"-"]
        if left:
            self._wrong(f"left: no worker gets {left}")
        reported = {conflict.text.split("\n")[0] for q in self._workers for conflict in q.conflicts}
        marked = Counter(text_of(entry) for entry in entries if entry[:1] == b"=")
        lost = sorted(text for text, count in marked.items() if count > self._done[text] and text not in reported)
        if lost and self._whole:
            self._wrong(f"lost: no worker has done {lost}, and nothing was reported")

    def close(self) -> None:
        for file in (self._reading, self._writing):
            if file is not None:
                file.close()
        for q in self._workers:
            q.close()
        shutil.rmtree(self.path.parent)

    def _begin(self) -> None:
        if not self.path.exists():
            self.path.write_bytes(b"# file\n" + b"".join(self._first))
            self._unseen = True

    def _new(self, kind: int, *, same: bool) -> bytes:
        if same and self._kinds:
            text, kind = self._kinds[-1]
        else:
            text = f"m{len(self._kinds) + 1}"
            self._kinds.append((text, kind))
        self._written[text] += 1
        return f"-{text}\n".encode() + VARIABLES[kind]

    def _delivered(self, which: int, claim: Claim) -> Claim:
        text = text_of(claim.message.raw)
        held = sum(text_of(other.message.raw) == text for claims in self._held for other in claims)
        if self._done[text] + held >= self._written[text] and self._exact:
            self._wrong(f"again: a worker gets {text}")
        return claim

    def _end(self, claim: Claim, how: str) -> None:
        text, ended = text_of(claim.message.raw), getattr(claim, how)()
        self._done[text] += ended and how == "done"

    def _step(self, part: float, data: bytes) -> int:
        """Return where a step of the editor ends: usually at the end of a message."""
        end = int(len(data) * part)
        if not self._whole:
            return end
        at = 0
        for entry in entries_of(data):
            if at + len(entry) > end:
                break
            at += len(entry)
        return at

    def _version(self) -> bytes:
        assert self._buffer is not None
        data = b"".join(self._buffer)
        self._versions.append(data)
        self._buffer = None
        return data

    def _write(self, end: int) -> None:
        if self._writing is not None and end > self._saved:
            self._writing.write(self._data[self._saved : end])
            self._saved = end
            self._ticked()

    def _is_looked_at(self) -> bool:
        """Let a worker look at what was saved; False: it cannot, because the file is open, so it would wait."""
        if self._unseen and self._reading is None and self._writing is None:
            with self._workers[0]._inputs.found[0].source.file:
                self._unseen = False
        return not self._unseen

    def _ticked(self) -> None:
        """Give the file a time of its own: the file system's clock may have ticks of 10 ms, and this one has not."""
        now = time.time_ns()
        os.utime(self.path, ns=(now, now))
        self._unseen = True

    def _wrong(self, what: str) -> None:
        self.fault = self.fault or what


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_short_set_of_histories(tmp_path: Path, first: int) -> None:
    for seed in range(first, 24, 4):
        assert fault(history(seed), tmp_path) == "", f"history {seed}"


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_random_histories(tmp_path: Path, torture_s: float) -> None:
    end = time.monotonic() + torture_s
    for seed in itertools.count(int(os.environ.get("SEJ_SEED", time.time_ns() % 2**32))):
        assert fault(history(seed), tmp_path) == "", f"history {seed}"
        if time.monotonic() >= end:
            break
