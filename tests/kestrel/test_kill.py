"""SIGKILL of real processes at random moments: no confirmed item is delivered again, no unconfirmed item is lost."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kestrel
from kestrel import segmented

ROOT = Path(__file__).resolve().parent.parent.parent


def run_and_kill(kind: str, directory: Path, seed: int, seconds: float) -> list[tuple[str, int]]:
    """What the process said until it was killed, seconds after its first word."""
    command = [sys.executable, "-m", "tests.kestrel.victim", kind, str(directory), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said += process.stdout.readline()
        process.kill()
        said += process.stdout.read()
    assert process.returncode == -9
    words = [line.split() for line in said.splitlines() if line]
    return [(word.decode(), int(number)) for word, number in words]


def numbers_in(kind: str, directory: Path) -> list[int]:
    if kind == "kestrel":
        with kestrel.Queue(directory, "cars") as queue:
            assert queue.damage == []
            assert queue.open_transactions == {}
        items = [item.data for item in kestrel.replay(directory, "cars").items]
    else:
        with segmented.Queue(directory, "jobs") as other:
            assert other.damage == []
        state = segmented.load(directory, "jobs")
        pending = set(state.pending("r"))
        items = [item.data for item in state.items if item.id in pending]
    return [int(data.partition(b":")[0]) for data in items]


def rounds(kind: str, directory: Path, budget_s: float) -> int:
    chance = random.Random(kind)
    there: set[int] = set()
    deadline = time.monotonic() + budget_s
    seed = 0
    while time.monotonic() < deadline or seed < 2:
        seed += 1
        said = run_and_kill(kind, directory, seed, chance.uniform(0.0, 0.25))
        spoken = {
            what: {number for word, number in said if word == what} for what in ("-put", "+put", "-take", "+take")
        }
        there = (there | spoken["+put"]) - spoken["-take"]
        perhaps = (spoken["-put"] - spoken["+put"]) | (spoken["-take"] - spoken["+take"])
        assert len(perhaps) <= 1
        found = numbers_in(kind, directory)
        assert len(found) == len(set(found)), "an item is there twice"
        assert there - set(found) == set(), "an unconfirmed item is lost"
        assert set(found) - there <= perhaps, "a confirmed item came back"
        there = set(found)
    return seed


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["kestrel", "libkestrel"])
def test_a_kill_costs_nothing(kind: str, tmp_path: Path, torture_s: float) -> None:
    assert rounds(kind, tmp_path, max(torture_s, 1.0)) >= 2
