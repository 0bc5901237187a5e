"""A second queue on a journal gets every message again, so it is created only if the caller requests it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import sej
from tests.cli.command import sej as command

BACKENDS = {"journal": "jobs", "textqueue": "jobs.tq", "kestrel": "spool/jobs", "libkestrel": "spool/jobs"}


def tree(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A journal with the queue ``worker``, whose one item is done."""
    path = tmp_path / "jobs"
    with sej.open_queue(path, "worker") as q:
        q.put(b"resize cat.png")
        q.get(timeout=0).done()  # type: ignore[union-attr]
    return path


@pytest.mark.parametrize("create", [None, False])
def test_a_name_that_is_not_there_is_refused_and_the_queues_are_listed(jobs: Path, create: Any) -> None:
    before = tree(jobs)
    with pytest.raises(sej.QueueNotFoundError, match=r"no queue 'queue'.*'worker'.*create=True") as raised:
        sej.open_queue(jobs, create=create)
    assert raised.value.names == ("worker",)
    assert raised.value.path == str(jobs)
    assert tree(jobs) == before


def test_the_refusal_says_first_how_to_open_the_queue_that_exists(jobs: Path) -> None:
    with pytest.raises(sej.QueueNotFoundError) as raised:
        sej.open_queue(jobs)
    assert "no queue 'queue' in this journal; it has 'worker': use name='worker' (--name worker). create" in str(
        raised.value
    )
    sej.open_queue(jobs, "audit", create=True).close()
    with pytest.raises(sej.QueueNotFoundError, match=r"it has 'audit', 'worker': use one of them, as in name='audit'"):
        sej.open_queue(jobs)


def test_a_second_queue_is_made_if_asked_for_and_is_there_from_then_on(jobs: Path) -> None:
    with sej.open_queue(jobs, "audit", create=True) as q:
        assert q.stats().ready == 1
    for create in (None, False, True):
        with sej.open_queue(jobs, "audit", create=create) as q:
            assert q.stats().ready == 1
        with sej.open_queue(jobs, "worker", create=create) as q:
            assert q.stats().done == 1
    with pytest.raises(sej.QueueNotFoundError, match="'audit', 'worker'"):
        sej.open_queue(jobs)


def test_the_first_queue_is_made_without_being_asked_for_and_a_reader_is_no_queue(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"job")
    with sej.Offset(tmp_path, "reader") as kept:
        kept.commit(1)
    with sej.open_queue(tmp_path, "worker") as q:
        assert q.stats().ready == 1


def test_create_false_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(sej.JournalNotFoundError):
        sej.open_queue(tmp_path / "missing", "worker", create=False)
    with sej.Writer(tmp_path / "jobs"):
        pass
    with pytest.raises(sej.QueueNotFoundError, match=r"create=True \(`sej queue put --create`\) creates it") as raised:
        sej.open_queue(tmp_path / "jobs", "worker", create=False)
    assert raised.value.names == ()
    assert not list((tmp_path / "jobs" / "ofs").iterdir())
    assert tree(tmp_path / "missing") == set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_create(backend: str, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    path = tmp_path / BACKENDS[backend]
    with pytest.raises(sej.SejError):
        sej.open_queue(path, "worker", backend=backend, create=False)
    assert not path.exists() and not list((tmp_path / "spool").iterdir())
    for create in (True, False, None):
        with sej.open_queue(path, "worker", backend=backend, create=create) as q:
            q.put(b"job")


def test_a_second_reader_of_a_libkestrel_queue_is_asked_for_too(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with sej.open_queue(path, "worker", backend="libkestrel") as q:
        q.put(b"job")
    before = tree(tmp_path)
    with pytest.raises(sej.QueueNotFoundError, match="'worker'"):
        sej.open_queue(path, "other", backend="libkestrel")
    assert tree(tmp_path) == before
    sej.open_queue(path, "other", backend="libkestrel", create=True).close()


def test_of_two_first_queues_at_the_same_moment_one_is_made(tmp_path: Path) -> None:
    start = Barrier(2)

    def first(name: str) -> str:
        start.wait()
        try:
            sej.open_queue(tmp_path, name).close()
        except sej.QueueNotFoundError as error:
            return f"refused, there is {error.names}"
        return "made"

    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(first, ("a", "b")))
    assert results in (["made", "refused, there is ('a',)"], ["made", "refused, there is ('b',)"])


def test_the_command_does_not_run_finished_work_again(jobs: Path) -> None:
    before = tree(jobs)
    for words in (("get", jobs), ("put", jobs, "x"), ("stats", jobs), ("redrive", jobs), ("purge", "--yes", jobs)):
        done = command("queue", *words)
        assert (done.returncode, done.stdout) == (4, b""), words
        assert b"no queue 'queue'" in done.stderr and b"'worker'" in done.stderr, words
        assert b"--create" in done.stderr
    assert tree(jobs) == before
    assert command("queue", "get", "--create", jobs).stdout == b"resize cat.png\n"
    assert command("queue", "get", "--name", "worker", jobs).returncode == 4
    assert command("queue", "put", "--create", "--name", "third", jobs, "x").returncode == 0


@pytest.mark.parametrize("words", [("put", "J", "x"), ("get", "J"), ("get", "--wait", "--timeout", "1s", "J"), ()])
def test_the_command_makes_no_items_of_the_messages_of_a_journal(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "orders"
    sej.Writer(path).close()
    with sej.Writer(path) as w:
        w.append(b"old")
    before = tree(path)
    given = ["queue", *words] if words else ["worker", "--until-empty", "J", "builtins:print"]
    done = command(*(str(path) if word == "J" else word for word in given))
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"`sej queue put --create`" in done.stderr
    assert tree(path) == before
    assert command("queue", "put", "--create", path, "new").returncode == 0
    assert command("queue", "get", "--count", "2", path).stdout == b"old\nnew\n"


def test_the_command_makes_the_queue_of_a_journal_without_messages(tmp_path: Path) -> None:
    sej.Writer(tmp_path / "jobs").close()
    assert command("queue", "get", tmp_path / "jobs").returncode == 4
    assert command("queue", "put", tmp_path / "jobs", "x").returncode == 0
    assert command("queue", "get", tmp_path / "jobs").stdout == b"x\n"
