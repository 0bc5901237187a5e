"""Drivers that are killed, with everything they started: every message arrives, and once."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
import sej
import shard
from sej.system.watch import Watch
from tests.house.house import ROOT
from tests.pipeline.copying import copy

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.torture, pytest.mark.timeout(3600)]

SOURCES = 4
SEGMENT_BYTES = 20_000
BATCH_S = 120.0


def copied(target: Path) -> list[bytes]:
    found: list[bytes] = []
    for directory in shard.find(target) if (target / ".shards").exists() else ():
        with sej.Scanner(directory.path) as scanner:
            found += [message.value for message in scanner]
    return sorted(found)


def count(target: Path) -> int:
    return pipeline.count(target) if (target / ".shards").exists() else 0


def start(source: Path, target: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.pipeline.copying", str(source), str(target)]
    # A session of its own: Spark's JVM and workers die with the driver, as on a machine that loses power.
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def kill_after(run: subprocess.Popen[bytes], target: Path, messages: int) -> None:
    """Kill everything of a run as soon as so many messages are there, or when it has ended."""
    target.mkdir(exist_ok=True)
    deadline = time.monotonic() + BATCH_S
    with Watch(target) as watch:
        while run.poll() is None and count(target) < messages:
            assert time.monotonic() < deadline, f"{count(target)} messages, {messages} were due"
            watch.wait(0.2)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


class Producer:
    """Appends to all shards all the time, in small segments, and removes what the stream has read."""

    def __init__(self, source: Path, rng: random.Random) -> None:
        self.values: list[bytes] = []
        self.removed = 0
        self._source = source
        self._rng = rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._rng.random() / 10):
            path = self._source / f"orders.2.{self._rng.randrange(SOURCES):03x}"
            values = [b"value-%d" % (len(self.values) + at) for at in range(self._rng.randrange(1, 60))]
            with sej.Writer(path, segment_bytes=SEGMENT_BYTES) as writer:
                writer.append_many(values, [b"k-%d" % self._rng.randrange(9)] * len(values))
            self.values += values
            if sej.read_offset(path, "copy") is not None:
                self.removed += len(sej.Journal(path).clean(max_bytes=SEGMENT_BYTES))


def test_every_message_once_though_drivers_are_killed(spark: SparkSession, tmp_path: Path, torture_s: float) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    for index in range(SOURCES):
        sej.Writer(source / f"orders.2.{index:03x}").close()
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    producer = Producer(source, random.Random(seed + 1))
    deadline = time.monotonic() + torture_s
    more, kills = 400, 0
    try:
        while not kills or time.monotonic() < deadline:
            kill_after(start(source, target), target, count(target) + more)
            partial = copied(target)
            assert len(partial) == len(set(partial)), f"seed {seed}"
            more, kills = rng.choice((0, 1, 400, 3000)), kills + 1
    finally:
        producer.stop()
    copy(spark, str(source), str(target), once=True)  # by another driver, to the end
    print(f"seed {seed}: {kills} kills, {len(producer.values)} messages, {producer.removed} segments removed meanwhile")
    assert copied(target) == sorted(producer.values)
    kept = {sej.read_offset(journal.path, "copy"): journal.end_offset for journal in journals(source)}
    assert list(kept) == list(kept.values())
    assert not [name for name in os.listdir(target / ".staging") if name.startswith(("task-", "job-"))]


def journals(source: Path) -> list[sej.Journal]:
    return [sej.Journal(source / f"orders.2.{index:03x}") for index in range(SOURCES)]
