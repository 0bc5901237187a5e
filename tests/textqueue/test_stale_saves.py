"""A message that is done is not delivered again after a save of an old buffer, whatever happened in between."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.textqueue.claiming import MUTEX, lined, plain, rewrite, taken
from textqueue import MessageStatus, TextQueue
from textqueue.editing import reconcile


def finish(q: TextQueue) -> str:
    claim = taken(q)
    assert claim.done()
    return claim.message.value


def waiting(q: TextQueue) -> list[str]:
    """Let the queue look at the file, as a worker does."""
    claim = q.take()
    if claim is not None:
        claim.give_back()
    return [m.value for m in q.messages()]


@pytest.mark.parametrize(
    ("saved", "done"),
    [
        (b"=a\n-b\n-changed\n-kept\n", b"-changed\n-kept\n"),  # a mark of the run is back
        (b"-b\n-changed\n-kept\n", b"-changed\n-kept\n"),  # most of them are not back
    ],
)
def test_an_archive_run_and_a_save_in_which_one_of_its_messages_was_changed(
    path: Path, tmp_path: Path, saved: bytes, done: bytes
) -> None:
    path.write_bytes(b"-a\n-b\n-c\n-kept\n")
    with TextQueue(path) as q:
        assert [finish(q) for _ in range(3)] == ["a", "b", "c"]
        assert q.archive(tmp_path / "old.tq") == 3
        path.write_bytes(saved)
        waiting(q)
    assert plain(path) == done


def test_a_save_from_before_two_archive_runs(path: Path, tmp_path: Path) -> None:
    path.write_bytes(lined(b"=a\n-b\n-c\n-kept\n"))
    with TextQueue(path) as q:
        next(m for m in q.messages() if m.value == "b").mark_as_cleared()
        buffer = path.read_bytes()
        assert q.archive(tmp_path / "old.tq") == 2
        path.write_bytes(b"-d\n" + path.read_bytes())
        assert [finish(q) for _ in range(2)] == ["d", "c"]
        assert q.archive(tmp_path / "old.tq") == 2
        path.write_bytes(buffer)
        assert waiting(q) == ["kept"]
    assert plain(path) == b"-kept\n"


def test_a_person_reopens_a_message_while_another_program_has_the_file_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textqueue.editing.queue_file.SAVING_S", 0.0)
    path.write_bytes(b"-a\n-b\n-c\n")
    with path.open("rb"), TextQueue(path) as q:  # so that no edit gets a lease
        assert [finish(q), finish(q)] == ["a", "b"]
        rewrite(path, b"-a\n=b\n-c\n")
        assert waiting(q) == ["a", "c"]


@pytest.fixture
def restless(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Another program changes the file while it is examined, as often as the only number in the list says."""
    times = [0]

    def redo(work: Any, **options: Any) -> None:
        if times[0]:
            times[0] -= 1
            before = path.stat()
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        real(work, **options)

    real = reconcile._Replay.redo
    monkeypatch.setattr(reconcile._Replay, "redo", redo)
    return times


def test_the_end_of_a_claim_while_the_file_cannot_be_examined(path: Path, restless: list[int]) -> None:
    path.write_bytes(b"-a\n-b\n-c\n-d\n")
    with TextQueue(path) as q, TextQueue(path) as other:
        finish(q)
        buffer = path.read_bytes()
        finish(q)
        claim = taken(q)
        path.write_bytes(buffer)
        restless[:] = [8]
        assert claim.done()
        assert restless == [0]
        assert plain(path) == b"=a\n-b\n=c\n-d\n"
        assert waiting(other) == ["d"]
        assert [conflict.text for conflict in other.conflicts] == ["b"]


def tick(path: Path, buffer: bytes) -> None:
    """Save a buffer in place, within the same tick of the clock as the last edit."""
    before = path.stat()
    path.write_bytes(buffer)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("room", [b"", b"\\mutex=" + b" " * 60 + b"\n"])
@pytest.mark.parametrize("last", ["a claim", "a claim of another worker", "a message that was given back"])
def test_a_save_within_one_tick_of_a_claim(path: Path, last: str, room: bytes) -> None:
    """Only the mark shows that the file was saved: the claim after it is in the ledger only."""
    path.write_bytes(b"-a\n" + room + b"-b\n-c\n")
    with TextQueue(path) as q, TextQueue(path) as other:
        buffer = path.read_bytes()
        assert finish(q) == "a"
        claim = taken(other if last == "a claim of another worker" else q)
        if last == "a message that was given back":
            assert claim.give_back()
        tick(path, buffer)
        assert waiting(q) == ["b", "c"]
        assert [conflict.text for conflict in q.conflicts if conflict.kind == "reverted"] == ["a"]


@pytest.mark.parametrize("above", [b"", b"# a note\n"], ids=["no line moves", "lines move"])
def test_marks_of_several_epochs_are_counted(path: Path, above: bytes) -> None:
    """The first is marked and queued again, and the second is marked: so one is done."""
    path.write_bytes(lined(b"-a\n-a\n-b\n"))
    with TextQueue(path) as q:
        old = path.read_bytes()
        finish(q)
        rewrite(path, above + plain(path))
        next(q.messages({MessageStatus.cleared})).mark_as_queued()
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
            assert taken(q).give_back()
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
        assert [finish(q) for _ in range(4)] == ["a", "b", "a", "c"]
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


# --- Messages that a program appended and that a stale save removed are reported


def look(path: Path) -> TextQueue:
    """Let another program look at the file, as the next worker does."""
    with TextQueue(path) as q:
        claim = q.take()
        if claim is not None:
            claim.give_back()
    return q


@pytest.mark.parametrize("by_rename", [False, True])
@pytest.mark.parametrize("end", [b"# note\n", b"# note"])
def test_appends_that_a_stale_save_removed(path: Path, end: bytes, by_rename: bool) -> None:
    path.write_text("-old\n")
    with TextQueue(path) as q:
        q.append("first")
        buffer = path.read_bytes()
        q.append_many(["a", "b\nof two lines", "a"], ["step= ", MUTEX])
        if by_rename:
            path.with_name("new").write_bytes(buffer + end)
            path.with_name("new").replace(path)
        else:
            path.write_bytes(buffer + end)
    found = look(path).conflicts
    assert [conflict.kind for conflict in found] == ["removed"] * 3
    saved = (buffer + end).decode()
    assert plain(path).decode() == saved
    assert look(path).conflicts == [], "it is reported once"


def test_a_message_that_a_user_deletes_between_later_edits_is_gone(path: Path) -> None:
    path.write_text("-old\n")
    with TextQueue(path) as q:
        q.append_many(["a", "b", "c"])
    path.write_text("-old\n-a\n-c\n")
    assert look(path).conflicts == []
    assert plain(path).decode() == "-old\n-a\n-c\n"


@pytest.mark.parametrize("control", ["=", "!", "#"])
def test_a_message_that_a_user_marks_or_comments_out_is_not_removed(path: Path, control: str) -> None:
    path.write_text("-old\n")
    with TextQueue(path) as q:
        q.append("a")
    path.write_text(f"-old\n{control}a\n")
    assert look(path).conflicts == []
    assert plain(path).decode() == f"-old\n{control}a\n"


def test_an_append_is_not_reported_while_an_editor_is_saving(path: Path) -> None:
    path.write_text("-old\n")
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a")
        whole = path.read_bytes()
        with path.open("wb") as file:  # it has emptied the file, and writes it now
            assert other.take() is None
            assert other.conflicts == []
            file.write(whole)
        assert other.take() is not None
        assert other.conflicts == []
    assert plain(path) == whole


@pytest.mark.parametrize("lines", [b"", b"# a line above\n"])
@pytest.mark.parametrize("text", ["call the bank\nbefore 5 pm; 100 % sure", "größer" * 30])
def test_the_report_has_the_text_that_was_removed(path: Path, text: str, lines: bytes) -> None:
    """So that a person can write it again. Lines may have moved before."""
    path.write_bytes(b"-one\n")
    with TextQueue(path) as q:
        q.append(text, ["retries=3 "])
    path.write_bytes(lines + path.read_bytes())
    assert look(path).conflicts == []
    path.write_bytes(b"-one\n")
    (conflict,) = look(path).conflicts
    assert conflict.kind == "removed"
    assert text.startswith(conflict.text.rstrip("\N{REPLACEMENT CHARACTER}"))
    assert len(conflict.text.encode()) >= min(len(text.encode()), 76)
