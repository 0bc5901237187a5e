"""Edits of a person in Vim, and the reactions of the queue: each row of docs/text-queue.md, and more.

The person has precedence.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import textqueue
from sej.system.disk import OsFile
from tests.textqueue.claiming import got, lined, plain, taken
from tests.textqueue.saving import SAVERS
from textqueue import MessageStatus, TextQueue

VIM = shutil.which("vim")
PAGE = (Path(__file__).parent.parent.parent / "docs" / "text-queue.md").read_text("utf-8")


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


def vim(path: Path, *commands: str) -> None:
    """Open a file in Vim, run commands as a person types them after a colon, and save it."""
    assert VIM is not None, "this test needs Vim: apt-get install vim"
    words = [word for command in (*commands, "w!", "q!") for word in ("-c", command)]
    subprocess.run([VIM, "-u", "NONE", "-i", "NONE", "-nNes", path, *words], check=True, timeout=60)


def test_each_row_of_the_page_has_a_test() -> None:
    part = PAGE.partition("## Every edit")[2]
    rows = re.findall(r"^\| (?!if you)(.*?) \|", part, re.MULTILINE)
    assert rows == list(dict.fromkeys(test.__doc__ for name, test in globals().items() if name.startswith("test_on_")))


def test_on_lines_that_move(path: Path) -> None:
    """insert, delete, sort or change lines below the first two"""
    path.write_bytes(b"-water the plants\n-other\n-old\n")
    with TextQueue(path) as q:
        claim = taken(q)
        vim(path, "g/^-old/d", "$put ='-new'", "3,$sort", "%s/other/others/")
        assert plain(path) == b"-new\n-others\n-water the plants\n"
        assert work(path) == ["new", "others"]
        assert claim.done()
        assert (plain(path), q.conflicts) == (b"=new\n=others\n=water the plants\n", [])


def test_on_a_sort_of_all_lines(path: Path) -> None:
    """insert, delete, sort or change lines below the first two"""
    with TextQueue(path) as q:
        assert taken(q).done()
        claim = taken(q)
        vim(path, "%s/^=/-/", "%sort")
        assert path.read_bytes().endswith(b"-water the plants\n\\seq=000000000001\n"), "the number is a variable now"
        assert work(path) == ["water the plants"], "the person has seen its mark, and took it back"
        assert path.read_bytes() == lined(b"-other\n=water the plants\n", 2)
        assert claim.done()
        assert q.conflicts == []


def test_on_a_message_that_is_reopened(path: Path) -> None:
    """change `=` or `!` to `-`, or copy a message"""
    with TextQueue(path) as q:
        assert taken(q).done()
        assert taken(q).give_up()
        vim(path, "%s/^[=!]/-/")
        assert work(path) == ["water the plants", "other"]
        assert q.conflicts == []


@pytest.mark.parametrize("room", ["", "\\mutex=" + " " * 40 + "\n"])
def test_on_a_copy(path: Path, room: str) -> None:
    """change `=` or `!` to `-`, or copy a message"""
    path.write_text(f"-water the plants\n{room}-other\n")
    with TextQueue(path) as q:
        claim = taken(q)
        vim(path, f"g/water/,+{len(room) and 1}copy $")
        assert work(path) == ["other", "water the plants"]
        assert claim.done()
    assert work(path) == []


@pytest.mark.parametrize("control", ["=", "!", "#"])
def test_on_a_message_that_is_marked(path: Path, control: str) -> None:
    """change `-` to `=`, `!` or `#`"""
    with TextQueue(path) as q:
        claim = taken(q)
        vim(path, f"%s/^-/{control}/")
        assert not claim.done()
        assert [one.kind for one in q.conflicts] == ["changed"]
    assert work(path) == []
    assert plain(path) == b"-water the plants\n-other\n".replace(b"-", control.encode())


@pytest.mark.parametrize("saver", SAVERS)
def test_on_any_save(path: Path, saver: str) -> None:
    """save in place, or by a rename (`sed -i`, `rsync`, `git`)"""
    with TextQueue(path) as q:
        claim = taken(q)
        with SAVERS[saver](path) as save:
            save(path.read_bytes() + b"-third\n")
        assert claim.done()
        assert work(path) == ["other", "third"]
        assert q.conflicts == []


def test_on_an_old_version(path: Path) -> None:
    """save an old version"""
    with TextQueue(path) as q:
        claim = taken(q)
        with SAVERS["vim"](path) as save:
            old = path.read_bytes()
            assert claim.done()
            q.append("late")
            save(old + b"-mine\n")
        assert [one.value for one in q.messages()] == ["other", "mine"]
        assert [(one.text, one.kind) for one in q.conflicts] == [("water the plants", "reverted"), ("late", "removed")]
        assert q.conflicts[0].action == "marked again as cleared"


def test_on_conflict_markers(path: Path) -> None:
    """leave conflict markers of Git, or a conflict copy of a sync service"""

    def git(*words: str) -> int:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", path.parent, *who, *words], capture_output=True, check=False).returncode

    git("init", "-q", "-b", "main")
    git("add", path.name)
    git("commit", "-qm", "first")
    git("checkout", "-qb", "mine")
    vim(path, "%s/other/others/")
    git("commit", "-qam", "mine")
    git("checkout", "-q", "main")
    vim(path, "%s/other/another/")
    git("commit", "-qam", "theirs")
    assert git("merge", "-q", "mine") == 1
    with TextQueue(path) as q, pytest.raises(textqueue.TextQueueError, match="line 2 is a conflict marker"):
        q.take()
    vim(path, r"g/^[<=>]\{7}/d")
    assert work(path) == ["water the plants", "another", "others"]


def test_on_a_conflict_copy(path: Path) -> None:
    """leave conflict markers of Git, or a conflict copy of a sync service"""
    copy = path.with_name("jobs.sync-conflict-20261128-101500-ABCDEFG.tq")
    copy.write_bytes(b"-water the plants\n-third\n")
    with TextQueue(copy) as q, pytest.raises(textqueue.TextQueueError, match="is a conflict copy"):
        q.take()
    vim(copy, "1d", f"w! >> {path}", "%d")
    copy.unlink()
    assert work(path.parent) == ["water the plants", "other", "third"]


def test_on_a_wrong_line(path: Path) -> None:
    """write a wrong line"""
    vim(path, "1put ='water the cat'")
    assert [(one.line, one.severity) for one in textqueue.check(path)] == [(2, "error")]
    assert work(path) == ["water the plants", "other"]
    assert plain(path) == b"=water the plants\nwater the cat\n=other\n"


# More


@pytest.mark.parametrize("looked", [False, True], ids=["no worker looked", "a worker looked"])
@pytest.mark.parametrize("where", ["2", "$"])
def test_a_text_that_a_person_deletes_and_writes_again_is_delivered(path: Path, looked: bool, where: str) -> None:
    assert work(path) == ["water the plants", "other"]
    vim(path, "g/water/d")
    assert not looked or work(path) == []
    vim(path, f"{where}put ='-water the plants'")
    assert work(path) == ["water the plants"]


def test_a_save_at_the_moment_of_a_write_is_a_collision(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    with path.open("rb"), path.open("r+b"), TextQueue(path) as q:  # so an edit gets no lease
        os.utime(path, (0, 0))
        message, write = got(q), OsFile.write_at

        def then_save(file: OsFile, data: bytes, position: int) -> None:
            write(file, data, position)
            vim(path, "set backupcopy=yes nowritebackup", "1s/.*/-new/")

        monkeypatch.setattr(OsFile, "write_at", then_save)
        message.mark_as_cleared()
        assert "collision" in [one.kind for one in q.conflicts]


# A stale save, and a message that a user queues again


@pytest.mark.parametrize("above", [b"", b"# note\n"])
@pytest.mark.parametrize("room", [b"", b"\\mutex=" + b" " * 30 + b"\n"])
def test_a_stale_save_after_a_variable_was_set_repeats_nothing(path: Path, above: bytes, room: bytes) -> None:
    stale = b"-pay invoice 17\n" + room + b"\\step=  \n-other\n"
    path.write_bytes(stale)
    with TextQueue(path) as q:
        claim = taken(q)
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
        claim = taken(q)
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
        assert q.take() is not None, "the claim has ended, and leaves no name in the message"


def test_one_of_several_archived_texts_that_is_written_again_is_delivered(path: Path) -> None:
    path.write_bytes(b"-pay 17\n-pay 18\n-other\n")
    with TextQueue(path) as q:
        q.mark_many(list(q.messages())[:2], MessageStatus.cleared)
        assert q.archive(path.with_name("jobs.done")) == 2
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
        claim = taken(q)
        trim()
        assert q.get_next() is None, "what was given out is not given out again"
        second = taken(other)
        assert second.message.value == "pay 18"
        assert getattr(claim, end)()
        assert second.done()
        third = other.take()
        assert (third is None) == (end == "done")
        assert q.conflicts == other.conflicts == []
    if end == "done":
        assert plain(path).count(b"=pay") == 2
