"""The ledger ignores damaged lines, and is asked about a message only if it knows one. A taken lock is tried again."""

import copy
import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from sej.system.disk import OS, Disk
from sej.system.locks import process_host
from tests.crash.disk import CrashDisk, Fault, FaultyDisk
from tests.textqueue.claiming import create, got, lined, plain, taken
from tests.ticks import next_tick
from textqueue import MessageStatus, TextQueue, log
from textqueue.checker import details, totals
from textqueue.log import ARCHIVED, MARKS, SET, WAS, Ledger
from textqueue.sidecar import Guard


@pytest.mark.parametrize("garbage", [bytes(200_000), b"x" * 200_000, b"\n" * 70_000])
def test_zeros_after_a_power_loss_are_skipped(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(lined(b""))
    with TextQueue(path) as q:
        first, second = q.append_many(["a", "b"])
        first.mark_as_cleared()
    with (tmp_path / ".jobs.tq.log").open("ab") as log:
        log.write(garbage)
    with TextQueue(path) as q:
        m = got(q)
        assert m == second
        m.mark_as_cleared()
        assert q.conflicts == []
    path.write_bytes(lined(b"-a\n-b\n"))
    with TextQueue(path) as q:
        assert q.get_next() is None
        assert len(q.conflicts) == 2


def test_the_oldest_marks_are_dropped_when_the_ledger_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEPT", "_LEAST_LINES"):
        monkeypatch.setattr(f"textqueue.log.{name}", 100)
    monkeypatch.setattr("textqueue.log._READ_BYTES", 512)
    path, log = tmp_path / "jobs.tq", tmp_path / ".jobs.tq.log"
    lines = [b"-m%03d\n" % n for n in range(700)]
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("held")
        claim = taken(other)
        q.append_many([line[1:-1] for line in lines])
        for m in q.messages():
            if m.value != "held":
                m.mark_as_cleared()
        assert log.read_bytes().count(b"\n") < 500
        assert other.get_next() is None, "a queue with the old one open continues with the new one"
        assert claim.done(), "a claim is kept however old"
        assert q.conflicts == other.conflicts == []
        # A stale buffer: the marks that the ledger has kept are made again.
        path.write_bytes(lined(b"-held\n" + b"".join(lines)))
        left = [m.value for m in q.messages()]
        assert 0 < len(left) <= 601
        assert left == [line[1:-1].decode() for line in lines[: len(left)]]
        assert len(q.conflicts) == 701 - len(left), "and the claimed one"
        q.mark_many(list(q.messages()), MessageStatus.cleared)
    assert plain(path) == b"=held\n" + b"".join(b"=" + line[1:] for line in lines)


@pytest.mark.parametrize("known", [False, True])
def test_the_totals_are_those_of_the_messages(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "jobs.tq"
    room = "mutex=" + " " * 40
    gone, here = f"999999999@{process_host()}/1", "me, by hand"
    path.write_text(f"-a\n-b\n\\{room}\n=c\n!d\n# e\n-f\n\\mutex={gone}\n-g\n\\mutex={here}\n-h\n more\n")
    with TextQueue(path) as q:
        claims = [q.take(), q.take()] if known else []
        if known:
            assert q.take() is not None
            q.append("new")
        now_ns = time.time_ns()
        found = list(details(q.messages(set(MessageStatus)), now_ns=now_ns))
        counts = Counter(one.message.status for one in found)
        total = totals(q._inputs.sources, now_ns=now_ns)
        assert len(claims) == 2 * known
    assert total.counts == dict.fromkeys(MessageStatus, 0) | counts
    assert total.claimed == sum(one.holder is not None for one in found) == 1 + 3 * known
    assert total.oldest_s == max(one.age_s for one in found if one.message.status is MessageStatus.queued)


def test_a_newcomer_tries_again_soon_and_then_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "jobs.tq")
    holder, newcomer = Guard(path, disk=OS), Guard(path, disk=OS)
    holder.__enter__()
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 6:
            holder.__exit__()

    monkeypatch.setattr(time, "sleep", sleep)
    with newcomer:
        pass
    assert found == pytest.approx([0.000_05 * 2**n for n in range(6)])


# --- The ledger keeps a size in proportion to the messages that it knows, and forgets nothing that matters


MUTEX = "mutex=" + " " * 40


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_LEAST_LINES", 20)


def work(q: TextQueue, text: str, done: list[str]) -> None:
    q.append(text, [MUTEX] if len(done) % 2 else [])
    assert taken(q).done()
    done.append(text)


def lines_of(path: Path) -> int:
    return path.with_name(f".{path.name}.log").read_bytes().count(b"\n")


@pytest.mark.usefixtures("small")
def test_the_ledger_is_small_and_a_stale_save_is_still_recognised(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    done: list[str] = []
    with TextQueue(path) as q, TextQueue(path) as other:
        for number in range(200):
            work(q if number % 3 else other, f"m{number}", done)
            # Two lines for a message with a mutex, because a stale save may restore its claim; one for the others.
            assert lines_of(path) <= 2 * (1.5 * len(done) + 3) + 25
        assert q.conflicts == other.conflicts == []
        stale = lined((b"\n" + plain(path)).replace(b"\n=", b"\n-")[1:])
        path.write_bytes(stale)
        assert q.get_next() is None
        assert len(q.conflicts) == 200, "every mark is known"


@pytest.mark.usefixtures("small")
def test_saves_of_a_person_do_not_make_it_long(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        q.append("held")
        claim = taken(q)
        for number in range(100):
            path.write_bytes(b"# save %d\n" % number + path.read_bytes())
            q.append(f"m{number % 5}").mark_as_cleared()
            assert lines_of(path) <= 2 * 2 * (number + 10) + 50, "a mark, and the begin of its epoch"
        assert claim.done()
        assert q.conflicts == []
    assert plain(path).count(b"=m") == 100


@pytest.mark.parametrize("seed", range(6))
def test_a_compaction_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, due = random.Random(seed), random.Random(seed + 100)
    counts = {"all": 0, "shorter": 0}

    compact = Ledger.compact

    def check(ledger: Ledger) -> None:
        def known() -> tuple[object, ...]:
            kinds = MARKS | {SET, ARCHIVED}
            changes = [one for one in ledger.history() if one.kind in kinds or one.detail.startswith(WAS)]
            claims = {at: (one.kind, one.digest, one.detail) for at, one in ledger.claims.items()}
            return changes, claims, ledger.failed, ledger.token, ledger.epoch, ledger.foreign, ledger.generation

        before, lines = copy.deepcopy(known()), ledger.lines
        compact(ledger)
        assert known() == before
        counts["all"] += 1
        counts["shorter"] += ledger.lines < lines

    # A generator of its own: how often the queue asks depends on the clock, and the history must not.
    monkeypatch.setattr(Ledger, "is_wasteful", lambda ledger: ledger.lines > 30 and due.random() < 0.2)
    monkeypatch.setattr(Ledger, "compact", check)
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        open_claims = []
        for number in range(400):
            step = chance.random()
            messages = list(q.messages())
            if step < 0.2 or not messages:
                q.append(f"m{chance.randrange(9)}", [MUTEX, "v=   "] if chance.random() < 0.5 else [])
            elif step < 0.55 and (claim := q.take()) is not None:
                open_claims.append(claim)
            elif step < 0.9 and open_claims:
                claim = open_claims.pop(chance.randrange(len(open_claims)))
                chance.choice([claim.done, claim.failed, claim.give_back])()
            elif step < 0.93 and messages[-1].get("v") is not None:
                messages[-1]["v"] = str(number)
            elif step < 0.94:
                path.write_bytes(b"# %d\n" % number + path.read_bytes())
            else:
                q.mark_many(list(q.messages(set(MessageStatus)))[:1], chance.choice(list(MessageStatus)))
        monkeypatch.setattr(Ledger, "is_wasteful", lambda ledger: True)
        q.append("taken and given back")  # a ledger of several epochs is reconciled instead
        monkeypatch.setattr(Ledger, "is_wasteful", lambda ledger: False)
        for _ in range(100):  # most of the ledger
            assert taken(q).give_back()
        before = dict(counts)
        monkeypatch.setattr(Ledger, "is_wasteful", lambda ledger: True)
        q.append("one more")
    assert counts["all"] > before["all"] > 0, "the history was compacted too"
    assert counts["shorter"] > before["shorter"], counts


TEXTS = [f"m{number}" for number in range(12)]
BEFORE = lined(b"".join(b"-%s\n\\v=  \n" % text.encode() for text in TEXTS))


def churn(q: TextQueue, done: list[str]) -> None:
    """Mark messages, with many lines in the ledger that mean nothing later."""
    for text in TEXTS:
        first, second = taken(q), q.take()
        assert second is None or second.give_back()
        assert first.message.value == text
        if first.done():
            done.append(text)


def left_after_a_stale_save(path: str, disk: Disk) -> list[str]:
    """Save the old buffer, and return the texts that are delivered."""
    if disk is OS:
        next_tick(Path(path))
    file = disk.open(path, "edit")
    file.write_at(BEFORE, 0)
    file.truncate(len(BEFORE))
    file.close()
    with TextQueue(path, disk=disk, settle_s=0) as q:
        return [message.value for message in q.messages()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fault", ["eio", "enospc", "short"])
def test_a_compaction_that_fails_forgets_nothing_and_on_a_full_disk_fails_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    compact = Ledger.compact
    for fail_at in itertools.count(1):
        disk = FaultyDisk(OS, 0, fault)

        def failing(ledger: Ledger, disk: FaultyDisk = disk, k: int = fail_at) -> None:
            disk.fail_at = disk.calls + k
            try:
                compact(ledger)
            finally:
                disk.fail_at = 0

        monkeypatch.setattr(Ledger, "compact", failing)
        path = tmp_path / f"{fail_at}.tq"
        path.write_bytes(BEFORE)
        done: list[str] = []
        with TextQueue(path, disk=disk) as q:
            try:
                churn(q, done)
            except OSError:
                assert fault == "eio"
        monkeypatch.setattr(Ledger, "compact", compact)
        assert not set(done) & set(left_after_a_stale_save(str(path), OS)), fail_at
        if disk.failed is None:
            break
    assert fail_at > 5


def test_a_power_loss_at_every_step_of_a_compaction_forgets_no_synced_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_LEAST_LINES", 100)
    disk = CrashDisk()
    disk.mkdir("/q")
    create(disk, "/q/jobs.tq", BEFORE)
    done: list[str] = []
    with TextQueue("/q/jobs.tq", disk=disk, settle_s=0) as q:
        churn(q, done)
        ledger = q._inputs.sources[0].file.ledger
        q.sync()
        disk.mark("synced")
        q.append("x")
        while not ledger.is_wasteful():
            assert (claim := q.take())
            assert claim.give_back()
        lines, begin = ledger.lines, len(disk.trace)
        with q._inputs.sources[0].file:
            assert ledger.lines < lines, "it was compacted"
    states = 0
    for crash in disk.crash_states(since=begin):
        states += 1
        assert left_after_a_stale_save("/q/jobs.tq", crash.disk) == []
    assert states > 3
