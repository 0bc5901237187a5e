"""The ledger keeps a size in proportion to the messages that it knows, and forgets nothing that matters."""

import copy
import itertools
import random
from pathlib import Path

import pytest

from sej.system.disk import OS, Disk
from tests.crash.disk import CrashDisk, Fault, FaultyDisk
from tests.textqueue.claiming import create, lined, plain, taken
from tests.ticks import next_tick
from textqueue import MessageStatus, TextQueue
from textqueue.ledger import log
from textqueue.ledger.log import ARCHIVED, MARKS, SET, WAS, Ledger

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
def test_a_compaction_that_fails_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    ended: list[bool] = []
    real = Ledger.compact

    def compact(ledger: Ledger) -> None:
        ended.append(False)
        real(ledger)
        ended[-1] = True

    monkeypatch.setattr(Ledger, "compact", compact)
    failed = 0
    for fail_at in itertools.count(1):
        ended.clear()
        path = tmp_path / f"{fail_at}.tq"
        path.write_bytes(BEFORE)
        disk = FaultyDisk(OS, fail_at, fault)
        done: list[str] = []
        q = TextQueue(path, disk=disk)
        try:
            churn(q, done)
        except OSError:
            assert disk.failed
        q.close()
        assert not set(done) & set(left_after_a_stale_save(str(path), OS)), fail_at
        failed += False in ended
        if not disk.failed:
            break
    assert len(ended) > 1
    assert failed > 10


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
