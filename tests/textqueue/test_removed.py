"""Messages that a program appended and that a stale save removed are reported."""

from pathlib import Path

import pytest

from tests.textqueue.claiming import MUTEX, plain
from textqueue import TextQueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_text("-old\n")
    return path


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
    with TextQueue(path) as q:
        q.append_many(["a", "b", "c"])
    path.write_text("-old\n-a\n-c\n")
    assert look(path).conflicts == []
    assert plain(path).decode() == "-old\n-a\n-c\n"


@pytest.mark.parametrize("control", ["=", "!", "#"])
def test_a_message_that_a_user_marks_or_comments_out_is_not_removed(path: Path, control: str) -> None:
    with TextQueue(path) as q:
        q.append("a")
    path.write_text(f"-old\n{control}a\n")
    assert look(path).conflicts == []
    assert plain(path).decode() == f"-old\n{control}a\n"


def test_an_append_is_not_reported_while_an_editor_is_saving(path: Path) -> None:
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
