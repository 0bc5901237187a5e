"""Append, read and mark in a queue that no other program uses."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
import textqueue
from sej.system.disk import File
from tests.textqueue.claiming import MUTEX, got, plain, taken
from textqueue import MessageStatus, TextQueue
from textqueue.format.windows import Window, read_window


def drain(q: TextQueue) -> list[str]:
    return [message.value for message in iter(q.get_next, None)]


def test_appended_messages_are_delivered_once_and_in_order(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("one")
        q.append("two\nlines\n", variables=["retries=3 ", "mutex=          "])
        q.append_many([b"three", "ünï"])
        assert drain(q) == ["one", "two\nlines\n", "three", "ünï"]
        assert q.get_next() is None
        q.append("later")
        assert drain(q) == ["later"]
    assert plain(path) == (
        b"-one\n-two\n lines\n \n\\retries=3 \n\\mutex=          \n-three\n" + "-ünï\n-later\n".encode()
    )


def test_a_mark_changes_one_byte(path: Path) -> None:
    path.write_bytes(b"#c\n-a\n-b\n\\v=1\n-c\n")
    with TextQueue(path) as q:
        a, b, c = q.messages()
        a.mark_as_cleared()
        b.mark_as_critical_error()
        assert (a.status, b.status, c.status) == (
            MessageStatus.cleared,
            MessageStatus.critical,
            MessageStatus.queued,
        )
        assert drain(q) == ["c"]
    assert plain(path) == b"#c\n=a\n!b\n\\v=1\n-c\n"


def test_a_variable_is_written_in_its_space(path: Path) -> None:
    with TextQueue(path) as q:
        m = q.append("job", variables=["retries=10", "note=été    "])
        m.set_variable(0, "retries=9")
        assert m.get_variables() == ("retries=9 ", "note=été    ")
        m["note"] = "ça"
        assert m["note"] == "ça"
        assert m["retries"] == "9"
        assert m.get("none") is None
        with pytest.raises(textqueue.VariableTooLongError, match="must be at most 14 bytes, got 15"):
            m.set_variable(1, "note=éé123456")
        with pytest.raises(textqueue.NoSuchVariableError, match="variable 2 does not exist"):
            m.set_variable(2, "x")
        with pytest.raises(textqueue.NoSuchVariableError, match="'retries=9 '"):
            m["mutex"] = "1"
        with pytest.raises(textqueue.InvalidTextError):
            m.set_variable(0, "a\nb")
    assert plain(path) == "-job\n\\retries=9 \n\\note=ça      \n".encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"-new\n"),
        (b"-old", b"-old\n-new\n"),
        (b"-old\n", b"-old\n-new\n"),
        (b"-old\r\n", b"-old\r\n-new\r\n"),
        (b"-old\r\n-last", b"-old\r\n-last\r\n-new\r\n"),
        (b"\n-last", b"\n-last\n-new\n"),
        (b"\xef\xbb\xbf", b"\xef\xbb\xbf-new\n"),
        (b"# only a comment\n\\v", b"# only a comment\n\\v\n-new\n"),
    ],
)
def test_append_completes_the_last_line_and_keeps_the_line_ends(path: Path, before: bytes, after: bytes) -> None:
    path.write_bytes(before)
    with TextQueue(path) as q:
        m = q.append("new")
        assert plain(path) == after
        assert after[m.position :].startswith(b"-new")
        m.mark_as_cleared()
    assert plain(path) == after.replace(b"-new", b"=new")


def test_a_byte_that_is_not_utf_8_is_written_as_it_was_read(path: Path) -> None:
    with TextQueue(path) as q:
        q.append("a", variables=["v=    "])["v"] = "\udce9"
    assert plain(path) == b"-a\n\\v=\xe9   \n"


def test_a_message_without_a_text_is_refused(path: Path) -> None:
    with TextQueue(path) as q:
        with pytest.raises(textqueue.InvalidTextError, match=r"text 2 of 3 is empty.*leave it out"):
            q.append_many(["a", "", "b"])
        assert not path.exists()
        q.append("", status=MessageStatus.comment)
    assert plain(path) == b"#\n"


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16BE", "UTF-16LE"])
def test_a_file_in_utf_16_is_not_appended_to(path: Path, encoding: str) -> None:
    path.write_bytes(before := "-one\n".encode(encoding))
    with TextQueue(path) as q:
        with pytest.raises(textqueue.InvalidTextError, match=r"UTF-16.*iconv -f UTF-16 -t UTF-8"):
            q.append("two")
        assert plain(path) == before
        path.write_bytes(subprocess.check_output(["iconv", "-f", encoding, "-t", "UTF-8", path]))
        q.append("two")
    assert plain(path) == b"-one\n-two\n"


def test_an_unterminated_line_waits_until_the_file_is_quiet(path: Path) -> None:
    path.write_bytes(b"-whole\n-hal")
    with TextQueue(path, settle_s=3600) as patient, TextQueue(path, settle_s=0) as hasty:
        assert drain(patient) == ["whole"]
        assert drain(hasty) == ["whole", "hal"]
        with path.open("ab") as file:
            file.write(b"f\n")
        os.utime(path, (1e9, 1e9))
        assert drain(patient) == ["half"]
        assert drain(hasty) == ["half"], "what was given out was another message"


Call = Callable[[TextQueue, Any], object]
WRONG: list[tuple[type[Exception], str, Call]] = [
    (ValueError, "on_revert", lambda q, m: TextQueue(m.path, on_revert="maybe")),  # type: ignore[arg-type]
    (ValueError, "settle_s", lambda q, m: TextQueue(m.path, settle_s=-1)),
    (FileNotFoundError, "does not exist", lambda q, m: q.add_input(m.path + "x")),
    (TypeError, "int", lambda q, m: q.append(5)),  # type: ignore[arg-type]
    (textqueue.InvalidTextError, "variable 1 contains a newline", lambda q, m: q.append("a", ["fine", "not\nfine"])),
    (textqueue.InvalidTextError, "surrogate", lambda q, m: q.append("\ud800")),
    (textqueue.InvalidTextError, "surrogate", lambda q, m: q.append("a", ("v=\ud800",))),
    (textqueue.InvalidTextError, "surrogate", lambda q, m: m.set_variable(0, "v=\ud800")),
    (textqueue.InvalidTextError, "line 1 of the message ends with a carriage return", lambda q, m: q.append("a\r")),
    (textqueue.InvalidTextError, "line 1 of the message ends with a carriage return", lambda q, m: q.append("a\r\nb")),
    (textqueue.InvalidTextError, "line 1 of the message ends with a carriage return", lambda q, m: q.append("\r")),
    (TypeError, "MessageStatus", lambda q, m: list(q.messages({"queued"}))),  # type: ignore[arg-type]
    (TypeError, r"as in \[MessageStatus.queued\], got 'queued'", lambda q, m: q.messages("queued")),  # type: ignore[arg-type]
    (TypeError, "status must be MessageStatus, got 3", lambda q, m: q.append("b", status=3)),  # type: ignore[arg-type]
    (TypeError, "status must be MessageStatus, got 'done'", lambda q, m: q.mark_many([m], "done")),  # type: ignore[arg-type]
    (TypeError, "each message must be Message, got 0", lambda q, m: q.mark_many([m, 0], MessageStatus.cleared)),  # type: ignore[list-item]
    (TypeError, "variables must be an iterable, such as a list, got 'x=3'", lambda q, m: q.append("b", "x=3")),
    (TypeError, "variables must be an iterable, such as a list, got 'x=3'", lambda q, m: q.append_many(["b"], "x=3")),
    (TypeError, "texts must be an iterable, such as a list, got 'text'", lambda q, m: q.append_many("text")),
    (IndexError, "file_index must be below 1, the number of files, got 1", lambda q, m: q.get_next_in_file(1)),
    (TypeError, r"index must be an int, got 'x' \(str\)", lambda q, m: m.set_variable("x", "2")),
    (TypeError, r"writer must be a sej.Writer, .*got 'orders' \(str\)", lambda q, m: q.drain_to("orders")),  # type: ignore[arg-type]
    (textqueue.TextQueueError, "no file to append to", lambda q, m: TextQueue().append("a")),
]


@pytest.mark.parametrize(("error", "text", "call"), WRONG)
def test_a_wrong_argument_is_named(path: Path, error: type[Exception], text: str, call: Call) -> None:
    with TextQueue(path) as q:
        message = q.append("a", ["v=   "])
        with pytest.raises(error, match=text):
            call(q, message)
    assert plain(path) == b"-a\n\\v=   \n"


@pytest.mark.parametrize("marked", [pytest.param(0, marks=pytest.mark.long), 1])
def test_each_of_very_many_messages_is_delivered_once(tmp_path: Path, marked: int) -> None:
    path = tmp_path / "jobs.tq"
    count = (1 << 18) + 5000
    path.write_bytes(b"".join(b"-%d\n" % n for n in range(count)))
    with TextQueue(path) as q:
        for _ in range(marked):
            taken(q).done()
        assert [m.raw for m in iter(q.get_next, None)] == [b"-%d\n" % n for n in range(marked, count)]
        path.write_bytes(b"-new\n" + path.read_bytes())
        assert [m.value for m in iter(q.get_next, None)] == ["new"]


@pytest.mark.parametrize("second", ["the same mark", "another mark", "the same mark of many", "reopened"])
def test_a_second_mark_of_a_message_delivers_no_equal_one_again(path: Path, second: str) -> None:
    path.write_bytes(b"-a\n-a\n")
    with TextQueue(path) as q:
        one, _ = list(iter(q.get_next, None))
        one.mark_as_cleared()
        if second == "the same mark":
            one.mark_as_cleared()
        elif second == "another mark":
            one.mark_as_critical_error()
        elif second == "the same mark of many":
            q.mark_many([one], MessageStatus.cleared)
        else:
            one.mark_as_queued()
        path.write_bytes(b"-new\n" + path.read_bytes())
        assert len(list(iter(q.get_next, None))) == (2 if second == "reopened" else 1)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte order mark"])
def test_a_new_message_is_not_taken_for_an_equal_one_that_another_worker_has_marked(path: Path, mark: bytes) -> None:
    path.write_bytes(mark + b"-other\n-daily\n")
    with TextQueue(path) as q, TextQueue(path) as worker:
        assert [m and m.value for m in (q.get_next(), q.get_next())] == ["other", "daily"]
        for message in worker.messages():
            message.mark_as_cleared()
        with path.open("ab") as file:
            file.write(b"-daily\n")
        found = got(q)
        assert (found.value, found.position) == ("daily", len(mark) + 14)
        assert q.get_next() is None


def test_a_line_above_makes_no_delivered_message_a_new_one(path: Path) -> None:
    path.write_bytes(b"=daily\n" * 20 + b"-daily\n")
    with TextQueue(path) as q:
        assert q.get_next() is not None
        path.write_bytes(b"#above\n" + path.read_bytes())  # as long as the others
        assert q.get_next() is None
        path.write_bytes(plain(path) + b"-daily\n")
        assert q.get_next() is not None
        assert q.get_next() is None


def test_delivered_messages_that_are_changed_or_marked_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n\\x=1\n" * 4)
    with TextQueue(path) as q:
        one, two = got(q), got(q)
        one["x"] = "2"
        two.mark_as_cleared()
        path.write_bytes(b"# moved\n" + path.read_bytes())
        assert [m.raw for m in iter(q.get_next, None)] == [b"-a\n\\x=1\n"] * 2
        one.mark_as_cleared()
        two["x"] = "2"
        assert q.get_next() is None, "the message was marked before"
        path.write_bytes(b"# again\n" + plain(path) + b"-a\n\\x=2\n")
        assert [m.raw for m in iter(q.get_next, None)] == [b"-a\n\\x=2\n"]


def test_a_reader_repeats_no_message_that_was_claimed_after_it_was_read(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as reader:
        q.append_many(["a", "b", "a"])
        assert [m.value for m in iter(reader.get_next, None)] == ["a", "b", "a"]
        claim = taken(q)
        path.write_bytes(b"# above\n" + path.read_bytes())
        assert reader.get_next() is None
        assert claim.give_back()
        assert reader.get_next() is None


@pytest.mark.parametrize("name", ["jobs.tq", "jobs/", "j[ao]bs*.tq"])
def test_a_relative_path_means_the_directory_of_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home, elsewhere = tmp_path / "[home]", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    with TextQueue(name, writer=None if name == "jobs.tq" else "jobs") as q:
        monkeypatch.chdir(elsewhere)
        q.append("first", variables=[MUTEX])
        q.append("second")
        for _ in range(2):
            with q.claim("me") as message:
                assert message is not None
        monkeypatch.chdir(home)
        other = TextQueue()
        other.add_input("jobs/jobs.tq" if name == "jobs/" else "jobs.tq")
        monkeypatch.chdir(elsewhere)
        assert [m.value for m in other.messages(statuses={MessageStatus.cleared})] == ["first", "second"]
        other.close()
    assert list(elsewhere.iterdir()) == []


def test_a_closed_queue_names_its_file(tmp_path: Path) -> None:
    queue = TextQueue(tmp_path / "jobs.tq")
    queue.close()
    with pytest.raises(sej.ClosedError, match="this queue was closed; reopen it") as refused:
        queue.append("a")
    assert refused.value.path == str(tmp_path / "jobs.tq")


def test_a_second_save_within_one_tick_of_the_clock_is_read(path: Path) -> None:
    """The files have equal sizes and times, as if both were saved within one tick that is not over."""
    path.write_bytes(b"=a\n")
    later = time.time_ns() + 3600 * 10**9
    os.utime(path, ns=(later, later))
    with TextQueue(path) as q:
        for _ in range(3):
            assert q.get_next() is None
        path.write_bytes(b"-a\n")
        os.utime(path, ns=(later, later))
        assert got(q).value == "a"


@pytest.mark.parametrize("old", [True, False])
def test_the_end_is_found_without_another_walk(path: Path, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """A file whose time may hide another change is walked again."""
    path.write_bytes(b"".join(b"-message %d\n\\retries=3\n" % n for n in range(20_000)))
    later = time.time() + (-60 if old else 60)
    os.utime(path, (later, later))
    reads: list[int] = []

    def counting(file: File, position: int, size: int, *, settled: Callable[[int, bytes], bool]) -> Window:
        window = read_window(file, position, size, settled=settled)
        reads.append(len(window.data))
        return window

    monkeypatch.setattr("textqueue.cursor.read_window", counting)
    with TextQueue(path) as q:
        assert len(drain(q)) == 20_000
        if old:
            assert (sum(reads), q.get_next(), sum(reads)) == (path.stat().st_size, None, path.stat().st_size)
        else:
            path.write_bytes(path.read_bytes().replace(b"-message 7\n", b"-message x\n"))
            os.utime(path, (later, later))
            assert drain(q) == ["message x"]
