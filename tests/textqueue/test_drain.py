"""The drain into a journal delivers each message once, wherever the program dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import sej
from sej.system.disk import OS
from sej.system.locks import process_host
from sej.system.sealed import unseal
from tests.crash.disk import CrashDisk, FaultyDisk
from tests.textqueue.claiming import ENV, create, plain, taken
from textqueue import TextQueue, TextQueueError
from textqueue.format.mutex import owner_text


def journal(path: Path) -> list[bytes]:
    with sej.Scanner(path) as scanner:
        return [message.value for message in scanner]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"# for the journal\n-a\n=done\n-b\n lines\n\\retries=3\n\\mutex=                        \n-a\n")
    return path


DRAINED = b"# for the journal\n=a\n=done\n=b\n lines\n\\retries=3\n\\mutex=                        \n=a\n"
VALUES = [b"a", b"b\nlines", b"a"]


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_messages_are_marked_after_the_journal_has_them(path: Path, tmp_path: Path, batch: int) -> None:
    with TextQueue(path) as q, sej.Writer(tmp_path / "j") as w:
        assert q.drain_to(w, batch=batch, key=lambda m: m.value_bytes[:1]) == 3
        assert w.durable_offset == 3
        assert q.drain_to(w) == 0
        q.append("later")
        assert q.drain_to(w) == 1
    assert journal(tmp_path / "j") == [*VALUES, b"later"]
    assert plain(path) == DRAINED + b"=later\n"


def test_a_drain_leaves_claimed_messages_to_their_workers(path: Path, tmp_path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as worker, sej.Writer(tmp_path / "j") as w:
        claim = taken(worker)
        assert q.drain_to(w) == 2
        assert claim.done()
    assert journal(tmp_path / "j") == [b"b\nlines", b"a"]


class DyingWriter:
    """A writer whose process is killed at a step."""

    def __init__(self, inner: sej.Writer, step: str) -> None:
        self.inner = inner
        self.step = step

    def append_once(
        self, name: str, number: int, values: Sequence[bytes], keys: Sequence[bytes] | None = None
    ) -> object:
        self.die("before append")
        span = self.inner.append_once(name, number, values, keys)
        self.die("after append")
        return span

    def sync(self) -> None:
        self.inner.sync()
        self.die("after sync")

    def die(self, step: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def drain_and_die(path: Path, target: Path, step: str, options: str = "") -> None:
    """Drain a queue in a process that is killed at a step."""
    script = (
        "import sej, textqueue\nfrom tests.textqueue.test_drain import DyingWriter\n"
        f"w = sej.Writer({str(target)!r})\n"
        f"textqueue.TextQueue({str(path)!r}, settle_s=0).drain_to(DyingWriter(w, {step!r}), {options})\n"
    )
    assert subprocess.run([sys.executable, "-c", script], env=ENV).returncode == -signal.SIGKILL


@pytest.mark.parametrize("step", ["before append", "after append", "after sync"])
def test_a_crash_between_journal_and_mark_is_recognised(path: Path, tmp_path: Path, step: str) -> None:
    drain_and_die(path, tmp_path / "j", step)
    with TextQueue(path) as q:
        assert q.take() is None, "what may be in the journal is not handed out again"
        assert q.get_next() is None
        path.write_bytes(b"-new\n" + path.read_bytes())
        with sej.Writer(tmp_path / "j") as w:
            assert q.drain_to(w) == 4
    assert sorted(journal(tmp_path / "j")) == sorted([*VALUES, b"new"])
    assert plain(path) == b"=new\n" + DRAINED


def test_the_batch_of_a_dead_drain_is_parsed_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"".join(b"-%d\n" % number for number in range(50)) + b"=done\n")
    drain_and_die(path, tmp_path / "j", "after append")
    parsed: list[str] = []

    def counted(name: str, data: bytes) -> dict[str, object]:
        parsed.append(name)
        return unseal(name, data)

    monkeypatch.setattr("sej.system.sealed.unseal", counted)
    with TextQueue(path) as q:
        assert q.take() is None
        assert q.get_next() is None
        assert len(parsed) == 1, "not once for each message, while the queue is locked"
        with sej.Writer(tmp_path / "j") as w:
            assert q.drain_to(w) == 50
        q.append("new")
        assert taken(q).message.value == "new"


class Remembering:
    """A journal that keeps synced batches through a power loss."""

    def __init__(self, disk: CrashDisk, batches: dict[tuple[str, int], Sequence[bytes]]) -> None:
        self.disk = disk
        self.batches = batches

    def append_once(
        self, name: str, number: int, values: Sequence[bytes], keys: Sequence[bytes] | None = None
    ) -> object:
        return self.batches.setdefault((name, number), values)

    def sync(self) -> None:
        self.disk.mark(dict(self.batches))


def test_a_power_loss_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    disk.mkdir("/q")
    create(disk, "/q/jobs.tq", b"-m\n-m\n-m\n")
    disk.mark({})
    with monkeypatch.context() as patch:  # the process that ends with the power loss
        gone = owner_text(f"999999999@{process_host()}/1")
        patch.setattr("textqueue.claiming.owner_text", lambda *_, **__: gone)
        patch.setattr("textqueue.claiming.is_alive", lambda *_, **__: True)
        with TextQueue("/q/jobs.tq", disk=disk, settle_s=0) as q:
            assert q.drain_to(Remembering(disk, {})) == 3
    states = 0
    for crash in disk.crash_states():
        if crash.marks:
            states += 1
            batches = dict(crash.marks[-1])
            with TextQueue("/q/jobs.tq", disk=crash.disk, settle_s=0) as q:
                q.drain_to(Remembering(crash.disk, batches))
            assert [value for values in batches.values() for value in values] == [b"m"] * 3
    assert states > 20


@pytest.mark.parametrize("fail_at", range(1, 40))
def test_whatever_call_fails_nothing_is_lost_or_repeated(path: Path, tmp_path: Path, fail_at: int) -> None:
    disk = FaultyDisk(OS, fail_at)
    with sej.Writer(tmp_path / "j") as w:
        try:
            with TextQueue(path, disk=disk) as q:
                q.drain_to(w, batch=2)
        except OSError:
            assert disk.failed
        with TextQueue(path) as again:
            again.drain_to(w)
            left = [m.value for m in again.messages()]
    # This process keeps its claims, because the state of the disk is not known. The next process takes them over.
    assert sorted(journal(tmp_path / "j") + [value.encode() for value in left]) == sorted(VALUES)


def test_a_damaged_intent_is_an_error_that_says_what_to_do(path: Path, tmp_path: Path) -> None:
    (tmp_path / ".jobs.tq.drain").write_text("{")
    with TextQueue(path) as q, sej.Writer(tmp_path / "j") as w, pytest.raises(TextQueueError, match=r"jobs\.tq\.drain"):
        q.drain_to(w)


def test_a_batch_that_the_journal_refuses_is_given_back(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with TextQueue(path) as q, sej.Writer(tmp_path / "j") as w:
        with pytest.raises(sej.InvalidMessageError):
            q.drain_to(w, key=lambda m: m.value_bytes * 100)
        assert plain(path) == before
        assert q.drain_to(w) == 3
    assert journal(tmp_path / "j") == VALUES


def test_a_batch_of_a_dead_program_that_the_journal_refuses_is_given_back(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    drain_and_die(path, tmp_path / "j", "before append", "key=lambda m: b'k' * 128")
    with TextQueue(path) as q, sej.Writer(tmp_path / "j") as w:
        with pytest.raises(sej.InvalidMessageError):
            q.drain_to(w)
        assert plain(path) == before
        assert q.drain_to(w) == 3
    assert journal(tmp_path / "j") == VALUES
