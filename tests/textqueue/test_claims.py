"""Claims: a message has exactly one owner; and the status of a message after a claim ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sej.errors import ClosedError
from sej.system.disk import File, Mode, OsDisk, OsFile
from sej.system.locks import process_host, process_start
from tests.textqueue.claiming import MUTEX, claim_elsewhere, plain, said, taken
from textqueue import MessageStatus, TextQueue, check
from textqueue.format.mutex import ROOM, is_alive, owner_text
from textqueue.format.windows import Window, read_window


@pytest.mark.parametrize("variables", [[MUTEX], [], ["mutex=      "], ["MUTEX"]])
def test_a_claimed_message_goes_to_no_other_worker(path: Path, variables: list[str]) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a", variables=variables)
        q.append("a", variables=variables)
        before = path.read_bytes()
        with q.claim("me") as m:
            assert m is not None
            assert m.value == "a"
            with other.claim() as second:
                assert second is not None
                assert second.position != m.position
                with q.claim() as third:
                    assert third is None
                assert other.get_next() is None
            assert (b"mutex=%d@" % os.getpid() in plain(path)) == (variables == [MUTEX])
        assert q.get_next() is None
        assert plain(path) == before.replace(b"-a", b"=a"), "the claims are blanked"


def test_a_failure_puts_it_back_until_its_retries_are_used_up(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("job", variables=["retries=2 ", MUTEX, "reason=                    "])
        with pytest.raises(RuntimeError, match="no luck"), q.claim() as m:
            raise RuntimeError(f"no luck, {m['retries'] if m else None}")
        (m,) = q.messages()
        assert (m["retries"], m["mutex"], m["reason"]) == ("1", "", "RuntimeError: no luc")
        with pytest.raises(RuntimeError), q.claim() as m:
            raise RuntimeError("again")
        with q.claim() as m:
            assert m is None
        (m,) = q.messages({MessageStatus.critical})
        assert (m["retries"], m["mutex"], m["reason"]) == ("0", "", "RuntimeError: again")


def test_a_failed_message_without_retries_is_taken_after_the_others(path: Path) -> None:
    with TextQueue(path) as q:
        q.append_many(["bad", "good"])
        seen = []
        for _ in range(4):
            try:
                with q.claim() as m:
                    assert m is not None
                    seen.append(m.value)
                    if m.value == "bad" and len(seen) < 4:
                        raise ValueError
            except ValueError:
                continue
        assert seen == ["bad", "good", "bad", "bad"]
    assert plain(path) == b"=bad\n=good\n"


def test_an_interrupted_program_gives_back_its_claims(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("job", variables=["retries=1"])
        with pytest.raises(KeyboardInterrupt), q.claim():
            raise KeyboardInterrupt
        assert plain(path) == b"-job\n\\retries=1\n"


@pytest.mark.parametrize("variables", [[MUTEX], []])
def test_the_claim_of_a_dead_owner_is_taken_over_but_not_of_a_live_one(path: Path, variables: list[str]) -> None:
    with TextQueue(path) as q:
        q.append("a", variables=variables)
        with claim_elsewhere(path, "sys.stdin.read()") as owner:
            assert said(owner) == "a\n"
            assert q.take() is None
            assert q.get_next() is None
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            assert taken(q).done()
    assert plain(path).startswith(b"=a\n")


def test_a_message_whose_worker_died_on_its_last_attempt_becomes_critical(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("poison", variables=["retries=1", MUTEX, "reason=" + " " * 50])
        with claim_elsewhere(path, "import os; os.kill(os.getpid(), 9)") as owner:
            owner.wait()
        assert q.take() is None
        (m,) = q.messages({MessageStatus.critical})
        assert m["reason"] == "the worker died, and no retries were left"
        assert m["mutex"] == ""


def test_a_process_is_alive_as_long_as_its_start_is_the_same() -> None:
    name = process_host()
    assert is_alive(owner_text())
    pid = subprocess.Popen([sys.executable, "-c", ""])
    start = process_start(pid.pid)
    pid.wait()
    assert not is_alive(f"{pid.pid}@{name}/{start}".encode())
    assert not is_alive(f"{os.getpid()}@{name}/1".encode()), "the number was used again"


@pytest.mark.parametrize("room", [ROOM - 1, 60])
def test_a_claim_that_does_not_fit_is_in_the_ledger(path: Path, room: int) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a", variables=["mutex=" + " " * room])
        claim = taken(q)
        assert claim.message["mutex"] == ("" if room < ROOM else claim.owner)
        assert other.take() is None
        assert claim.done()


def test_the_next_claim_does_not_read_the_done_messages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"=done\n" * 20_000 + b"-x\n" * 50)
    reads: list[int] = []

    def counting(file: File, position: int, size: int, *, settled: Callable[[int, bytes], bool] | None) -> Window:
        reads.append(position)
        return read_window(file, position, size, settled=settled)

    with TextQueue(path) as q:
        assert q.take() is not None
        monkeypatch.setattr("textqueue.format.windows.read_window", counting)
        for _ in range(10):
            taken(q).done()
    assert 1 <= len(reads) <= 10, "at most one window each"
    assert min(reads) >= 120_000


@pytest.mark.parametrize("owner", ["1@h/" + "9" * 60, "1@h/" + "9" * 20, "1@h\n-b/3", "\ud800@h/3"])
def test_an_owner_never_exceeds_its_space(path: Path, owner: str) -> None:
    with TextQueue(path) as q:
        q.append("a", variables=[MUTEX])
        q.append("b" * 80)
        before = plain(path)
        claim = taken(q, owner)
        now = plain(path)
        at = before.index(b"=") + 1
        assert (now[:at], now[at + 24 :]) == (before[:at], before[at + 24 :])
        assert b"\n" not in now[at : at + 24]
        assert claim.done()
    assert plain(path) == before.replace(b"-a", b"=a")


@pytest.mark.parametrize("variable", ["retries=" + "9" * 5000, f"mutex={'9' * 5000}@{process_host()}/1"])
def test_retries_with_too_many_digits_are_not_counted(path: Path, variable: str) -> None:
    with TextQueue(path) as q:
        q.append("a", variables=[variable])
        q.append("b")
        before = path.read_bytes()
        assert q.get_next() is not None
        taken(q).give_back()
    assert plain(path) == before
    assert all(problem.line == 4 for problem in check(path))


@pytest.mark.parametrize("variables", [["retries=2"], ["retries=2", MUTEX]])
def test_closing_a_queue_gives_back_its_claims(path: Path, variables: list[str]) -> None:
    q = TextQueue(path)
    message = q.append("a", variables=variables)
    before = path.read_bytes()
    claim = taken(q)
    q.close()
    q.close()
    assert plain(path) == before
    with TextQueue(path) as other:
        again = taken(other)
        for end in (claim.done, claim.failed, claim.give_up, claim.give_back, message.mark_as_cleared):
            with pytest.raises(ClosedError):
                end()
        assert again.done()


def test_a_claim_for_another_process_outlasts_the_queue_object(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a")
        parent = os.getppid()
        assert q.take(f"{parent}@{process_host()}/{process_start(parent)}") is not None
        q.close()
        assert other.take() is None


def test_a_forked_child_does_not_give_back_the_claims_of_its_parent(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a")
        claim = taken(q)
        child = os.fork()
        if not child:
            q.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert other.take() is None
        assert claim.done()


def test_a_message_that_always_fails_does_not_block_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.tq").write_text("-hopeless\n")
    (tmp_path / "b.tq").write_text("-fine\n")
    with TextQueue(tmp_path) as q:
        for value in ("hopeless", "fine", "hopeless"):
            claim = taken(q)
            assert claim.message.value == value
            assert claim.done() if value == "fine" else claim.failed()


class Closing(OsDisk):
    """Makes another thread close a queue while the file is being opened for a claim."""

    def __init__(self) -> None:
        self.closer = threading.Thread()

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode == "edit" and self.closer.ident is None:
            self.closer.start()
            self.closer.join(0.2)  # it may wait for the claim, which must not remain
        return super().open(path, mode)


def test_a_claim_made_while_another_thread_closes_the_queue_is_given_back(path: Path) -> None:
    path.write_text("-a\n")
    disk = Closing()
    with TextQueue(path, disk=disk) as q, TextQueue(path) as other:
        disk.closer = threading.Thread(target=q.close)
        q.take()
        disk.closer.join()
        with pytest.raises(ClosedError):
            q.take()
        assert other.take() is not None


def test_workers_do_not_look_at_each_take_whether_the_others_are_alive(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bytes] = []

    def counting(owner: bytes) -> bool:
        looks.append(owner)
        return is_alive(owner)

    monkeypatch.setattr("textqueue.claiming.is_alive", counting)
    monkeypatch.setattr("textqueue.claiming._ALIVE_S", 600.0)
    with TextQueue(path) as q:
        q.append_many(map(str, range(20)))
        with claim_elsewhere(path, "sys.stdin.read()") as owner:
            assert said(owner) == "0\n"
            for _ in range(18):
                claim = taken(q)
                assert claim.done()
            assert len(looks) == 1
            owner.kill()
            owner.wait()
            assert taken(q).message.value == "19", "that a worker died is seen a moment later"
            assert taken(q).message.value == "0", "or when no other message is free"


@pytest.mark.parametrize("hidden", [PermissionError, FileNotFoundError])
def test_a_claim_of_a_process_that_the_system_hides_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch, hidden: type[OSError]
) -> None:
    with TextQueue(path) as q:
        q.append_many(["a", "b"], [MUTEX])
        q.append("c")
        worker = claim_elsewhere(path, "q.take(); q.take()\nprint(flush=True)\nsys.stdin.readline()\n")
        assert said(worker) + said(worker) == "a\n\n"
        opened: Callable[..., Any] = open

        def hide(name: object, *args: object) -> Any:
            if str(name).startswith("/proc/"):
                raise hidden
            return opened(name, *args)

        monkeypatch.setattr("builtins.open", hide)
        assert q.take() is None
        assert q.get_next() is None
        worker.communicate("\n")
        assert q.take() is not None
