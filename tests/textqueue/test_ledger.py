"""The ledger ignores damaged lines, and is asked about a message only if it knows one. A taken lock is tried again."""

import time
from collections import Counter
from pathlib import Path

import pytest

from sej.system.disk import OS
from sej.system.locks import process_host
from tests.textqueue.claiming import got, lined, plain, taken
from textqueue import MessageStatus, TextQueue
from textqueue.ledger.sidecar import Guard
from textqueue.reading.details import details, totals


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
    for name in ("log.KEPT", "log._LEAST_LINES"):
        monkeypatch.setattr(f"textqueue.ledger.{name}", 100)
    monkeypatch.setattr("textqueue.ledger.log._READ_BYTES", 512)
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
