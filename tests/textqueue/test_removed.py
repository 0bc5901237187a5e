"""Messages that a program appended and that a stale save removed: reported, or appended again."""

from pathlib import Path
from typing import Literal

import pytest

from sej.system.locks import lease
from tests.textqueue.claiming import MUTEX
from textqueue import InvalidTextError, MessageStatus, TextQueue
from textqueue.editing import removed
from textqueue.ledger import copies


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
@pytest.mark.parametrize("on_lost", ["report", "restore"])
def test_appends_that_a_stale_save_removed(
    path: Path, on_lost: Literal["report", "restore"], end: bytes, by_rename: bool
) -> None:
    with TextQueue(path, on_lost=on_lost) as q:
        q.append("first")
        buffer = path.read_bytes()
        names = [f"{m.position}" for m in q.append_many(["a", "b\nof two lines", "a"], ["step= ", MUTEX])]
        if by_rename:
            path.with_name("new").write_bytes(buffer + end)
            path.with_name("new").replace(path)
        else:
            path.write_bytes(buffer + end)
    found = look(path).conflicts
    assert [conflict.kind for conflict in found] == ["removed"] * 3
    saved = (buffer + end).decode()
    if on_lost == "report":
        assert [conflict.text.split(":")[0] for conflict in found] == names
        assert path.read_text() == saved
    else:
        assert [conflict.text for conflict in found] == ["a", "b\nof two lines", "a"]
        assert {conflict.action for conflict in found} == {"a save of an old buffer removed it: appended again"}
        more = f"\\step= \n\\{MUTEX}\n"
        newline = "" if saved.endswith("\n") else "\n"
        assert path.read_text() == f"{saved}{newline}-a\n{more}-b\n of two lines\n{more}-a\n{more}"
    assert look(path).conflicts == [], "it is reported once"


def test_an_append_is_restored_once_so_that_a_user_can_delete_it(path: Path) -> None:
    with TextQueue(path, on_lost="restore") as q:
        q.append("new")
    path.write_text("-old\n")
    assert [conflict.text for conflict in look(path).conflicts] == ["new"]
    assert path.read_text() == "-old\n-new\n"
    path.write_text("-old\n")
    assert [conflict.action.split(":")[-1] for conflict in look(path).conflicts] == [
        "a save of an old buffer removed it, or a user deleted it"
    ]
    assert path.read_text() == "-old\n"


@pytest.mark.parametrize("on_lost", ["report", "restore"])
def test_a_message_that_a_user_deletes_between_later_edits_is_gone(
    path: Path, on_lost: Literal["report", "restore"]
) -> None:
    with TextQueue(path, on_lost=on_lost) as q:
        q.append_many(["a", "b", "c"])
    path.write_text("-old\n-a\n-c\n")
    assert look(path).conflicts == []
    assert path.read_text() == "-old\n-a\n-c\n"


@pytest.mark.parametrize("on_lost", ["report", "restore"])
@pytest.mark.parametrize("control", ["=", "!", "#"])
def test_a_message_that_a_user_marks_or_comments_out_is_not_removed(
    path: Path, on_lost: Literal["report", "restore"], control: str
) -> None:
    with TextQueue(path, on_lost=on_lost) as q:
        q.append("a")
    path.write_text(f"-old\n{control}a\n")
    assert look(path).conflicts == []
    assert path.read_text() == f"-old\n{control}a\n"


def test_the_mark_of_a_user_in_an_old_buffer_does_not_hide_a_removed_message(path: Path) -> None:
    buffer = path.read_bytes()
    with TextQueue(path, on_lost="restore") as q:
        q.append("new")
        claim = q.take()
        assert claim is not None
        assert (claim.message.value, claim.done()) == ("old", True)
    path.write_bytes(buffer.replace(b"-old", b"#old"))
    assert [(one.text, one.kind) for one in look(path).conflicts] == [("new", "removed")]
    assert path.read_bytes() == b"#old\n-new\n", "and the user's mark stays"


def test_a_message_that_was_done_is_not_restored(path: Path) -> None:
    with TextQueue(path, on_lost="restore") as q:
        q.append("a").mark_as_cleared()
        q.append("b")
    path.write_text("-old\n")
    assert [conflict.text for conflict in look(path).conflicts] == ["b"]
    assert path.read_text() == "-old\n-b\n"


def test_a_message_that_a_worker_put_back_is_restored(path: Path) -> None:
    path.write_text("")
    with TextQueue(path, on_lost="restore") as q:
        q.append("a", ["retries=2", MUTEX])
        whole = path.read_text()
        for _ in range(2):
            path.write_text("# a line\n" + path.read_text())  # the ledger is rewritten
            claim = q.take()
            assert claim is not None
            claim.give_back()
        path.write_text("# a line\n")
        assert q.take() is not None
        assert [conflict.kind for conflict in q.conflicts] == ["removed"]
    assert path.read_text() == "# a line\n" + whole


def test_an_append_is_not_restored_while_an_editor_is_saving(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TextQueue(path, on_lost="restore") as q, TextQueue(path) as other:
        q.append("a")
        whole = path.read_bytes()
        with path.open("wb") as file:  # it has emptied the file, and writes it now
            assert other.take() is None
            assert other.conflicts == []
            file.write(whole)
        assert other.take() is not None
        assert other.conflicts == []
    assert path.read_bytes() == whole


def test_without_a_lease_a_removed_message_is_reported_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append("a")
        with path.open("rb"):  # another program has it open
            path.write_text("-old\n")
            assert other.take() is not None
            assert other.conflicts == []
            monkeypatch.setattr(removed, "_SAVE_NS", 0)
            path.write_text("-old\n# saved again\n")
            other.take()
            assert [conflict.kind for conflict in other.conflicts] == ["removed"]


def test_a_restored_message_keeps_its_variables_and_follows_moves(path: Path) -> None:
    with TextQueue(path, on_lost="restore") as q:
        m = q.append("a", ["step=0"])
        path.write_bytes(b"# above\n" + path.read_bytes())
        m["step"] = "1"
    path.write_text("# above\n-old\n")
    found = look(path).conflicts
    assert [conflict.kind for conflict in found] == ["removed"]
    assert found[0].text.count(":") <= 1
    assert path.read_text() in ("# above\n-old\n", "# above\n-old\n-a\n\\step=0\n")


def test_copies_of_done_messages_are_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_SMALL_BYTES", 500)
    store = path.with_name(".jobs.tq.copies")
    with TextQueue(path, on_lost="restore") as q:
        for number in range(200):
            m = q.append(f"message {number}", [MUTEX])
            if number % 10:
                m.mark_as_cleared()
            assert store.stat().st_size < 12_000
        kept = store.read_text()
    assert all(f"-message {number}\n" in kept for number in range(0, 200, 10))
    path.write_text("-old\n")
    look(path)
    assert path.read_text().count("-message") == 20


def test_many_messages_of_one_append_are_restored(path: Path) -> None:
    texts = [f"message {number}" for number in range(5000)]
    with TextQueue(path, on_lost="restore") as q:
        q.append_many(texts)
    path.write_text("-old\n")
    assert len(look(path).conflicts) == 5000
    with TextQueue(path) as q:
        assert [m.value for m in q.messages()] == ["old", *texts]


def test_a_comment_has_no_copy(path: Path) -> None:
    with TextQueue(path, on_lost="restore") as q:
        q.append("note", status=MessageStatus.comment)
    assert not path.with_name(".jobs.tq.copies").exists()


def test_a_damaged_copy_is_not_restored(path: Path) -> None:
    with TextQueue(path, on_lost="restore") as q:
        q.append("a")
        store = path.with_name(".jobs.tq.copies")
        store.write_bytes(b"-x")
        q.append("b")
    path.write_text("-old\n")
    assert [conflict.action.endswith("again") for conflict in look(path).conflicts] == [False, True]
    assert path.read_text() == "-old\n-b\n"


def test_an_option_must_be_known(path: Path) -> None:
    with pytest.raises(InvalidTextError, match="on_lost must be 'report' or 'restore', got 'keep'"):
        TextQueue(path, on_lost="keep")  # type: ignore[arg-type]


def test_the_kernel_grants_leases_here(path: Path) -> None:
    """The tests above rely on it."""
    with path.open("r+b") as file:

        class Leased:
            def fileno(self) -> int:
                return file.fileno()

        assert lease(Leased())  # type: ignore[arg-type]


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
