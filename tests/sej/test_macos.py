"""The code that only macOS runs, on a system that pretends to be it; and the one sentence for Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_codec

ROOT = Path(__file__).resolve().parent.parent.parent

EVERYTHING = """
import os, threading
from tests.macos import full_syncs
from tests.sej.hooks import until
import sej, shard, hub, textqueue
from sej.system import watch

with sej.Writer("orders", durability="disk") as writer:
    before = len(full_syncs)
    writer.append(b"one")
    assert len(full_syncs) > before, "an append of durability 'disk' is a full sync"
    before = len(full_syncs)
    writer.append_many([b"two", b"three"])
    assert len(full_syncs) > before
    before = len(full_syncs)
    writer.publish([b"four"])
    assert len(full_syncs) >= before + 2, "the segment and its name"

with sej.Scanner("orders", timeout=None) as follower:
    assert follower._watch is None or follower._watch.polling
    assert [follower.read(1)[0].value for _ in range(4)] == [b"one", b"two", b"three", b"four"]
    def append():
        until(lambda: follower._watch is not None)
        with sej.Writer("orders") as writer:
            writer.append(b"five")
    thread = threading.Thread(target=append)
    thread.start()
    assert follower.read(1)[0].value == b"five", "it is woken or polls"
    assert follower._watch.polling
    thread.join()

with sej.Offset("orders", "billing") as kept:
    kept.commit(5)
assert sej.Journal("orders").verify() == []

with sej.open_queue("jobs", "worker") as queue:
    queue.put(b"job")
    item = queue.get(timeout=60)
    item.done()
    assert queue.stats().done == 1
try:
    sej.Writer("orders"), sej.Writer("orders")
except sej.LockedError as error:
    assert f"pid={os.getpid()}" in str(error)
with textqueue.TextQueue("jobs.tq") as text:
    text.append("ship order 1")
    (message,) = text.messages()
    message.mark_as_cleared()
assert open("jobs.tq").read() == "=ship order 1\\n"
with shard.Writer(shard.Path("sharded", prefix="orders", bits=1)) as writer:
    writer.append(b"value", b"key")
import sej.cli.commands.bench, sej.cli.commands.doctor, sej.cli.commands.top
print("well", len(full_syncs) > 0)
"""


def run(code: str, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_everything_runs_without_what_only_linux_has(tmp_path: Path) -> None:
    done = run(EVERYTHING, tmp_path)
    assert done.stdout == "well True\n", done.stderr


@pytest.mark.parametrize("package", ["sej", "hub", "kestrel", "pipeline", "shard", "textqueue"])
def test_importing_on_windows_names_the_way_out(tmp_path: Path, package: str) -> None:
    done = run(f"import sys, os, ctypes; sys.platform = 'win32'; import {package}", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: SEJ does not run on Windows: run it in WSL, the Windows Subsystem for Linux (wsl --install)"
    )
