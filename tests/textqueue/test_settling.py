"""A last message that another program writes in several steps is complete before a worker takes it."""

import os
from pathlib import Path

import pytest

import sej
from tests.textqueue.claiming import MUTEX, got, plain
from tests.textqueue.claiming import taken as one_taken
from textqueue import TextQueue

HOUR = 3600.0


def taken(q: TextQueue) -> list[str]:
    """Return what a worker takes, without the wait for a message that may still grow."""
    return [claim.message.value for claim in iter(q._take_now, None)]


def test_a_message_that_is_written_in_two_steps_is_taken_whole(path: Path) -> None:
    path.write_bytes(b"-first\n-a\n")
    with TextQueue(path, settle_s=HOUR) as q, TextQueue(path, settle_s=HOUR) as reader:
        assert [getattr(reader._get_next(), "value", None) for _ in range(2)] == ["first", None]
        assert taken(q) == ["first"]
        assert [message.value for message in reader.messages()] == ["first", "a"]
        with path.open("ab") as file:
            file.write(b" b\n\\retries=3\n")
        assert taken(q) == []
        os.utime(path, (1e9, 1e9))
        assert got(reader).value == "a\nb"
        claim = one_taken(q)
        assert (claim.message.value, claim.done()) == ("a\nb", True)
    assert plain(path) == b"-first\n=a\n b\n\\retries=2\n"


def test_an_edit_of_a_program_does_not_complete_what_another_one_writes(path: Path) -> None:
    path.write_bytes(b"-first\n-a\n")
    with TextQueue(path, settle_s=HOUR) as q:
        assert one_taken(q).done()
        assert taken(q) == []


@pytest.mark.parametrize("before", [b"", b"-of a person\n", b"-of a person"])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_a_program_appends_is_taken_without_a_wait(path: Path, before: bytes, compacted: bool) -> None:
    path.write_bytes(before)
    with TextQueue(path, settle_s=HOUR) as q, TextQueue(path, settle_s=HOUR) as other:
        q.append("one", [MUTEX])
        q.append_many(["two", "three"])
        if compacted:
            ledger = q._inputs.found[0].source.file.ledger
            for _ in range(8):
                assert one_taken(q).give_back()
            lines = ledger.lines
            with q._inputs.found[0].source.file:
                ledger.compact()
                assert ledger.lines < lines
        assert taken(other) == [*(["of a person"] if before else []), "one", "two", "three"]
        q.append("four")
        message = q._get_next()
        while message is not None and message.value != "four":
            message = q._get_next()
        assert message is not None


def test_the_last_message_of_an_old_file_is_taken_without_a_wait(path: Path) -> None:
    path.write_bytes(b"-one\n-two\n-three\n")
    os.utime(path, (1e9, 1e9))
    with TextQueue(path, settle_s=HOUR) as q:
        assert taken(q) == ["one", "two", "three"]


def test_every_call_waits_for_the_last_message(path: Path) -> None:
    """A worker that ends when nothing is left does not leave it."""
    with TextQueue(path, settle_s=0.05) as q:
        path.write_bytes(b"-a\n")
        assert q.get_next() is not None
        path.write_bytes(b"-a\n-b\n")
        with q.claim() as a, q.claim() as b:
            assert (a and a.value, b and b.value) == ("a", "b")
        path.write_bytes(b"-c\n-d\n")
        with sej.Writer(path.with_name("journal")) as writer:
            assert q.drain_to(writer) == 2


def test_a_work_queue_waits_for_the_last_message(path: Path) -> None:
    path.write_bytes(b"-a\n")
    with sej.open_queue(path) as q:
        item = q.get(timeout=0)
        assert item is not None
        item.done()
