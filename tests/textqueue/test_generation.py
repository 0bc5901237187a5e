"""The line with the number: which use adds it, its place, and what a missing or strange one means."""

import os
import re
from pathlib import Path

import pytest

from tests.textqueue.claiming import MUTEX, claim_elsewhere, lined, plain, rewrite, said, taken
from textqueue import MessageStatus, TextQueue, check

TEXTS = [b"a", b"b", b"c"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n-c\n")
    return path


def work(path: Path) -> tuple[list[str], list[str]]:
    """Do all messages, as a worker that begins now; return their texts, and those of the reports."""
    with TextQueue(path) as q:
        found = []
        while (claim := q.take()) is not None:
            found.append(claim.message.value)
            assert claim.done()
        return found, [conflict.text for conflict in q.conflicts]


def numbers(path: Path) -> list[int]:
    return [int(found) for found in re.findall(rb"(?m)^\\seq=([0-9]{12})\r?$", path.read_bytes())]


@pytest.mark.parametrize("texts", [[b"c"], [b"a"], TEXTS], ids=["the newest", "the oldest", "all"])
@pytest.mark.parametrize("mark", [b"=", b"!"])
def test_a_mark_that_a_person_removes_is_removed(path: Path, texts: list[bytes], mark: bytes) -> None:
    if mark == b"!":
        path.write_bytes(b"".join(b"-%s\n\\retries=0\n" % text for text in TEXTS))
        with TextQueue(path) as q:
            while (claim := q.take()) is not None:
                claim.failed()
    else:
        work(path)
    data = path.read_bytes()
    for text in texts:
        data = data.replace(mark + text, b"-" + text)
    path.write_bytes(data)
    assert work(path) == ([text.decode() for text in texts], [])


def test_only_a_claim_adds_the_line(path: Path) -> None:
    with TextQueue(path) as q:
        for message in q.messages():
            message.mark_as_critical_error()
        q.append("d")
        assert q.get_next() is not None
        assert not check(path)
        assert numbers(path) == []
        claim = taken(q)
        assert numbers(path) == [4]
        assert claim.done()
        assert numbers(path) == [5]
        assert [m.value for m in q.messages({MessageStatus.comment})] == [], "not a comment of a person"
    assert not check(path)


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"", b"\xef\xbb\xbf# note\r\n"])
def test_the_line_is_after_a_byte_order_mark(path: Path, head: bytes) -> None:
    newline = b"\r\n" if b"\r" in head else b"\n"
    path.write_bytes(head + b"-a" + newline)
    work(path)
    mark = head[: 3 if head[:1] == b"\xef" else 0]
    added = mark + b"#queue" + newline + b"\\seq=000000000001" + newline
    assert path.read_bytes() == added + head[len(mark) :] + b"=a" + newline


@pytest.mark.parametrize("open_by", ["another name", "another program"])
def test_a_file_that_cannot_be_replaced_gets_no_line(path: Path, open_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textqueue.editing.queue_file.MOMENT_S", 60.0)  # on a slow machine, too
    os.utime(path, (1e9, 1e9))
    if open_by == "another name":
        path.with_name("other.txt").hardlink_to(path)
        assert work(path)[0] == ["a", "b", "c"]
    else:
        with path.open("rb"):
            assert work(path)[0] == ["a", "b", "c"]
        rewrite(path, b"-d\n" + path.read_bytes())
    assert numbers(path) == []
    if open_by == "another program":
        work(path)
        assert numbers(path) == [4], "the next claim tries again"


@pytest.mark.parametrize("seen_by_a_worker", [False, True])
def test_a_save_by_a_program_that_kept_the_line_out_is_older_than_the_claim(path: Path, seen_by_a_worker: bool) -> None:
    with TextQueue(path) as q:
        q.append("d")
        with path.open("rb") as editor:
            claim = taken(q)
            buffer = editor.read()
            if not seen_by_a_worker:
                assert claim.done()
        assert numbers(path) == []
        if seen_by_a_worker:
            assert claim.done()
            assert numbers(path) == [2], "the next session adds it"
        path.write_bytes(b"-new\n" + buffer)
        assert [m.value for m in q.messages()] == ["new", "b", "c", "d"]
        assert [(one.text, one.kind) for one in q.conflicts] == [("a", "reverted")]


def test_a_save_by_a_program_that_kept_the_line_out_lets_the_next_session_add_it(path: Path) -> None:
    path.write_text(f"-a\n\\{MUTEX}\n-b\n")
    with TextQueue(path) as q:
        q.append("c")
        buffer = path.read_bytes()
        with path.open("rb"):
            claim = taken(q)
        path.write_bytes(buffer)
        assert claim.done()
        assert len(numbers(path)) == 1
        path.write_bytes(buffer)
        assert [m.value for m in q.messages()] == ["b", "c"]


def test_a_person_may_move_the_line(path: Path) -> None:
    buffer = plain(path) + lined(b"")
    work(path)
    path.write_bytes(plain(path) + path.read_bytes()[: len(lined(b""))])
    path.write_bytes(path.read_bytes().replace(b"=c", b"-c"))
    assert work(path) == (["c"], [])
    path.write_bytes(buffer)
    assert work(path) == ([], ["a", "b", "c"])
    assert numbers(path) == [4]


@pytest.mark.parametrize(
    "change", [lambda data: data[len(lined(b"")) :], lambda data: data.replace(b"\\seq", b"\\number")]
)
def test_a_missing_or_renamed_line_means_the_oldest_version(path: Path, change: type[bytes]) -> None:
    work(path)
    path.write_bytes(change(path.read_bytes().replace(b"=", b"-").replace(b"seq-", b"seq=")))
    assert work(path) == ([], ["a", "b", "c"])
    with TextQueue(path) as q:
        next(q.messages({MessageStatus.cleared})).mark_as_queued()
    assert work(path) == (["a"], [])
    assert len(numbers(path)) == 1, "the claim has added it again"


def test_of_several_lines_the_first_one_counts(path: Path) -> None:
    work(path)
    path.write_bytes(path.read_bytes() + lined(b"-a\n", 1))
    assert work(path) == (["a"], [])
    assert numbers(path) == [4]


def test_after_the_loss_of_the_ledger_the_numbers_continue(path: Path) -> None:
    path.write_bytes(lined(b"-a\n=b\n", 70))
    assert work(path) == (["a"], [])
    assert numbers(path) == [71]
    path.with_name(".jobs.tq.log").unlink()
    path.write_bytes(path.read_bytes().replace(b"=b", b"-b"))
    assert work(path) == (["b"], [])
    assert numbers(path) == [72]


def test_a_message_that_a_split_moved_does_not_come_back(path: Path, tmp_path: Path) -> None:
    from textqueue.editing.archive_and_split import split

    work(path)
    path.write_bytes(path.read_bytes() + b"-d\n-e\n")
    with TextQueue(path) as q:
        buffer = path.read_bytes()
        assert split(q._inputs.sources[0], lambda part: str(tmp_path / "new.tq") if b"d" in part.raw else None)
    path.write_bytes(buffer)
    assert work(path) == (["e"], ["d"])


def test_an_append_to_a_new_file_is_not_an_old_message_of_the_same_text(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("backup")
    assert work(path)[0][-1] == "backup"
    path.rename(path.with_name("old.txt"))
    with TextQueue(path) as q:
        q.append("backup")
    rewrite(path, path.read_bytes() + b"-other\n")
    assert work(path) == (["backup", "other"], [])


@pytest.mark.parametrize("begin", ["sync", "archive"])
def test_a_lost_log_takes_no_claim_from_its_worker(path: Path, begin: str) -> None:
    path.write_bytes(f"-a\n\\{MUTEX}\n-b\n=c\n".encode())
    holder = claim_elsewhere(path, "sys.stdin.readline()\n")
    assert said(holder) == "a\n"
    path.with_name(".jobs.tq.log").unlink()
    with TextQueue(path) as q:
        q.sync() if begin == "sync" else q.archive(path.with_name("done.txt"))
    assert work(path)[0] == ["b"]
    holder.communicate("\n")
