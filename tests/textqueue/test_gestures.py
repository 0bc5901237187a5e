"""Edits of a user in an editor, and the reactions of the queue: the user has precedence."""

from pathlib import Path

import pytest

from tests.textqueue.claiming import lined, plain, rewrite
from textqueue import MessageStatus, TextQueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-water the plants\n-other\n")
    return path


def work(path: Path) -> list[str]:
    """Take all messages in another process."""
    with TextQueue(path) as q:
        found = []
        while (claim := q.take()) is not None:
            found.append(claim.message.value)
            assert claim.done()
        return found


# A text that is written again


@pytest.mark.parametrize("looked", [False, True], ids=["no worker looked", "a worker looked"])
@pytest.mark.parametrize("again", [b"=other\n-water the plants\n", b"-water the plants\n=other\n"])
def test_a_text_that_a_user_deletes_and_writes_again_is_delivered(path: Path, looked: bool, again: bytes) -> None:
    assert work(path) == ["water the plants", "other"]
    rewrite(path, b"=other\n")
    if looked:
        assert work(path) == []
    rewrite(path, again)
    assert work(path) == ["water the plants"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_deleted_text_that_a_program_appends_is_delivered(path: Path, count: int) -> None:
    assert work(path) == ["water the plants", "other"]
    rewrite(path, b"=other\n")
    with TextQueue(path) as q:
        q.append_many(["water the plants"] * count)
    path.write_bytes(b"# a comment\n" + path.read_bytes())
    assert work(path) == ["water the plants"] * count


# A stale save, and a message that a user queues again


@pytest.mark.parametrize("above", [b"", b"# note\n"])
@pytest.mark.parametrize("room", [b"", b"\\mutex=" + b" " * 30 + b"\n"])
def test_a_stale_save_after_a_variable_was_set_repeats_nothing(path: Path, above: bytes, room: bytes) -> None:
    stale = b"-pay invoice 17\n" + room + b"\\step=  \n-other\n"
    path.write_bytes(stale)
    with TextQueue(path) as q:
        claim = q.take()
        assert claim is not None
        claim.message["step"] = "1"
        claim.done()
        path.write_bytes(above + stale)
        assert q.take() is not None
        assert [(c.kind, c.action) for c in q.conflicts] == [("reverted", "marked again as cleared")]
    assert plain(path) == above + stale.replace(b"-pay", b"=pay").replace(b"step= ", b"step=1")


def test_a_stale_save_that_also_reopens_an_older_message(path: Path) -> None:
    path.write_bytes(lined(b"".join(b"-job %d\n" % n for n in range(6))))
    with TextQueue(path) as q:
        messages = list(q.messages())
        q.mark_many(messages[:4], MessageStatus.cleared)
        buffer = path.read_bytes()
        q.mark_many(messages[4:], MessageStatus.cleared)
        path.write_bytes(buffer.replace(b"=job 1", b"-job 1"))
        assert [m.value for m in q.messages()] == ["job 1"]
        assert [(c.kind, c.text) for c in q.conflicts] == [
            ("reverted", "job 4"),
            ("reverted", "job 5"),
        ]


# A claimed message that a user marks


@pytest.mark.parametrize("to", [b"=", b"#", b"!"])
@pytest.mark.parametrize("setting", [False, True], ids=["", "a variable is set"])
@pytest.mark.parametrize("room", [b"", b"\\mutex=" + b" " * 30 + b"\n"], ids=["", "mutex"])
@pytest.mark.parametrize("end", ["done", "failed", "give_back", "give_up"])
def test_the_mark_of_a_user_on_a_claimed_message_has_precedence(
    path: Path, to: bytes, setting: bool, room: bytes, end: str
) -> None:
    path.write_bytes(b"-pay 17\n" + room + b"\\step=  \n")
    with TextQueue(path) as q:
        claim = q.take()
        assert claim is not None
        path.write_bytes(path.read_bytes().replace(b"-pay", to + b"pay"))
        if setting:
            claim.message["step"] = "1"
        assert getattr(claim, end)() is False
        assert plain(path) == to + b"pay 17\n" + room + (b"\\step=1 \n" if setting else b"\\step=  \n")
        (conflict,) = q.conflicts
        assert conflict.kind == "changed"
        assert "left as it is: a user marked it as" in conflict.action
        assert q.take() is None
        path.write_bytes(path.read_bytes().replace(to + b"pay", b"-pay"))
        again = q.take()
        assert again is not None, "the claim has ended, and leaves no name in the message"


# An archive while an editor has the file open


def archived(path: Path) -> bytes:
    """Archive two of three messages, and return the bytes that an editor has read before."""
    path.write_bytes(lined(b"-pay 17\n-pay 18\n-other\n"))
    stale = path.read_bytes()
    with TextQueue(path) as q:
        q.mark_many(list(q.messages())[:2], MessageStatus.cleared)
        assert q.archive(path.with_name("jobs.done")) == 2
    return stale


def test_a_stale_save_after_an_archive_repeats_nothing(path: Path) -> None:
    stale = archived(path)
    path.write_bytes(stale + b"# note\n")
    with TextQueue(path) as q:
        assert [m.value for m in q.messages()] == ["other"]
        assert [(c.kind, c.text) for c in q.conflicts] == [("reverted", "pay 17"), ("reverted", "pay 18")]
    assert plain(path) == b"-other\n# note\n", "the archive has the others"


def test_one_of_several_archived_texts_that_is_written_again_is_delivered(path: Path) -> None:
    archived(path)
    path.write_bytes(path.read_bytes() + b"-pay 17\n")
    assert work(path) == ["other", "pay 17"]


# An editor that trims blanks


@pytest.mark.parametrize(
    "variables",
    [
        "\\mutex=" + " " * 30 + "\n\\step=     \n",
        "\\step=     \n",
        "\\retries=10 \n",
        "\\reason=      \n\\mutex=    \n",
    ],
    ids=["mutex and variable", "variable", "retries", "reason"],
)
@pytest.mark.parametrize("end", ["done", "give_back"])
def test_a_claim_outlives_an_editor_that_trims_blanks(path: Path, variables: str, end: str) -> None:
    def trim() -> None:
        path.write_text("\n".join(line.rstrip() for line in path.read_text().split("\n")))

    path.write_text(f"-pay 17  \n{variables}-pay 18\n{variables}")
    with TextQueue(path) as q, TextQueue(path) as other:
        given = [q.get_next(), q.get_next()]
        assert [m and m.value for m in given] == ["pay 17  ", "pay 18"]
        claim = q.take()
        assert claim is not None
        trim()
        assert q.get_next() is None, "what was given out is not given out again"
        second = other.take()
        assert second is not None
        assert second.message.value == "pay 18"
        assert getattr(claim, end)()
        assert second.done()
        third = other.take()
        assert (third is None) == (end == "done")
        assert q.conflicts == other.conflicts == []
    if end == "done":
        assert plain(path).count(b"=pay") == 2


def test_a_trimmed_message_is_marked_again_after_a_stale_save(path: Path) -> None:
    path.write_bytes(lined(b"-pay 17  \n\\step=   \n-other\n"))
    with TextQueue(path) as q:
        stale = path.read_bytes()
        next(q.messages()).mark_as_cleared()
        path.write_bytes(stale.replace(b" ", b"").replace(b"pay", b"pay "))
        assert [m.value for m in q.messages()] == ["other"]


def test_a_stale_save_after_a_reopened_message_was_done_again_repeats_nothing(path: Path) -> None:
    path.write_bytes(b"-a\n-b\n")
    with TextQueue(path) as q:
        for _ in range(2):
            claim = q.take()
            assert claim is not None
            assert claim.done()
        rewrite(path, b"-a\n=b\n")  # a user reopens the older one
        q.append("c")
        stale = path.read_bytes()
        again = q.take()
        assert again is not None
        assert (again.message.value, again.done()) == ("a", True)
        path.write_bytes(stale)
        assert [m.value for m in q.messages()] == ["c"]
        assert [(one.text, one.kind) for one in q.conflicts] == [("a", "reverted")]
