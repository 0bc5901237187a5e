"""The files next to a queue are hidden. A queue with the names of an older version is moved when no process uses it."""

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sej.system.disk import OsDisk
from tests.cli.command import COMMAND, ENV
from textqueue import FileInUseError, TextQueue
from textqueue.ledger import sidecar

ENDINGS = ("lck", "log", "durable")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue as an older version left it: one message is done, and the names are the old ones."""
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        q.append_many(["a", "b", "c"])
        next(iter(q.messages())).mark_as_cleared()
        q.sync()
    for ending in ENDINGS:
        (tmp_path / f".jobs.tq.{ending}").rename(tmp_path / f"jobs.tq.{ending}")
    return path


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if one != path)


HIDDEN = sorted(f".jobs.tq.{ending}" for ending in ENDINGS)
OLD = sorted(f"jobs.tq.{ending}" for ending in ENDINGS)


@contextmanager
def older_version(path: Path) -> Iterator[None]:
    """A process of an older version has its lock file open as long as it has the queue open."""
    with Path(f"{path}.lck").open("ab"):
        yield


def test_files_of_an_older_version_are_moved(path: Path) -> None:
    stale = path.read_bytes().replace(b"=a", b"-a")
    with TextQueue(path) as q:
        q.append("d")
        assert names(path) == HIDDEN
        path.write_bytes(stale)
        assert [m.value for m in q.messages()] == ["b", "c"], "the ledger has the mark of the older version"
        assert [conflict.kind for conflict in q.conflicts] == ["reverted", "removed"]


def test_while_an_older_version_runs_the_old_names_are_used(path: Path) -> None:
    with older_version(path), TextQueue(path) as q, TextQueue(path) as other:
        claim, second = q.take(), other.take()
        assert claim is not None
        assert second is not None
        assert (claim.message.value, second.message.value) == ("b", "c"), "both use the same lock and ledger"
        q.sync()
        assert names(path) == OLD
        assert claim.done()
        assert second.done()
    assert names(path) == OLD
    with TextQueue(path) as q:
        assert q.get_next() is None
        q.append("d")
        assert names(path) == HIDDEN
    assert path.read_bytes() == b"=a\n=b\n=c\n-d\n"


def test_a_process_of_this_version_keeps_the_names_that_it_uses(path: Path) -> None:
    with older_version(path):
        first = TextQueue(path)
        claim = first.take()
        assert claim is not None
    with closing(first), TextQueue(path) as q:
        second = q.take()
        assert second is not None
        assert second.message.value == "c"
        assert names(path) == OLD, "the first has the old lock file open"
        claim.done()
        second.done()
    with TextQueue(path) as q:
        q.append("d")
    assert names(path) == HIDDEN


class _StopError(Exception):
    pass


class Stops(OsDisk):
    """Dies at the k-th change of a name."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise _StopError

    def rename(self, source: object, target: object) -> None:
        self._step()
        super().rename(source, target)  # type: ignore[arg-type]

    def unlink(self, path: object) -> None:
        self._step()
        super().unlink(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", range(1, 5))
def test_an_interrupted_move_is_completed(path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    stale = path.read_bytes().replace(b"=a", b"-a")
    with pytest.raises(_StopError), TextQueue(path, disk=Stops(at)) as q:
        q.append("never")
    assert "jobs.tq.lck" in names(path)
    if at > 1 and any(name.startswith(".") and not name.endswith(".lck") for name in names(path)):
        monkeypatch.setattr(sidecar, "_MOVE_S", 0.01)
        with older_version(path), TextQueue(path) as q, pytest.raises(FileInUseError, match="older version"):
            q.append("never")
    with TextQueue(path) as q:
        q.append("d")
        assert names(path) == HIDDEN
        path.write_bytes(stale)
        assert [m.value for m in q.messages()] == ["b", "c"]


def test_an_older_version_on_a_queue_with_hidden_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "_MOVE_S", 0.01)
    monkeypatch.setattr("textqueue.ledger.lock._LOOK_S", 0.0)
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        q.append("a")
        with older_version(path):
            with pytest.raises(FileInUseError, match=r"remove .*jobs\.tq\.lck"):
                q.append("b")
            with TextQueue(path) as other, pytest.raises(FileInUseError, match="older version"):
                other.append("c")
    with TextQueue(path) as q:
        q.append("d")
    assert path.read_bytes() == b"-a\n-d\n"
    assert names(path) == [".jobs.tq.lck", ".jobs.tq.log"]


def test_processes_that_begin_together_share_every_message_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    texts = [f"m{number}\n" for number in range(40)]
    with TextQueue(path) as q:
        q.append_many(texts)
    for ending in ("lck", "log"):
        (tmp_path / f".jobs.tq.{ending}").rename(tmp_path / f"jobs.tq.{ending}")
    command = [*COMMAND, "tq", "claim", "--all", str(path), "--", "cat"]
    workers = [subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert {worker.returncode for worker in workers} <= {0, 4}
    done = itertools.chain.from_iterable(output.splitlines(keepends=True) for output in outputs)
    assert sorted(done) == sorted(texts)
    with TextQueue(path) as q:
        assert q.get_next() is None
        q.append("end")
    assert names(path) == [".jobs.tq.lck", ".jobs.tq.log"]
