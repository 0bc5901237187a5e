"""Files with two versions: conflicts of Git, and conflict copies of programs that synchronise files."""

from pathlib import Path

import pytest

import textqueue
from tests.textqueue.claiming import plain
from textqueue import TextQueue, TextQueueError, check

MERGE = b"""<<<<<<< HEAD
=pay invoice 1
-pay invoice 2
||||||| 3f1
-pay invoice 1
=======
-pay invoice 1
-pay invoice 3
>>>>>>> branch
-call
"""


def refused(q: TextQueue, what: str) -> None:
    for take in (q.take, q.get_next):
        with pytest.raises(TextQueueError, match=what):
            take()


def taken(q: TextQueue) -> list[str]:
    return [claim.message.value for claim in iter(q.take, None)]


def test_no_worker_takes_a_message_of_a_file_with_conflict_markers(path: Path) -> None:
    path.write_bytes(MERGE)
    with TextQueue(path) as q:
        refused(q, r"line 1 is a conflict marker.*remove the markers")
        with pytest.raises(TextQueueError, match=r"line 1 is a conflict marker"):
            q.archive(path.with_name("done.tq"))
        assert plain(path) == MERGE
        found = [(problem.line, problem.severity) for problem in check(path)]
        assert found == [(1, "error"), (4, "error"), (6, "warning"), (9, "error")]
        path.write_bytes(b"=pay invoice 1\n-pay invoice 2\n-pay invoice 3\n-call\n")
        assert [message.value for message in iter(q.get_next, None)] == ["pay invoice 2", "pay invoice 3", "call"]
        assert taken(q) == ["pay invoice 2", "pay invoice 3", "call"]
    assert not check(path)


@pytest.mark.parametrize("size", range(16370, 16390))
def test_a_conflict_among_the_variables_of_a_message_is_found_wherever_it_is(path: Path, size: int) -> None:
    first = b"=" + b"x" * (size - 6) + b"\n"
    path.write_bytes(first + b"-jo\n<<<<<<< HEAD\n\\retries=2\n=======\n\\retries=1\n>>>>>>> branch\n" + b"-y\n" * 9000)
    with TextQueue(path) as q:
        refused(q, "line 3 is a conflict marker")


def test_a_text_like_a_marker_is_a_message(path: Path) -> None:
    path.write_bytes(b"-<<<<<<< a\n <<<<<<< b\n\\<<<<<<< c\n")
    with TextQueue(path) as q:
        assert q.get_next() is not None
    assert not check(path)


@pytest.mark.parametrize(
    "name",
    [
        "web.sync-conflict-20261128-101500-ABCDEFG.tq",
        "web (ann's conflicted copy 2026-11-28).tq",
        "web (conflicted copy 2026-11-28 101500).tq",
        "web_conflict-20261128-101500.tq",
    ],
)
def test_no_worker_takes_a_message_of_a_conflict_copy(tmp_path: Path, name: str) -> None:
    (tmp_path / "web.tq").write_bytes(b"=one\n-two\n")
    copy = tmp_path / name
    copy.write_bytes(b"-one\n-two\n-three\n")
    with TextQueue(copy) as q:
        refused(q, "a conflict copy of 'web.tq', so none of its messages is delivered")
        assert [problem.severity for problem in textqueue.check(copy)] == ["error"]
    (tmp_path / "web.tq").write_bytes(b"=one\n-two\n-three\n")
    copy.unlink()
    with TextQueue(tmp_path) as q:
        assert [message.value for message in iter(q.get_next, None)] == ["two", "three"]
