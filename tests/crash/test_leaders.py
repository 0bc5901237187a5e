"""Leaders that are killed or replaced at any moment: after a new token, no message of an older one is appended."""

import random
from pathlib import Path

import sej
from tests.sej.hooks import PATIENCE_S, script
from tests.sej.support import read_all

# Each reads to the end, and reports what it took over: its token and that end.
LEADER = """
import sys, sej
path = sys.argv[1]
try:
    with sej.SharedWriter(path, token="next", segment_bytes=2000) as w:
        with sej.Scanner(path) as s:
            for _ in s:
                pass
            print("leads", w.token, s.offset, flush=True)
        while True:
            print("appended", w.append(b"%d" % w.token), flush=True)
except sej.ConflictError as error:
    print("replaced", error.expected, error.found, flush=True)
"""

# Counts to a number with others: each reads the last number and appends the next one, if it is still the last.
COUNTER = """
import sys, sej
path, most = sys.argv[1], int(sys.argv[2])
with sej.SharedWriter(path, segment_bytes=500) as w:
    while (number := (tail[-1].offset + 1 if (tail := sej.Journal(path).tail(1)) else 0)) < most:
        try:
            w.append(b"%d" % number, expect_offset=number)
            print(number, flush=True)
        except sej.ConflictError as error:
            assert error.expected == number < error.found
"""


def test_no_replaced_leader_appends(tmp_path: Path) -> None:
    dice = random.Random(40)
    leaders, lines = [], []
    for number in range(8):
        leader = script(LEADER, tmp_path)
        assert leader.stdout is not None
        lines += [next(leader.stdout) for _ in range(1 + dice.randrange(60))]
        if number % 3 == 1:
            leader.kill()
        leaders.append(leader)
    leaders[-1].kill()
    for leader in leaders:
        assert leader.stdout is not None
        lines += [line for line in leader.stdout if line.endswith("\n")]
        leader.communicate(timeout=PATIENCE_S)
    found = [line.split() for line in lines]
    begins = {int(words[1]): int(words[2]) for words in found if words[0] == "leads"}
    assert sorted(begins) == list(range(1, 9))
    messages = read_all(tmp_path)
    for message in messages:
        assert all(message.offset < end for token, end in begins.items() if token > int(message.value))
    acknowledged = [int(words[1]) for words in found if words[0] == "appended"]
    assert len(set(acknowledged)) == len(acknowledged) and max(acknowledged) < len(messages)
    assert sum(words[0] == "replaced" for words in found) >= 4


def test_processes_that_are_killed_count_without_a_gap_or_a_repetition(tmp_path: Path) -> None:
    sej.Writer(tmp_path).close()
    counters = [script(COUNTER, tmp_path, 400) for _ in range(3)]
    said = []
    for _ in range(3):
        assert counters[0].stdout is not None
        said += [next(counters[0].stdout) for _ in range(5)]
        counters[0].kill()
        counters.append(script(COUNTER, tmp_path, 400))
        killed = counters.pop(0)
        assert killed.stdout is not None
        said += [line for line in killed.stdout if line.endswith("\n")]
        killed.communicate(timeout=PATIENCE_S)
    for counter in counters:
        said += counter.communicate(timeout=PATIENCE_S)[0].splitlines()
        assert counter.returncode == 0
    assert [int(message.value) for message in read_all(tmp_path)] == list(range(400))
    assert len({int(line) for line in said}) == len(said)
