"""Leases: a worker that hangs loses its message at the deadline, and cannot end the claim of its successor."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from sej.errors import LeaseLostError
from tests.queue.support import FakeClock
from tests.textqueue.claiming import MUTEX, claim_elsewhere, got, plain, said, taken
from textqueue import Claim, MessageMovedError, MessageStatus, TextQueue
from textqueue.backend import TextWorkQueue

VARIABLES = pytest.mark.parametrize("variables", [[MUTEX], []])
END = pytest.mark.parametrize("end", [Claim.done, Claim.failed, Claim.give_up, Claim.give_back])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@VARIABLES
def test_a_claim_without_a_lease_lasts_as_long_as_its_process(
    path: Path, clock: FakeClock, variables: list[str]
) -> None:
    with TextQueue(path, clock=clock) as q, TextQueue(path, clock=clock) as other:
        q.append("a", variables)
        claim = taken(q)
        clock.move(1e9)
        assert other.take() is None
        assert claim.extend(5)
        clock.move(1e9)
        assert other.take() is None
        assert claim.done()


@VARIABLES
@END
@pytest.mark.parametrize("ended", ["not", "done", "give_back"])
def test_a_late_worker_changes_nothing(
    path: Path, clock: FakeClock, variables: list[str], end: Callable[[Claim], bool], ended: str
) -> None:
    with TextQueue(path, clock=clock, lease_s=60) as q, TextQueue(path, clock=clock, lease_s=60) as other:
        q.append_many(["a", "b"], [*variables, "step= "])
        late = taken(q)
        clock.move(59)
        assert taken(other).message.value == "b"
        assert other.take() is None
        clock.move(1)
        successor = taken(other)
        assert successor.message.value == "a"
        if ended != "not":
            assert getattr(successor, ended)()
        before, log = path.read_bytes(), path.with_name(".jobs.tq.log").read_bytes()
        with pytest.raises(MessageMovedError, match="lease"):
            late.message["step"] = "9"
        with pytest.raises(MessageMovedError, match="lease"):
            late.message.mark_as_cleared()
        with pytest.raises(MessageMovedError, match="lease"):
            q.mark_many([late.message], MessageStatus.cleared)
        assert not late.extend(60)
        assert not end(late)
        assert [conflict.kind for conflict in q.conflicts] == ["lease", "lease"]
        assert (path.read_bytes(), path.with_name(".jobs.tq.log").read_bytes()) == (before, log)
        if ended == "not":
            successor.message["step"] = "1"
            assert successor.done()
        assert other.conflicts == []


@VARIABLES
def test_get_next_delivers_a_message_whose_lease_has_ended(path: Path, clock: FakeClock, variables: list[str]) -> None:
    with TextQueue(path, clock=clock) as q, TextQueue(path, clock=clock) as other:
        q.append("a", variables)
        taken(q, lease_s=60)
        assert other.get_next() is None
        clock.move(60)
        assert got(other).value == "a"


@VARIABLES
def test_a_message_whose_lease_ends_on_its_last_attempt_becomes_critical(
    path: Path, clock: FakeClock, variables: list[str]
) -> None:
    with TextQueue(path, clock=clock, lease_s=60) as q:
        q.append("a", [*variables, "retries=2", "reason=" + " " * 50])
        first = taken(q)
        clock.move(60)
        second = taken(q)
        assert second.message["retries"] == "0"
        clock.move(60)
        assert q.take() is None
        (m,) = q.messages({MessageStatus.critical})
        assert (m["reason"], m.get("mutex", "")) == ("the lease ended, and no retries were left", "")
        assert not second.done()
        assert not first.failed()


@VARIABLES
def test_after_a_restart_or_on_another_host_the_wall_clock_decides(
    path: Path, clock: FakeClock, variables: list[str]
) -> None:
    with TextQueue(path, clock=clock) as q:
        q.append("a", variables)
        taken(q, lease_s=60)
        clock.wall += 10**15  # a clock that is set changes nothing on the machine that wrote the claim
        assert q.take() is None
        clock.wall -= 10**15
        clock.reboot(set_by_s=59)
        restarted = TextQueue(path, clock=clock)
        assert restarted.take() is None, "this process is alive: as if a new process had the pid of the old one"
        clock.move(1)
        assert restarted.take() is not None


@VARIABLES
def test_a_save_moves_leases_with_their_messages(path: Path, clock: FakeClock, variables: list[str]) -> None:
    with TextQueue(path, clock=clock) as q, TextQueue(path, clock=clock) as other:
        q.append_many(["same", "same", "same"], variables)
        first, second = taken(q, lease_s=60), taken(q, lease_s=120)
        path.write_bytes(b"# a line above\n" + path.read_bytes())
        assert taken(other, lease_s=180).message.position == 15 + 2 * second.message.position - first.message.position
        assert other.take() is None
        clock.move(60)
        assert taken(other, lease_s=600).message.position == 15 + first.message.position
        path.write_bytes(b"# two lines above\n" + path.read_bytes())
        assert not first.done()
        assert second.done()
    lines = [line for line in plain(path).split(b"\n") if line.endswith(b"same")]
    assert lines == [b"-same", b"=same", b"-same"]


def test_the_file_has_the_bytes_of_a_claim_without_a_lease(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("a", ["mutex=" + " " * 60])
        claim = taken(q)
        before = plain(path)
        claim.give_back()
        claim = taken(q, lease_s=60)
        assert plain(path) == before
        assert (claim.owner, claim.message["mutex"]) == (claim.owner, claim.owner)
        assert b"+" not in before


def test_a_stopped_worker_loses_its_message_and_changes_nothing_when_it_continues(path: Path) -> None:
    with TextQueue(path, lease_s=0.05) as q:
        q.append("a", [MUTEX])
        script = (
            "claim.extend(0.05)\nimport os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
            "print(claim.done(), [c.kind for c in q.conflicts], flush=True)"
        )
        with claim_elsewhere(path, script, "lease_s=0.05") as worker:
            assert said(worker) == "a\n"
            _, status = os.waitpid(worker.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            while (claim := q.take()) is None:  # at most 50 ms
                pass
            worker.send_signal(signal.SIGCONT)
            assert said(worker) == "False ['lease']\n"
        assert claim.done()
    assert plain(path).startswith(b"=a\n")


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), "soon", True])
def test_a_lease_must_be_a_positive_number(path: Path, lease_s: float) -> None:
    wrong = pytest.raises((TypeError, ValueError), match="lease_s must be")
    with wrong:
        TextQueue(path, lease_s=lease_s)
    with TextQueue(path) as q:
        q.append("a")
        claim = taken(q)
        for call in (lambda: q.claim(lease_s=lease_s), lambda: q.take(lease_s=lease_s), lambda: claim.extend(lease_s)):
            with wrong:
                call()


def test_an_item_of_a_work_queue_has_a_deadline(path: Path, clock: FakeClock) -> None:
    with sej.open_queue(path, lease_s=60) as q, sej.open_queue(path, lease_s=60) as other:
        assert isinstance(q, TextWorkQueue)
        assert isinstance(other, TextWorkQueue)
        q.put(b"job")
        for one in (q, other):
            one._queue._inputs.sources[0].leases._clock = clock
        item = q.get(timeout=0)
        assert item is not None
        clock.move(59)
        item.extend(60)
        clock.move(59)
        assert other.get(timeout=0) is None
        clock.move(1)
        again = other.get(timeout=0)
        assert again is not None
        ends: list[Callable[[], None]] = [lambda: item.extend(60), item.done, item.retry, item.fail]
        for end in ends:
            with pytest.raises(LeaseLostError):
                end()
        again.done()
        with pytest.raises(LeaseLostError):
            again.extend(60)
