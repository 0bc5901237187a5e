"""Writers that are killed: what they acknowledged on a pipe is there, and nothing is half there."""

from pathlib import Path

import pytest

import sej
from tests.crash.harness import SAME_OR_LONG, dice_of_cases
from tests.sej.hooks import script
from tests.sej.support import read_all

# One line an acknowledgement: how many messages are acknowledged, how many are durable.
WRITER = """
import random, sys, sej
path, durability, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
luck = random.Random(seed)
w = sej.Writer(path, durability=durability, segment_bytes=luck.choice([200, 5000, 1 << 20]), sync_interval_s=0.002)
number = 0
def fresh(count):
    global number
    number += count
    return [b"%09d" % n + b"v" * luck.choice([0, 3, 300]) for n in range(number - count, number)]
number = w.offset
batch = w.offset
while True:
    match luck.randrange(12):
        case 0:
            w.append_many(fresh(luck.randrange(1, 40)))
        case 2 if luck.random() < 0.3:
            batch += 1
            w.append_once("p", batch, fresh(3), timestamp=1)
        case 3:
            w.flush()
        case 4 if luck.random() < 0.1:
            w.sync()
        case _:
            w.append(fresh(1)[0])
    assert w.offset == number
    print(number, w.durable_offset, flush=True)
"""


def kill_one(path: Path, durability: str, seed: int, lines: int) -> None:
    """One writer that dies after about so many acknowledgements, and what it leaves."""
    child = script(WRITER, path, durability, seed)
    said = [next(child.stdout) for _ in range(lines)]
    child.kill()
    said += child.stdout.read().splitlines(keepends=True)
    child.communicate()
    acknowledged, durable = (int(word) for word in [line for line in said if line.endswith("\n")][-1].split())
    before = [message.value[:9] for message in read_all(path)]
    assert before == [b"%09d" % n for n in range(len(before))], f"seed {seed}"
    least = durable if durability == "buffer" else acknowledged
    assert len(before) >= least, f"seed {seed}: {acknowledged} were acknowledged"
    with sej.Writer(path) as w:
        assert w.offset >= len(before)
    batches: dict[int, list[int]] = {0: [], 1: []}
    with sej.Scanner(path) as s:
        for message in s:
            if message.timestamp in batches:
                batches[message.timestamp].append(message.offset)
    for offsets in batches.values():
        assert len(offsets) % 3 == 0, f"seed {seed}: all three or none"
    assert sej.Journal(path).verify() == [], f"seed {seed}"


@SAME_OR_LONG
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
def test_what_was_acknowledged_survives_sigkill(
    durability: str, tmp_path: Path, torture_s: float, *, long: bool
) -> None:
    for number, dice in enumerate(dice_of_cases(2, torture_s, long=long)):
        kill_one(
            tmp_path / str(number // 20), durability, dice.randrange(1 << 30), dice.randrange(1, 400 if long else 100)
        )
