import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sej
import shard
from sej.watch import Watch
from tests.house.house import ROOT
from tests.pipeline.conftest import fill

pytestmark = pytest.mark.spark

SOURCES, MESSAGES = 4, 60


def copied(target: Path) -> list[bytes]:
    found: list[bytes] = []
    for directory in shard.find(target) if (target / ".shards").exists() else ():
        with sej.Scanner(directory.path) as scanner:
            found += [message.value for message in scanner]
    return sorted(found)


def start(source: Path, target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.copying", str(source), str(target)]
    # A session of its own: Spark's JVM and workers die with the driver, as on a machine that loses power.
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def kill_after(run: subprocess.Popen[str], target: Path, messages: int) -> None:
    """Kill everything of a run as soon as so many messages arrived, or when it has ended."""
    target.mkdir(exist_ok=True)
    with Watch(target) as watch:
        while run.poll() is None and len(copied(target)) < messages:
            watch.wait(0.2)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def test_every_message_once_though_the_driver_is_killed(tmp_path: Path, torture_s: float) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    for index in range(SOURCES):
        fill(source / f"orders.2.{index:03x}", MESSAGES, tag=f"s{index}")
    wanted = sorted(b"s%d-%d" % (index, number) for index in range(SOURCES) for number in range(MESSAGES))
    rng = random.Random(5)
    kills = 1 if torture_s < 30 else 6
    for kill in range(kills):
        kill_after(start(source, target), target, 1 + rng.randrange(200 * (kill + 1) // kills))
        partial = copied(target)
        assert len(partial) == len(set(partial))
    last = start(source, target)
    out, _ = last.communicate(timeout=240)
    assert out.endswith("done\n")
    assert copied(target) == wanted
    assert {sej.read_offset(source / f"orders.2.{index:03x}", "copy") for index in range(SOURCES)} == {MESSAGES}
    staging = os.listdir(target / ".staging")
    assert not [name for name in staging if name.startswith(("task-", "job-"))]
