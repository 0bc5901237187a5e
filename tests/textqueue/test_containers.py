"""Workers in containers: each has PID namespaces of its own, and all find the file in one directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.textqueue.claiming import CONTAINER, MUTEX, claim_elsewhere, plain, said, taken
from textqueue import TextQueue


@pytest.fixture(params=[MUTEX, "retries=9"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A queue whose claims are in the file, or in its ledger."""
    with TextQueue(tmp_path / "jobs.tq") as q:
        q.append("a", variables=[request.param])
    return tmp_path / "jobs.tq"


def test_a_message_that_a_container_has_goes_to_no_worker_outside(path: Path) -> None:
    with claim_elsewhere(path, "sys.stdin.read(); claim.done()", before=CONTAINER) as owner:
        assert said(owner) == "a\n"
        with TextQueue(path) as q:
            assert q.take() is None
        again = claim_elsewhere(path, "", before=CONTAINER)
        assert again.communicate(timeout=20)[0] == "None\n", "nor to a third container"
    with TextQueue(path) as q:
        assert plain(path).startswith(b"=a\n")
        assert not q.conflicts


def test_a_process_of_another_time_namespace_takes_no_claimed_message(path: Path) -> None:
    with TextQueue(path) as q:
        claim = taken(q)
        other = claim_elsewhere(path, "", before=["unshare", "--map-root-user", "--time", "--boottime", "-9", "--fork"])
        assert other.communicate(timeout=20)[0] == "None\n"
        assert claim.done()


def test_in_a_container_a_claim_ends_with_its_process(path: Path) -> None:
    script = """
import os, subprocess, sys, textqueue
from sej.system.locks import host_name, process_host, process_start
assert process_host() != host_name()
q = textqueue.TextQueue(sys.argv[1])
if not os.fork():
    os._exit(9 if q.take() else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
mine = q.take()
assert mine and mine.give_back()
me = f"{os.getpid()}@{host_name()}/{process_start(os.getpid())}"
assert q.take(me) and q.held_by(me) and q.held_by(me)[0].done()
"""
    command = [*CONTAINER, sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
