"""Any history of leased claims, late workers and saves by a user, compared with a model of who has which message."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sej.system.clock import span_ns
from tests.queue.support import FakeClock
from tests.textqueue.claiming import MUTEX
from textqueue import Claim, TextQueue
from textqueue.format.parser import chunks

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
