"""Leases: a worker that hangs loses its message at the deadline, and cannot end the claim of its successor."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sej
from sej.errors import LeaseLostError
from sej.system.clock import span_ns
from tests.queue.support import FakeClock
from tests.textqueue.claiming import ENV, MUTEX, claim_elsewhere, got, plain, said, taken
from textqueue import Claim, MessageMovedError, MessageStatus, TextQueue
from textqueue.backend import TextWorkQueue
from textqueue.format.parser import chunks

VARIABLES = pytest.mark.parametrize("variables", [[MUTEX], []])
END = pytest.mark.parametrize("end", [Claim.done, Claim.failed, Claim.give_up, Claim.give_back])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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


# --- Any history of leased claims, late workers and saves by a user, compared with a model of who has which message


WORKERS = 3
LEASES = st.sampled_from([None, 10.0, 30.0])


class Leasing(RuleBasedStateMachine):
    """Workers of one process, so that only the leases tell their claims apart."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "jobs.tq"
        self.clock = FakeClock()
        self.workers = [TextQueue(self.path, clock=self.clock) for _ in range(WORKERS)]
        self.status: dict[str, str] = {}  # control byte by text
        self.owner: dict[str, tuple[Claim, int | None]] = {}  # the valid claim of a message and its deadline
        self.claims: list[Claim] = []  # claims that no worker has ended, valid or not
        self.comments = 0

    def teardown(self) -> None:
        for q in self.workers:
            q.close()
        self.folder.cleanup()

    @initialize(rooms=st.lists(st.booleans(), min_size=1, max_size=4))
    def begin(self, rooms: list[bool]) -> None:
        for number, room in enumerate(rooms):
            self.workers[0].append(f"job {number}", [MUTEX] if room else [])
            self.status[f"job {number}"] = "-"

    @rule(which=st.integers(0, WORKERS - 1), lease_s=LEASES)
    def take(self, which: int, lease_s: float | None) -> None:
        free = {text for text, control in self.status.items() if control == "-" and not self._is_held(text)}
        claim = self.workers[which].take(lease_s=lease_s)
        assert (claim is None) == (not free)
        if claim is not None:
            assert claim.message.value in free
            self.clock.boot += 1
            self.claims.append(claim)
            self._hold(claim, lease_s)

    @rule(seconds=st.sampled_from([1, 10, 20]))
    def wait(self, seconds: int) -> None:
        self.clock.move(seconds)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(["done", "failed", "give_up", "give_back"]))
    def end(self, data: st.DataObject, how: str) -> None:
        claim = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        text = claim.message.value
        held = self._is_owner(claim)
        assert getattr(claim, how)() == held
        if held:
            del self.owner[text]
            self.status[text] = {"done": "=", "give_up": "!"}.get(how, "-")

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), lease_s=st.sampled_from([10.0, 30.0, float("inf")]))
    def extend(self, data: st.DataObject, lease_s: float) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        held = self._is_owner(claim)
        has_lease = not held or self.owner[claim.message.value][1] is not None
        if held or self._lost_to_another(claim):
            assert claim.extend(lease_s) == held
            self.clock.boot += 1
            if held and has_lease:
                self._hold(claim, lease_s)

    @rule(data=st.data(), mark=st.booleans(), by_rename=st.booleans())
    def save(self, data: st.DataObject, mark: bool, by_rename: bool) -> None:
        entries = chunks(self.path.read_bytes())
        at = data.draw(st.integers(0, len(entries) - 1))
        text = entries[at][1:].split(b"\n")[0].decode()
        if mark and self.status.get(text) == "-":
            entries[at] = b"!" + entries[at][1:]
            self.status[text] = "!"
            self.owner.pop(text, None)
        else:
            self.comments += 1
            entries.insert(at, b"# note %d\n" % self.comments)
        if by_rename:
            new = self.path.with_name("new")
            new.write_bytes(b"".join(entries))
            new.replace(self.path)
        else:
            self.path.write_bytes(b"".join(entries))

    @invariant()
    def the_file_is_what_it_must_be(self) -> None:
        raws = chunks(self.path.read_bytes()) if self.path.exists() else []
        there = {raw[1:].split(b"\n")[0].decode(): raw[:1].decode() for raw in raws if raw[:1] != b"#"}
        assert there == self.status

    def _hold(self, claim: Claim, lease_s: float | None) -> None:
        deadline = None if lease_s in (None, float("inf")) else self.clock.boot - 1 + span_ns(lease_s)
        self.owner[claim.message.value] = claim, deadline

    def _is_held(self, text: str) -> bool:
        if text not in self.owner:
            return False
        deadline = self.owner[text][1]
        return deadline is None or self.clock.boot < deadline

    def _is_owner(self, claim: Claim) -> bool:
        owner = self.owner.get(claim.message.value)
        return owner is not None and owner[0] is claim

    def _lost_to_another(self, claim: Claim) -> bool:
        """A lease that has ended is in the ledger no more if another worker took the message."""
        return b"+" in claim.message.claim


Leasing.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestLeasing = Leasing.TestCase


# --- Workers that are stopped and continued at any moment: each message is ended by exactly one claim


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
