"""``on_corruption="skip"`` and ``repair`` agree on random damage, and nothing is dropped without a gap."""

import random
import shutil
from pathlib import Path

import pytest

import sej
from sej import Message
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.system.disk import OS
from tests.crash.harness import SAME_OR_LONG, dice_of_cases
from tests.sej.support import STAMP, by_hand, encoded, read_all, segment

pytestmark = pytest.mark.either_codec

BASE = 1000
"""The first offset: bytes that were zeroed are not offset 0 of the journal."""
KINDS = (
    "offset", "far offset", "key size", "value size", "trailer", "zeros", "noise", "cut out", "put in", "twice", "end",
)  # fmt: skip


class Case:
    """A journal of messages made by hand, and what was done to it."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        self.dice = dice
        count = dice.choice([1, 2, 5, 20, 60, 200])
        self.nested = dice.random() < 0.2
        self.rows = [
            Message(n, STAMP + n, n % 256, b"k" * dice.randrange(4), self.value(n)) for n in range(BASE, BASE + count)
        ]
        self.firsts = sorted({BASE, *(BASE + dice.randrange(count) for _ in range(dice.randrange(4)))})
        bounds = [*self.firsts, BASE + count]
        pieces = [
            (first, b"".join(encoded(*row) for row in self.rows[first - BASE : stop - BASE]))
            for first, stop in zip(self.firsts, bounds[1:], strict=False)
        ]
        by_hand(path, *pieces)
        if dice.random() < 0.5:
            sej.Journal(path).reindex()
        self.done: list[tuple[str, int]] = []
        numbers = {BASE + dice.randrange(count) for _ in range(dice.choice([1, 1, 2, 3, 8]))}
        for number in sorted(numbers, reverse=True):  # so that a message does not move before it is damaged
            self.damage(dice.choice(KINDS), number)

    def value(self, number: int) -> bytes:
        """Of a message; some values are messages themselves."""
        if not self.nested or self.dice.random() < 0.7:
            return bytes([1 + number % 250]) * self.dice.randrange(1, 60)
        first = number + self.dice.choice([0, 1, 3, 1000])
        return b"".join(encoded(first + n, STAMP, 0, b"", b"inside") for n in range(self.dice.randrange(1, 5)))

    def damage(self, kind: str, number: int) -> None:
        """Damage one message, and for some kinds the bytes after it."""
        self.done.append((kind, number))
        dice = self.dice
        first = max(one for one in self.firsts if one <= number)
        file = segment(self.path, first)
        data = bytearray(file.read_bytes())
        start = sum(len(encoded(*row)) for row in self.rows[first - BASE : number - BASE])
        row = self.rows[number - BASE]
        end = start + len(encoded(*row))
        if kind == "offset":
            data[start : start + 8] = (number + dice.choice([-3, -1, 1, 2, 5])).to_bytes(8, "big")
        elif kind == "far offset":
            data[start : start + 8] = (number ^ 1 << dice.choice([20, 40, 62, 63])).to_bytes(8, "big")
        elif kind == "key size":
            data[start + 17 : start + 18] = bytes([dice.choice([130, 127, 5])])
        elif kind == "value size":
            at = start + 18 + len(row.key)
            data[at : at + 4] = dice.choice([2**31 - 1, 2**31, 5, len(row.value) + 26, 300]).to_bytes(4, "big")
        elif kind == "trailer":
            data[end - 4 : end] = dice.randbytes(4)
        elif kind == "zeros":
            data[start : start + dice.choice([30, 200])] = bytes(30)
        elif kind == "noise":
            data[start : start + 30] = dice.randbytes(30)
        elif kind == "cut out":
            del data[start + dice.randrange(end - start) : end + dice.randrange(60)]
        elif kind == "put in":
            data[start:start] = dice.randbytes(dice.choice([1, 26, 90]))
        elif kind == "twice":
            data[start:start] = data[start : end + 40]
        else:
            del data[dice.randrange(start, end) :]
        file.write_bytes(data)


def check(path: Path, seed: int) -> None:
    case = Case(path / "damaged", random.Random(seed))
    shutil.copytree(case.path, path / "repaired")
    sej.Journal(path / "repaired").repair()
    repaired = read_all(path / "repaired")
    with sej.Scanner(case.path, on_corruption="skip") as s:
        found = list(s)
        gaps, end = s.gaps, s.offset
        assert s.read() == [] and s.gaps == gaps  # nothing is said twice
    assert found == repaired, "a reader that skips delivers what a repair keeps"
    kinds = {kind for kind, _ in case.done}
    if "cut out" not in kinds and not case.nested:  # the halves of two messages may be one
        written = {row[1:] for row in case.rows}
        assert all(row[1:] in written for row in found)
        if not kinds & {"offset", "far offset"}:  # the format has no checksum of an offset
            assert all(row == case.rows[row.offset - BASE] for row in found)
    spans = [(row.offset, row.offset + 1) for row in found] + [gap[:2] for gap in gaps if gap.missing]
    due = BASE
    for start, stop in sorted(spans):
        assert start == due, "every offset once: delivered, or in a gap"
        due = stop
    if due < BASE + len(case.rows):  # only what looks like a torn tail is not spoken of: the next writer cuts it
        assert due >= end >= case.firsts[-1]
        assert len(case.done) > 1 or "offset" not in case.done[0][0]
    for start in {BASE + len(case.rows) // 2, *case.firsts}:
        with sej.Scanner(case.path, start, on_corruption="skip") as s:
            assert list(s) == [row for row in repaired if row.offset >= start]
            assert all(gap.start >= start for gap in s.gaps)
    with sej.Scanner(case.path, on_corruption="skip") as s:
        assert list(iter(lambda: next(iter(s.read(1)), None), None)) == repaired
    cursor = Cursor(Directory(case.path, OS), BASE, on_corruption="skip")
    copied = b""
    while (data := cursor.read_encoded(100)[0]) or cursor.judge():
        copied += data
    cursor.close()
    assert copied == b"".join(encoded(*row) for row in repaired)


def one(path: Path, seed: int) -> None:
    try:
        check(path / str(seed), seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: {Case(path / f'{seed}.again', random.Random(seed)).done}")
        raise
    shutil.rmtree(path / str(seed))


@SAME_OR_LONG
def test_skip_delivers_what_repair_keeps(tmp_path: Path, brief_s: float, *, long: bool) -> None:
    for dice in dice_of_cases(160, brief_s, long=long):
        one(tmp_path, dice.randrange(1 << 40))
