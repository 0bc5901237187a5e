"""Equal messages in old buffers: what programs did to them is counted, and nothing is done to a new one."""

import itertools
from pathlib import Path

import pytest

from tests.textqueue.claiming import lined, plain, rewrite
from textqueue import MessageStatus, TextQueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.tq"


def finish(q: TextQueue) -> int:
    claim = q.take()
    assert claim is not None
    assert claim.done()
    return claim.message.position


def reopen(q: TextQueue) -> None:
    next(q.messages({MessageStatus.cleared})).mark_as_queued()


def rest(q: TextQueue) -> int:
    """Return how many messages are delivered."""
    return len(list(itertools.takewhile(lambda _: (claim := q.take()) is not None and claim.done(), itertools.count())))


@pytest.mark.parametrize("above", [b"", b"# a note\n"], ids=["no line moves", "lines move"])
def test_marks_of_several_epochs_are_counted(path: Path, above: bytes) -> None:
    """The first is marked and queued again, and the second is marked: so one is done."""
    path.write_bytes(lined(b"-a\n-a\n-b\n"))
    with TextQueue(path) as q:
        old = path.read_bytes()
        finish(q)
        rewrite(path, above + plain(path))
        reopen(q)
        first, second, _ = q.messages({MessageStatus.queued})
        second.mark_as_cleared()
        path.write_bytes(old)
        assert [m.value for m in q.messages()] == ["a", "b"]
        assert plain(path) == b"-a\n=a\n-b\n", "the mark is where the program made it"
        assert first.value == "a"


def test_a_compaction_keeps_the_epochs(path: Path) -> None:
    """In two epochs, one position may be that of two messages."""
    path.write_bytes(lined(b"-a\n-b\n-a\n"))
    with TextQueue(path) as q:
        old = path.read_bytes()
        (*_, last) = q.messages()
        last.mark_as_cleared()
        rewrite(path, b"-b\n-d\n-a\n=a\n-e\n")
        *_, first, _ = q.messages()
        assert first.position == last.position
        first.mark_as_cleared()
        rewrite(path, b"-b\n-d\n=a\n=a\n-e\n-f\n")
        for _ in range(20):
            claim = q.take()
            assert claim is not None
            assert claim.give_back()
        ledger = q._inputs.sources[0].file.ledger
        lines = ledger.lines
        ledger.compact()
        assert ledger.lines < lines
        path.write_bytes(old)
        assert [m.value for m in q.messages()] == ["b"]


def test_a_second_queue_file_at_the_end_makes_no_mark_again(path: Path) -> None:
    path.write_bytes(b"-a\n-b\n")
    with TextQueue(path) as q:
        finish(q)
        rewrite(path, b"-a\n-b\n")
        with path.open("ab") as file:
            file.write(lined(b"-a\n-c\n", 0))
        assert [m.value for m in q.messages()] == ["a", "b", "a", "c"]
        assert rest(q) == 4
        assert q.conflicts == []
    assert plain(path) == b"=a\n=b\n#queue\n\\seq=            \n=a\n=c\n"


@pytest.mark.parametrize("buffer", [b"-b\n-a\n", b"-a\n=a\n-b\n", b"-b\n=a\n-a\n"])
def test_a_message_that_a_person_marked_and_queues_again_after_an_archive_run(path: Path, buffer: bytes) -> None:
    """In the buffer from before the run. What the program has marked is removed again."""
    path.write_bytes(lined(b"-a\n-b\n-c\n"))
    with TextQueue(path) as q:
        assert q.take() is not None
        rewrite(path, b"=a\n-b\n-c\n")
        head = path.read_bytes().partition(b"=a")[0]
        assert q.archive(path.with_name("old.tq")) == 1
        path.write_bytes(head + buffer)
        assert sorted(m.value for m in q.messages()) == ["a", "b"]
