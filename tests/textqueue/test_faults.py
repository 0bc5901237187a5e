"""The k-th call to the disk fails: it raises, the file remains valid, and the next attempt delivers everything."""

import re
import resource
import threading
from pathlib import Path

import pytest

from sej.system.disk import OS
from tests.crash.disk import FaultyDisk
from tests.textqueue.claiming import lined, plain, taken
from textqueue import Message, MessageStatus, TextQueue

MUTEX = "mutex=" + " " * 30


def work(q: TextQueue, done: list[str]) -> None:
    """Make every operation that changes a file."""
    q.append("a\nb", ["retries=3", MUTEX])
    q.append_many(["c", "d"])
    with q.claim() as m:
        assert m is not None
    done.append("claimed")
    first = next(q.messages())
    first.mark_as_cleared()
    done.append("marked")
    q.mark_many(list(q.messages())[:1], MessageStatus.critical)
    q.append("e", ["v=    "])["v"] = "1"
    q.archive(Path(first.path).with_name("done.tq"))


WHOLE = re.compile(
    rb"(?:[-=!]a\n b\n\\retries=[32]\n\\mutex=.{30}\n)?(?:[-=!]c\n)?(?:[-=!]d\n)?(?:[-=!]e\n\\v=(?:    |1   )\n)?"
)


@pytest.mark.parametrize("fault", ["eio", "enospc", "short"])
@pytest.mark.parametrize("fail_at", range(1, 60))
def test_whatever_call_fails_the_file_stays_whole(tmp_path: Path, fail_at: int, fault: str) -> None:
    path = tmp_path / "jobs.tq"
    disk = FaultyDisk(OS, fail_at, fault)  # type: ignore[arg-type]
    done: list[str] = []
    q = TextQueue(path, disk=disk)
    try:
        work(q, done)
    except OSError:
        assert disk.failed
    data = plain(path) if path.exists() else b""
    assert WHOLE.fullmatch(data), data
    q.close()
    # The same process continues with a disk that works.
    with TextQueue(path) as again:
        again.append("after")
        found = [m.value for m in again.messages()]
        assert found[-1] == "after"
        for m in again.messages():
            m.mark_as_cleared()
        assert again.get_next() is None
        assert not [conflict for conflict in again.conflicts if conflict.kind == "collision"]


@pytest.mark.parametrize("variables", [[], [MUTEX]])
@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_claim_whose_end_failed_can_be_ended_again(tmp_path: Path, fail_at: int, variables: list[str]) -> None:
    path = tmp_path / "jobs.tq"
    disk = FaultyDisk(OS, 0, "enospc")
    with TextQueue(path, disk=disk) as q:
        q.append("a", variables)
        claim = taken(q)
        disk.fail_at = disk.calls + fail_at
        try:
            assert claim.done()
        except OSError:
            assert claim.done()
        assert q.conflicts == []
        assert plain(path)[:2] == b"=a"
        assert q.take() is None


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("variables", [[], ["retries=2"], [MUTEX, "retries=2"]])
@pytest.mark.parametrize("fail_at", range(1, 10))
def test_a_message_whose_claim_failed_is_taken_again_by_this_process(
    tmp_path: Path, fail_at: int, variables: list[str], first: bool
) -> None:
    disk = FaultyDisk(OS, 0, "enospc")
    with TextQueue(tmp_path / "jobs.tq", disk=disk) as q:
        q.append_many(["a", "b"], variables)
        if not first:  # an earlier claim prepares the next one
            assert taken(q).done()
        before = plain(tmp_path / "jobs.tq")
        disk.fail_at = disk.calls + fail_at
        try:
            claim = taken(q)
        except OSError:
            assert plain(tmp_path / "jobs.tq") == before
            claim = taken(q)
        disk.fail_at = 0
        assert claim.message.value == ("a" if first else "b")
        assert not variables or claim.message["retries"] == "1"


@pytest.mark.parametrize("variables", [[], [MUTEX]])
def test_a_close_that_cannot_give_a_message_back_warns(tmp_path: Path, variables: list[str]) -> None:
    path = tmp_path / "jobs.tq"
    disk = FaultyDisk(OS, 0, "enospc")
    q = TextQueue(path, disk=disk)
    q.append("a", variables)
    assert q.take() is not None
    disk.fail_at = disk.calls + 1
    with pytest.warns(RuntimeWarning, match="jobs.tq: messages could not be given back.*until this process ends"):
        q.close()
    with TextQueue(path) as other:
        assert other.take() is None


@pytest.mark.parametrize("first", [True, False])
def test_a_claim_on_a_full_disk_changes_nothing(tmp_path: Path, first: bool) -> None:
    """With a limit of the size of files, which is that of the ledger."""
    path, limits = tmp_path / "jobs.tq", resource.getrlimit(resource.RLIMIT_FSIZE)
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "b"], [MUTEX, "retries=2"])
        for _ in range(3):
            claim = taken(q)
            assert claim.give_back()
        before, room = plain(path), path.with_name(".jobs.tq.log").stat().st_size
        assert room > len(before)
        worker = other if first else q
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
            for _ in range(4):
                with pytest.raises(OSError, match="File too large"):
                    worker.take()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert plain(path) == before
        claim = taken(worker)
        assert (claim.message.value, claim.message["retries"]) == ("a", "1")


# --- Marks that follow each other closely, while other programs save the file


COUNT = 50
LINES = [b"-message %02d\n" % n for n in range(COUNT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(lined(b"".join(LINES)))
    return path


def begun(q: TextQueue) -> list[Message]:
    """Mark the first three messages, and return all."""
    found = list(q.messages())
    for message in found[:3]:
        message.mark_as_cleared()
    return found


def cleared(count: int) -> bytes:
    return b"".join(b"=" + line[1:] for line in LINES[:count]) + b"".join(LINES[count:])


def test_threads_share_a_queue(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)[3:]

        def work(part: list[Message]) -> None:
            for message in part:
                message.mark_as_cleared()

        threads = [threading.Thread(target=work, args=(messages[start::3],)) for start in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert plain(path) == cleared(COUNT)


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failed_write_is_an_error_and_later_marks_succeed(path: Path, fail_at: int) -> None:
    disk = FaultyDisk(OS, 10_000, "enospc")
    with TextQueue(path, disk=disk) as q:
        messages = begun(q)
        disk.fail_at = disk.calls + fail_at
        failed = 0
        for message in messages[3:10]:
            try:
                message.mark_as_cleared()
            except OSError:
                failed += 1
                message.mark_as_cleared()
        assert failed == 1
        assert disk.failed in ("write_at", "write")
        assert q.conflicts == []
    assert plain(path) == cleared(10)
