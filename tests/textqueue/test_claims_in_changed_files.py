"""Claims in files that users save while messages are claimed: a claim follows its message."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from sej.system.disk import File
from tests.textqueue.claiming import MUTEX, claim_elsewhere, lined, plain, said, taken
from textqueue import MessageStatus, TextQueue
from textqueue.checker import details, totals
from textqueue.editing.message import marking
from textqueue.editing.tq_file import ClaimLostError
from textqueue.format import mutex
from textqueue.format.windows import Window, read_window, scan


@pytest.mark.parametrize("mode", ["reapply", "deliver"])
def test_a_stale_buffer_does_not_restore_an_ended_claim(path: Path, mode: Literal["reapply", "deliver"]) -> None:
    with TextQueue(path, on_revert=mode) as q, TextQueue(path, on_revert=mode) as other:
        q.append("a", variables=[MUTEX])
        unclaimed = path.read_bytes()
        with q.claim():
            buffer = path.read_bytes()
        path.write_bytes(b"# hello\n" + buffer)
        with other.claim() as m:
            assert (m is None) == (mode == "reapply")
        assert [conflict.kind for conflict in other.conflicts] == ["reverted"]
    assert plain(path) == b"# hello\n" + unclaimed.replace(b"-a", b"=a")


@pytest.mark.parametrize("lease_s", [None, 60.0])
@pytest.mark.parametrize("variables", [[], [MUTEX]])
def test_a_claimed_message_that_a_user_deletes_and_restores_is_delivered_again(
    path: Path, variables: list[str], lease_s: float | None
) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a", variables)
        q.append("b")
        claim = taken(q, lease_s=lease_s)
        buffer = path.read_bytes()
        path.write_bytes(b"-b\n")
        assert not claim.done()
        path.write_bytes(b"# a note\n-b\n")
        assert [m.value for m in other.messages()] == ["b"]
        path.write_bytes(buffer)
        again = taken(other)
        assert again.message.value == "a"
        assert q.take() is not None, "b"
        assert q.take() is None
        assert again.done()


class Saving:
    """A user who saves the file right before the n-th read of a window."""

    def __init__(self, path: Path, at: int, data: bytes) -> None:
        self.path = path
        self.at = at
        self.data = data
        self.calls = 0

    def read_window(
        self, file: File, position: int, size: int, *, settled: Callable[[int, bytes], bool] | None
    ) -> Window:
        self._count()
        return read_window(file, position, size, settled=settled)

    def scan(self, file: File) -> Iterator[Window]:
        yield from scan(file)
        self._count()

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            with self.path.open("r+b") as file:
                file.write(self.data)
                file.truncate()


def test_a_save_while_a_claim_looks_for_a_message_moves_no_claim(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "b"])
        claim = taken(q)
        monkeypatch.setattr("textqueue.editing.queue_file.SAVING_S", 0.0)
        saving = Saving(path, 1, path.read_bytes()[: len(lined(b""))] + b"#x\n-a\n-b\n")
        monkeypatch.setattr("textqueue.format.windows.read_window", saving.read_window)
        with path.open("rb"):  # another program has it open: no lease
            found = taken(other)
            assert found.message.value == "b"
            assert other.take() is None
        assert found.done()
        assert claim.done()
    assert plain(path) == b"#x\n=a\n=b\n"


@pytest.mark.parametrize("at", [1, 2])
def test_a_save_while_an_earlier_save_is_reconciled(path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "b", "c"])
        claim = taken(q)
        list(q.messages())[-1].mark_as_cleared()
        monkeypatch.setattr("textqueue.editing.queue_file.SAVING_S", 0.0)
        path.write_bytes(lined(b"# one\n-a\n-b\n-c\n"))
        saving = Saving(path, at, lined(b"-c\n# a line above\n-a\n-b\n"))
        monkeypatch.setattr("textqueue.editing.reconcile.scan", saving.scan)
        monkeypatch.setattr("textqueue.format.windows.scan", saving.scan)
        with path.open("rb"):
            found = taken(other)
            assert found.message.value == "b"
            assert other.take() is None
            assert found.done()
            assert claim.done()
            assert q.get_next() is None
            assert other.get_next() is None
    assert saving.calls >= at
    assert plain(path) in (b"=c\n# a line above\n=a\n=b\n", b"# one\n=a\n=b\n=c\n")


@pytest.mark.parametrize("variables", [["state=1 "], ["state=1 ", MUTEX]])
def test_a_claim_stays_with_a_message_whose_variable_is_set(path: Path, variables: list[str]) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a", variables=variables)
        stale = path.read_bytes()
        claim = taken(q)
        claim.message["state"] = "2"
        claim.message["state"] = "3"
        path.write_bytes(b"# above\n" + path.read_bytes())
        assert other.take() is None
        path.write_bytes(stale)  # older than claim and variable
        assert other.take() is None
        assert claim.message["state"] == "3"
        assert claim.done()
        assert q.get_next() is None
        assert plain(path) == stale.replace(b"-", b"=").replace(b"state=1", b"state=3")


def test_each_worker_ends_its_own_claim_when_equal_messages_move(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "a"], [MUTEX])
        first = b"-a\n\\" + MUTEX.encode() + b"\n"
        worker = claim_elsewhere(path, "sys.stdin.readline()\nprint(claim.done(), q.conflicts)\n")
        assert said(worker) == "a\n"
        claim = taken(q)
        path.write_bytes(first + path.read_bytes())
        assert claim.done()
        third = taken(other)
        assert third.message.position == 0
        assert worker.communicate("\n")[0] == "True []\n"
        assert third.done()
        assert q.conflicts == other.conflicts == []
    assert plain(path) == 3 * first.replace(b"-a", b"=a")


# --- A user copies a message while a worker has it: the copy, with the claim in its mutex, is a message like any other


_THEN = "sys.stdin.readline()\nprint(claim.done(), len(q.conflicts), flush=True)\nsys.stdin.readline()\n"
_EMPTY = b"-a\n\\" + MUTEX.encode() + b"\n"


def _below(text: bytes) -> bytes:
    return text + text


def _above_a_note(text: bytes) -> bytes:
    return text + b"# a note\n" + text


def _at_both_ends(text: bytes) -> bytes:
    return text + b"-z\n" + text + b"-y\n" + text


@pytest.mark.parametrize("copy", [_below, _above_a_note, _at_both_ends])
@pytest.mark.parametrize("ended", [False, True])
def test_a_copy_of_a_claimed_message_is_delivered_once(
    path: Path, copy: Callable[[bytes], bytes], *, ended: bool
) -> None:
    with TextQueue(path) as q:
        q.append("a", [MUTEX])
        worker = claim_elsewhere(path, _THEN)
        assert said(worker) == "a\n"
        text = copy(path.read_bytes())
        path.write_bytes(text)
        if ended:
            print(file=worker.stdin, flush=True)
            assert said(worker) == "True 0\n"
        claims = [claim for claim in iter(q.take, None) if claim.message.value == "a"]
        assert len(claims) == text.count(b"-a") - 1
        assert q.get_next() is None
        if not ended:
            print(file=worker.stdin, flush=True)
            assert said(worker) == "True 0\n"
        assert all(claim.done() for claim in claims)
        assert plain(path).count(b"-a") == 0
        assert plain(path).count(b"=a") == text.count(b"-a")
        assert plain(path).count(_EMPTY.replace(b"-", b"=")) == text.count(b"-a"), "no claim is left"
        worker.communicate("\n")
        assert q.take() is None
        assert not q.conflicts


def test_a_copy_is_listed_as_free_and_can_be_marked(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a", [MUTEX])
        claim = taken(q)
        path.write_bytes(b"# above\n" + path.read_bytes() * 2)
        found = list(details(other.messages(), now_ns=time.time_ns()))
        assert sorted(one.holder or "" for one in found) == ["", claim.owner]
        for one in found:
            source, place = one.message.source, one.message.place
            mark = marking(source, MessageStatus.cleared)
            if one.holder is None:
                source.edit_many([place], mark, "mark it", free=True)
            else:
                with pytest.raises(ClaimLostError, match="has claimed it"):
                    source.edit_many([place], mark, "mark it", free=True)
        assert claim.done()


@pytest.fixture
def on_vm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this host be called ``vm``."""
    mutex._own.cache_clear()
    monkeypatch.setattr(mutex, "process_host", lambda: "vm")
    yield
    mutex._own.cache_clear()


@pytest.mark.usefixtures("on_vm")
@pytest.mark.parametrize("claimed", [0, 2])
@pytest.mark.parametrize(
    "part", ["            825", "     @vm/90", "       m/90825", "        /", "11513@vm/", "11513@v", "11513@"]
)
def test_a_part_of_a_claim_that_an_editor_has_read_is_free(path: Path, part: str, claimed: int) -> None:
    """An editor reads in steps while a worker writes ``11513@vm/90825``, and saves."""
    with TextQueue(path) as q, TextQueue(path, settle_s=0) as other:
        q.append_many(["a", "a"], [MUTEX])
        claims = [taken(q) for _ in range(claimed)]
        path.write_bytes(path.read_bytes() + f"-a\n\\mutex={part:30}\n".encode())
        assert totals(other._inputs.sources, now_ns=0).claimed == claimed
        assert len(list(iter(other.get_next, None))) == 3 - claimed
        claims += iter(other.take, None)
        assert len(claims) == 3
        assert all(claim.done() for claim in claims)
        assert plain(path).count(b"=a") == 3


@pytest.mark.usefixtures("on_vm")
@pytest.mark.parametrize(
    "text", ["bob", "mine           ", "17@elsewhere/1234567", "17", "    17", "vm", "m/17", "a/17", f"{'':24}42"]
)
def test_a_claim_of_a_user_or_of_another_host_is_respected(path: Path, text: str) -> None:
    with TextQueue(path) as q, TextQueue(path, settle_s=0) as other:
        q.append("a", [MUTEX])
        claim = taken(q)
        path.write_bytes(path.read_bytes() + f"-a\n\\mutex={text}\n".encode())
        assert other.take() is None
        assert other.get_next() is None
        assert claim.done()
        assert other.take() is None
        assert other.get_next() is None


@pytest.mark.parametrize("emptied", [False, True])
def test_claims_survive_the_loss_of_the_ledger(path: Path, emptied: bool) -> None:
    with TextQueue(path) as q:
        q.append_many(["a", "a", "b"], [MUTEX])
        claims = [q.take(), q.take()]
        ledger = path.parent / ".jobs.tq.log"
        if emptied:
            ledger.write_bytes(b"")
        else:
            ledger.unlink()
        with TextQueue(path) as other:
            assert taken(other).message.value == "b"
            assert other.take() is None
            assert other.get_next() is None
        assert [claim and claim.done() for claim in claims] == [True, True]


def test_a_claim_moved_while_another_program_writes_all_the_time_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger could not be brought in line with the file: its positions are not used."""
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a")
        claim = taken(q)
        path.write_bytes(b"# above\n" + path.read_bytes())
        looks = iter([0])
        monkeypatch.setattr("textqueue.editing.queue_file._LOOKS", next(looks))
        monkeypatch.setattr("textqueue.editing.tq_file.time.sleep", lambda _: monkeypatch.undo())
        assert other.take() is None
        assert claim.done()
    assert plain(path) == b"# above\n=a\n"
