"""Waiting for a journal that does not exist yet."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
import sej.aio
import sej.journal.arrival
from sej.system.watch import Watch
from tests.cli.command import sej as command
from tests.cli.command import start


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a call waits for a journal."""
    begun = threading.Event()

    class Noted(Watch):
        def wait(self, timeout: float | None = None) -> bool:
            begun.set()
            return super().wait(timeout)

    monkeypatch.setattr(sej.journal.arrival, "Watch", Noted)
    return begun


@pytest.mark.parametrize("offset", [sej.FIRST, sej.LAST, 0])
@pytest.mark.parametrize("folder", ["j", "missing/j", "."], ids=["missing", "parent missing", "empty directory"])
def test_a_scanner_reads_what_is_appended_to_a_journal_that_it_waited_for(
    offset: int, folder: str, waits: threading.Event, tmp_path: Path
) -> None:
    path = tmp_path / folder

    def read() -> list[bytes]:
        with sej.Scanner(path, offset, timeout=60, wait=True) as scanner:
            return [message.value for message in scanner.read(timeout="1m")]

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        assert waits.wait(60)
        assert not reading.done()
        with sej.Writer(path) as writer:
            writer.append(b"a")
            assert reading.result(60) == [b"a"]


def test_a_journal_that_exists_is_opened_as_without_waiting(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.append(b"a")
    with sej.Scanner(tmp_path, sej.LAST, wait=True) as scanner:
        assert scanner.offset == 1
    with sej.Scanner(tmp_path, wait=True) as scanner:
        assert [message.value for message in scanner] == [b"a"]


@pytest.mark.parametrize("timeout", [0.0, 0.02])
def test_a_journal_that_does_not_come_in_time_is_not_found(timeout: float, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(sej.JournalNotFoundError) as raised:
        sej.Scanner(tmp_path / "j", timeout=timeout, wait=True)
    assert raised.value.path == str(tmp_path / "j")
    assert time.monotonic() - begun >= timeout
    assert not (tmp_path / "j").exists()


def test_what_is_not_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "src").write_bytes(b"x")
    for name in ("file", "other"):
        with pytest.raises(sej.NotAJournalError):
            sej.Scanner(tmp_path / name, timeout=None, wait=True)


def test_a_journal_that_is_being_created_is_waited_for(
    waits: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sej.journal.arrival, "_GRACE_S", 60.0)
    (tmp_path / "jnl.lck").touch()  # a writer may have created this much
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(sej.Scanner, tmp_path, timeout=60, wait=True)
        assert waits.wait(60)
        (tmp_path / "jnl").mkdir()
        opening.result(60).close()


def test_the_asyncio_scanner_refuses_to_block_its_loop(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a scanner has no option 'wait'"):
        sej.aio.Scanner(tmp_path / "j", wait=True)


@pytest.mark.parametrize("words", [["follow", "--start", "0"], ["follow", "--reader", "r"], ["tail", "-f"]], ids=str)
def test_a_command_follows_a_journal_that_is_created_later(words: list[str], tmp_path: Path) -> None:
    with start(*words, "--wait", tmp_path / "j") as running:
        assert running.stdout is not None
        with sej.Writer(tmp_path / "j") as writer:
            writer.append_many([b"first", b"second"])
            assert running.stdout.readline().endswith(b"first\n")
            assert running.stdout.readline().endswith(b"second\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130


def test_a_worker_takes_items_from_a_queue_that_is_created_later(tmp_path: Path) -> None:
    with start("queue", "get", "-f", "--wait", tmp_path / "j") as running:
        assert running.stdout is not None
        with sej.Writer(tmp_path / "j") as writer:
            writer.append(b"job")
        assert running.stdout.readline() == b"job\n"
        assert running.wait(20) == 0
    done = command("queue", "get", "--wait", "--timeout", "0.01", tmp_path / "missing")
    assert done.returncode == command("tail", tmp_path / "missing").returncode
    assert not (tmp_path / "missing").exists()
    assert command("queue", "get", "--wait", tmp_path / "q.tq").returncode == 2


def test_a_command_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    done = command("follow", "--wait", "--timeout", "0.01", tmp_path / "j")
    missing = command("follow", "--timeout", "0.01", tmp_path / "j")
    assert done.returncode == missing.returncode != 0
    assert done.stderr == missing.stderr
    assert command("tail", "--wait", tmp_path / "j").returncode == 2
