"""The ledger is read quickly, remains small, and ignores damaged lines."""

import random
from pathlib import Path

import pytest

from sej.system.disk import OS
from textqueue import MessageStatus, TextQueue
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import Record, records_in

KINDS = b"=!#-vamcer"
OWNERS = [b"1@h/1", b"2@h/1", b"1@h/1+00000000.1.2", b"-"]


def fresh(path: Path) -> Ledger:
    found = Ledger(str(path), disk=OS)
    found.refresh()
    return found


def known(found: Ledger) -> tuple[object, ...]:
    back = sorted(found.given_back)
    return found.token, found.last, found.shown, found.claims, found.owners, found.leased, back, found.epoch


def slowly(path: Path) -> Ledger:
    """Apply every line of a ledger, one by one."""
    found = Ledger(str(path), disk=OS)
    for record in records_in(path.read_bytes()):
        found._apply(record)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_lines_read_in_blocks_give_the_same_state(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "log"
    lines = []
    for number in range(6000):
        kind = chance.choice(KINDS if chance.random() < (0, 0.002, 0.5)[seed % 3] else (b"=!va", b"=!-vamce")[seed % 2])
        at = 7 if kind == ord("r") else chance.randrange(-10 if seed % 2 else 0, 100)
        line = Record(kind, at, b"%024x" % number, (1, 2, number), chance.choice(OWNERS)).line()
        lines.append(chance.choice([line, line, line, line[:-9] + b"00000000\n", line[: chance.randrange(len(line))]]))
    path.write_bytes(b"".join(lines))
    assert known(fresh(path)) == known(slowly(path))


def test_after_a_ledger_was_emptied_each_message_goes_to_one_worker(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"".join(b"-%d\n" % number for number in range(12)))
    with TextQueue(path) as q, TextQueue(path) as other:
        for worker in (q, other) * 4:
            with worker.claim():
                pass
        (tmp_path / ".jobs.tq.log").write_bytes(b"")
        claims = [worker.take() for worker in (q, other) * 2]
        assert [claim.message.value for claim in claims if claim is not None] == ["8", "9", "10", "11"]


@pytest.mark.parametrize("garbage", [bytes(200_000), b"x" * 200_000, b"\n" * 70_000])
def test_zeros_after_a_power_loss_are_skipped(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        first, second = q.append_many(["a", "b"])
        first.mark_as_cleared()
    with (tmp_path / ".jobs.tq.log").open("ab") as log:
        log.write(garbage)
    with TextQueue(path) as q:
        m = q.get_next()
        assert m == second
        assert m is not None
        m.mark_as_cleared()
        assert q.conflicts == []
    path.write_bytes(b"-a\n-b\n")
    with TextQueue(path) as q:
        assert q.get_next() is None
        assert len(q.conflicts) == 2


def test_the_older_half_is_dropped_when_the_ledger_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textqueue.editing.queue_file.MARKS_KEPT", 100)
    monkeypatch.setattr("textqueue.ledger.log._READ_BYTES", 512)
    path, log = tmp_path / "jobs.tq", tmp_path / ".jobs.tq.log"
    lines = [b"-m%03d\n" % n for n in range(700)]
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("held")
        claim = other.take()
        assert claim is not None
        q.append_many([line[1:-1] for line in lines])
        largest = 0
        for m in q.messages():
            if m.value != "held":
                m.mark_as_cleared()
                largest = max(largest, log.read_bytes().count(b"\n"))
        assert largest <= 2 * 100 + 10
        assert known(q._inputs.sources[0].file.ledger) == known(fresh(log)), "the same as a ledger read from scratch"
        assert other.get_next() is None, "a queue with the old one open continues with the new one"
        assert claim.done(), "a claim is kept however old"
        assert q.conflicts == other.conflicts == []
        # A stale buffer: the marks that the ledger has kept are made again.
        path.write_bytes(b"-held\n" + b"".join(lines))
        left = [m.value for m in q.messages()]
        assert 0 < len(left) <= 600
        assert left == [line[1:-1].decode() for line in lines[: len(left)]]
        assert len(q.conflicts) == 701 - len(left), "and the claimed one"
        q.mark_many(list(q.messages()), MessageStatus.cleared)
    assert path.read_bytes() == b"=held\n" + b"".join(b"=" + line[1:] for line in lines)
