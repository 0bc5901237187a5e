"""Ctrl-C while a worker takes and ends items of a text queue."""

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import sej
import textqueue
from sej.system.disk import OsFile
from tests.sej.interrupts import interrupt, locked_below
from tests.textqueue.claiming import plain
from textqueue.editing.queue_file import QueueFile


def leased_below(path: Path) -> list[str]:
    """Return the leased files below a directory: a program that opens one waits for 45 seconds."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith(f"{path}/") and fcntl.fcntl(int(number), fcntl.F_GETLEASE) != fcntl.F_UNLCK:
                found.append(os.path.relpath(name, path))
                fcntl.fcntl(int(number), fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except FileNotFoundError:  # the descriptor of the list
            continue
    return found


def test_a_worker_that_is_interrupted_closes_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "warm.tq"

    def work() -> None:
        with sej.open_queue(path) as queue:
            queue.put(b"one")
            item = queue.get(timeout=0)
            assert item is not None
            item.done()

    work()
    for place in count(1, 7):
        path = tmp_path / f"{place}.tq"
        reached, error = interrupt(work, place, KeyboardInterrupt)
        if not reached:
            assert error is None
            break
        assert type(error) is KeyboardInterrupt, (place, error)
        error = None
        assert leased_below(tmp_path) == [], place
        assert locked_below(tmp_path) == [], place
        if path.exists():
            with textqueue.TextQueue(path) as queue:
                assert [message.value for message in queue.messages(set(textqueue.MessageStatus))] in ([], ["one"])
    assert place > 200


def test_an_interrupt_leaves_no_lease_when_the_queue_is_closed(tmp_path: Path) -> None:
    for place in count(1, 3):
        path = tmp_path / str(place) / "jobs.tq"
        path.parent.mkdir()
        queue = textqueue.TextQueue(path)
        messages = queue.append_many(["one", "two", "three"], ["step=1"])

        def work(queue: textqueue.TextQueue = queue, messages: list[textqueue.Message] = messages) -> None:
            for message in messages[:2]:
                message.mark_as_cleared()
            messages[2]["step"] = "2"
            messages[2].mark_as_cleared()
            queue.close()

        reached, error = interrupt(work, place, KeyboardInterrupt)
        if not reached:
            assert error is None
            break
        assert type(error) is KeyboardInterrupt, (place, error)
        queue.close()
        assert leased_below(path.parent) == [], place
        assert locked_below(path.parent) == [], place
        error = None
        with textqueue.TextQueue(path) as other:  # what was marked is marked, and the rest can be
            for message in other.messages():
                message.mark_as_cleared()
            assert other.conflicts == []
    assert place > 250


def test_a_lock_is_free_after_an_interrupt_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: OsFile) -> None:
        raise KeyboardInterrupt

    with textqueue.TextQueue(tmp_path / "jobs.tq") as q:
        q.append("a")
        monkeypatch.setattr(OsFile, "unlock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.append("b")
        monkeypatch.undo()
        assert locked_below(tmp_path) == []
        q.append("c")
        assert plain(tmp_path / "jobs.tq") == b"-a\n-b\n-c\n"


def append(q: textqueue.TextQueue) -> None:
    q.append("main")


def mark(q: textqueue.TextQueue) -> None:
    q.append("main")
    for message in list(q.messages()):
        message.mark_as_cleared()


@pytest.mark.parametrize("work", [append, mark])
def test_a_handler_in_the_middle_of_a_call_is_refused_or_appends(
    tmp_path: Path, work: Callable[[textqueue.TextQueue], None]
) -> None:
    found: set[bool] = set()
    for place in count(1, 11):
        path, start = tmp_path / f"{place}.tq", time.monotonic()
        path.write_bytes(b"-a\n-b\n-c\n")
        appended: list[bool] = []
        with textqueue.TextQueue(path) as q:

            def handler(q: textqueue.TextQueue = q, appended: list[bool] = appended) -> None:
                try:
                    q.append("handler")
                except textqueue.FileInUseError:
                    appended.append(False)
                else:
                    appended.append(True)

            assert interrupt(partial(work, q), place, handler)[1] is None, place
            texts = sorted(message.value for message in q.messages(set(textqueue.MessageStatus)))
        if not appended:
            break
        assert texts == sorted(["a", "b", "c", "main"] + ["handler"] * appended[0]), place
        assert time.monotonic() - start < 20, "it waits for its own lease for 45 seconds"
        found |= set(appended)
    assert found == {False, True}


def test_a_queue_is_not_closed_by_a_handler_in_the_middle_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.tq"
    q, real = textqueue.TextQueue(path), QueueFile.start

    def start(session: QueueFile) -> None:
        with pytest.raises(textqueue.FileInUseError, match="a signal handler interrupted a call"):
            q.close()
        real(session)

    monkeypatch.setattr(QueueFile, "start", start)
    q.append("a")
    q.append("b")
    q.close()
    assert plain(path) == b"-a\n-b\n"
