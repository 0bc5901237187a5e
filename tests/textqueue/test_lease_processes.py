"""Workers that are stopped and continued at any moment: each message is ended by exactly one claim."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.textqueue.claiming import ENV, MUTEX, plain
from textqueue import TextQueue

WORKER = """
import os, random, signal, sys
from textqueue import TextQueue
path, log, stop, seed = sys.argv[1:]
fd = os.open(log, os.O_WRONLY | os.O_APPEND)
chance = random.Random(seed)
with TextQueue(path, lease_s=0.01) as q:
    while True:
        over = os.path.exists(stop)
        claim = q.take()
        if claim is None:
            if over:
                break
            continue
        if chance.random() < 0.3:
            os.kill(os.getpid(), signal.SIGSTOP)
        if chance.random() < 0.1:
            claim.extend(0.02)
        os.write(fd, f"{claim.done()} {claim.message.value}\\n".encode())
"""


def has_ended(worker: "subprocess.Popen[bytes]", options: int) -> bool:
    """Continue a worker if it is stopped."""
    pid, status = os.waitpid(worker.pid, os.WUNTRACED | options)
    if pid and not os.WIFSTOPPED(status):
        worker.returncode = os.waitstatus_to_exitcode(status)
        return True
    if pid:
        worker.send_signal(signal.SIGCONT)
    return False


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_each_message_is_ended_by_one_worker_whoever_stops(tmp_path: Path, torture_s: float) -> None:
    chance = random.Random(7)
    path, log, stop = tmp_path / "jobs.tq", tmp_path / "log", tmp_path / "stop"
    log.touch()
    path.touch()
    command = [sys.executable, "-c", WORKER, *map(str, (path, log, stop))]
    workers = [subprocess.Popen([*command, str(seed)], env=ENV) for seed in range(3)]
    texts: list[str] = []
    end = time.monotonic() + torture_s
    try:
        with TextQueue(path) as q:
            while time.monotonic() < end:
                if len(texts) - log.read_bytes().count(b"True") > 9:
                    assert not has_ended(chance.choice(workers), os.WNOHANG)
                    continue
                texts.append(f"job {len(texts)}")
                q.append(texts[-1], [MUTEX] if chance.random() < 0.5 else [])
                if chance.random() < 0.1:
                    path.write_bytes(b"# a line of a user\n" + path.read_bytes())
    finally:
        stop.touch()
        for worker in workers:
            while not has_ended(worker, 0):
                pass
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    ended = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert Counter(text for done, text in ended if done == "True") == Counter(texts)
    assert b"\n-" not in plain(path)
