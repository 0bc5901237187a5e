"""Processes that are stopped, and processes of another time namespace."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
from sej.queue.interface.queue import open_queue
from sej.queue.listing import QueueLook
from tests.sej.interrupts import locked_below

STOPPED = """
import os, signal, sys
from sej.queue.journal_queue import JournalQueue
q = JournalQueue(sys.argv[1], "worker")
q._core.log.guard.take()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_is_stopped_inside_a_call_delays_others_until_it_is_killed(tmp_path: Path) -> None:
    with open_queue(tmp_path, "worker") as q, ThreadPoolExecutor() as pool:
        q.put(b"a")
        with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)]) as child:
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            try:
                assert "ofs/worker.queue.lck" in locked_below(tmp_path)
                taken = pool.submit(q.get, timeout=1)
                assert [item.value for item in QueueLook(tmp_path, "worker").peek(1)] == [b"a"]
                assert not taken.done()
            finally:
                child.kill()
        item = taken.result(timeout=30)
        assert item is not None
        assert item.value == b"a"
        item.done()


@pytest.mark.parametrize("shift_s", [100_000, -600])
def test_a_process_of_another_time_namespace_takes_no_item_early(shift_s: int, tmp_path: Path) -> None:
    there = "import sej, sys\nwith sej.open_queue(sys.argv[1]) as q: print(q.get(timeout=0), q.stats())"
    unshare = ["unshare", "--map-root-user", "--time", "--boottime", str(shift_s), "--fork"]
    with sej.open_queue(tmp_path / "q", lease_s=60) as q:
        q.put(b"held")
        q.put(b"delayed", delay_s=300)
        item = q.get(timeout=0)
        assert item is not None
        found = subprocess.run([*unshare, sys.executable, "-c", there, q.path], check=True, capture_output=True)
        assert found.stdout == b"None Stats(ready=0, delayed=1, leased=1, done=0, dead=0, lost=0)\n"
        item.done()
