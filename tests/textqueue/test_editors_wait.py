"""No editor waits: no work that depends on the size of the file is done under the lease."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.textqueue.claiming import lined, plain, taken
from textqueue import MessageStatus, TextQueue
from textqueue.editing import archive_and_split, message, reconcile
from textqueue.format import windows

COUNT = 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"".join(b"-job %06d\n" % n for n in range(COUNT)))
    return path


def waits(path: Path) -> bool:
    """Return whether an editor that opens the file now must wait. It requests the file in any case."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except BlockingIOError:
        return True
    return False


@pytest.fixture
def asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Open the file as an editor does, at each window while the whole file is read."""
    asked: list[bool] = []
    real = windows.scan

    def scan(*arguments: Any) -> Iterator[windows.Window]:
        for window in real(*arguments):
            asked.append(waits(path))
            yield window

    for module in (windows, reconcile, archive_and_split):
        monkeypatch.setattr(module, "scan", scan)
    return asked


def test_a_stale_save_is_reconciled_without_the_lease(path: Path, asked: list[bool]) -> None:
    stale = lined(path.read_bytes())
    path.write_bytes(stale)
    with TextQueue(path) as q:
        messages = list(q.messages())
        for message in messages[:100]:
            message.mark_as_cleared()
        path.write_bytes(b"# note\n" + stale)
        assert taken(q).message.value == "job 000100"
        assert len(q.conflicts) == 100
    assert len(asked) > 2
    assert not any(asked)


def test_a_message_that_moved_is_searched_for_one_window_at_a_time(path: Path, asked: list[bool]) -> None:
    with TextQueue(path) as q:
        last = list(q.messages())[-1]
        path.write_bytes(b"# note\n" + path.read_bytes())
        last.mark_as_cleared()
    assert len(asked) > 2
    assert sum(asked) <= 1, "the first window, after which the lease is given up"
    assert plain(path).endswith(b"\n=job %06d\n" % (COUNT - 1))


def test_an_archive_copies_without_the_lease(path: Path, tmp_path: Path, asked: list[bool]) -> None:
    with TextQueue(path) as q:
        q.mark_many(list(q.messages())[::2], MessageStatus.cleared)
        assert q.archive(tmp_path / "done") == COUNT // 2
    assert len(asked) > 2
    assert not any(asked)


def test_an_archive_keeps_a_save_that_was_made_meanwhile(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"-a\n-b\n-c\n")
    with TextQueue(path) as q:
        next(q.messages()).mark_as_cleared()
        real = archive_and_split._append
        saved: list[int] = []

        def append(*arguments: Any) -> None:
            real(*arguments)
            if not saved:
                saved.append(path.write_bytes(path.read_bytes() + b"-written meanwhile\n"))

        monkeypatch.setattr(archive_and_split, "_append", append)
        assert q.archive(tmp_path / "done") == 1
    assert plain(path) == b"-b\n-c\n-written meanwhile\n"
    assert plain(tmp_path / "done") == b"=a\n"


def test_a_claim_after_many_done_messages_lets_an_editor_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(lined(path.read_bytes().replace(b"-", b"=") + b"-to do\n"))
    asked: list[bool] = []
    real = windows.read_window

    def read_window(*arguments: Any, **options: Any) -> windows.Window:
        asked.append(waits(path))
        return real(*arguments, **options)

    monkeypatch.setattr(windows, "read_window", read_window)
    with TextQueue(path) as q:
        assert taken(q).done()
    assert len(asked) > 3
    assert sum(asked) <= 1


def test_an_append_does_not_wait_for_its_own_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process opens the file while an append is about to be written: the kernel would wait for 45 seconds."""
    line_end = message._line_end

    def opened_meanwhile(*arguments: Any) -> tuple[bytes, bytes]:
        with suppress(BlockingIOError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return line_end(*arguments)

    monkeypatch.setattr(message, "_line_end", opened_meanwhile)
    before = path.read_bytes()
    start = time.monotonic()
    with TextQueue(path) as q:
        q.append("new")
    assert time.monotonic() - start < 20
    assert plain(path) == before + b"-new\n"
