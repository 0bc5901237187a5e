"""Operations on whole files: several files as one queue, follow, archive, check."""

import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import sej.system.disk
import textqueue
from sej.system.disk import File
from tests.textqueue.claiming import ENV, lined, plain, taken
from textqueue import InvalidTextError, Message, MessageStatus, TextQueue, TextQueueError, check
from textqueue.checker import details
from textqueue.commands import app
from textqueue.editing.queue_file import QueueFile
from textqueue.format.windows import Token


def drain(q: TextQueue) -> list[str]:
    return [message.value for message in iter(q.get_next, None)]


def test_a_directory_is_one_queue_and_each_writer_has_a_file(tmp_path: Path) -> None:
    with (
        TextQueue(f"{tmp_path}/jobs.d/", writer="alice") as alice,
        TextQueue(f"{tmp_path}/jobs.d/", writer="bob") as bob,
        TextQueue(f"{tmp_path}/jobs.d/") as reader,
    ):
        assert reader.get_next() is None
        bob.append("b1")
        alice.append("a1")
        assert drain(reader) == ["a1", "b1"]
        alice.append("a2")
        (tmp_path / "jobs.d" / "carol.tq").write_text("-c1\n")
        (tmp_path / "jobs.d" / ".bob.tq.swp").write_text("-no\n")
        (tmp_path / "jobs.d" / "notes.txt").write_text("-no\n")
        assert drain(reader) == ["a2", "c1"]
        assert [m.value for m in bob.messages()] == ["a1", "a2", "b1", "c1"]
        with reader.claim() as m:
            assert m is not None
            assert m.path.endswith("alice.tq")
    assert plain(tmp_path / "jobs.d" / "alice.tq") == b"=a1\n-a2\n"


@pytest.mark.parametrize(("user", "name"), [("ann", "ann.tq"), ("../a/b", "_a_b.tq"), (".", "user.tq")])
def test_without_a_name_a_writer_is_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, name: str
) -> None:
    monkeypatch.setenv("USER", user)
    with TextQueue(tmp_path) as q, TextQueue(tmp_path) as other:
        q.append("x")
        other.append("y")
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.tq")} == {name: b"-x\n-y\n"}


def test_a_pattern_is_one_queue(tmp_path: Path) -> None:
    for name in ("jobs-1.tq", "jobs-2.tq", "other.tq"):
        (tmp_path / name).write_text(f"-{name}\n")
    with TextQueue(f"{tmp_path}/jobs-*.tq", writer="jobs-3") as q:
        assert drain(q) == ["jobs-1.tq", "jobs-2.tq"]
        q.append("mine")
        assert drain(q) == ["mine"]
    with TextQueue(f"{tmp_path}/jobs-*.tq", writer="else") as q, pytest.raises(TextQueueError, match="does not match"):
        q.append("x")
    with pytest.raises(InvalidTextError, match="last part"):
        TextQueue(f"{tmp_path}/*/jobs.tq")
    with pytest.raises(InvalidTextError, match="one file"):
        TextQueue(tmp_path / "jobs-1.tq", writer="x")
    with pytest.raises(InvalidTextError, match="file name"):
        TextQueue(tmp_path, writer="../x")


def test_follow_sees_what_programs_append_and_what_editors_save(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    found: list[str] = []
    met = threading.Condition()

    def work() -> None:
        with TextQueue(path) as q:
            for m in q.follow(timeout=60.0):
                m.mark_as_cleared()
                with met:
                    found.append(m.value)
                    met.notify()
                if m.value == "end":
                    return

    def until(count: int) -> None:
        with met:
            assert met.wait_for(lambda: len(found) >= count, timeout=60), found

    thread = threading.Thread(target=work)
    thread.start()
    with TextQueue(path) as writer:
        writer.append("one")
        until(1)
        new = tmp_path / ".new"
        new.write_bytes(b"-above\n" + path.read_bytes())
        new.replace(path)
        until(2)
        path.write_bytes(plain(path) + b"-in place\n")
        until(3)
        writer.append("end")
        until(4)
    thread.join()
    assert found == ["one", "above", "in place", "end"]
    assert plain(path) == b"=above\n=one\n=in place\n=end\n"


def test_follow_ends_at_its_timeout_and_at_its_stop_event(tmp_path: Path) -> None:
    with TextQueue(tmp_path / "jobs.tq") as q:
        q.append("one")
        assert [m.value for m in q.follow(timeout=0.0)] == ["one"]
        stop = threading.Event()
        stop.set()
        assert list(q.follow(stop=stop)) == []


def test_archive_moves_what_is_done_with_the_comments_above_it(tmp_path: Path) -> None:
    path, target = tmp_path / "jobs.tq", tmp_path / "done.tq"
    path.write_bytes(
        b"# the head of the file\n\n# about a\n=a\n\\v=1\n-b\n=c\n more\n\n"
        b"# about d and e\n=d\n-e\n\n# about f\n=f\nT future line\n!g\n=h"
    )
    path.chmod(0o640)
    with TextQueue(path) as q:
        held = [m for m in q.messages() if m.value == "e"][0]  # noqa: RUF015
        assert q.archive(target) == 5
        assert plain(path) == (b"# the head of the file\n\n# about a\n-b\n\n# about d and e\n-e\n\nT future line\n!g\n")
        assert plain(target) == b"=a\n\\v=1\n=c\n more\n=d\n# about f\n=f\n=h\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        held.mark_as_cleared()
        assert q.archive(target, {MessageStatus.cleared, MessageStatus.critical}) == 2
        assert q.archive(target) == 0
    assert plain(path) == b"# the head of the file\n\n# about a\n-b\n\n\nT future line\n"
    assert plain(target).endswith(b"=h\n# about d and e\n=e\n!g\n")


def test_a_link_to_a_queue_is_the_queue(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / "jobs.tq", tmp_path / "jobs.tq"
    path.write_bytes(b"=x\n-a\n")
    link.symlink_to(path)
    with TextQueue(path) as q, TextQueue(link) as other:
        claim = taken(q)
        assert other.take() is None
        assert other.archive(tmp_path / "done.txt") == 1
        assert link.is_symlink()
        assert claim.done()
        assert other.input_files == [str(link)]
        assert {str(path.parent), str(tmp_path)} <= other._inputs.directories
    assert plain(path) == b"=a\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".done.txt.lck", "done.txt", "jobs.tq", "there"]


def test_a_link_that_leads_to_another_file_now_has_the_claims_of_that_file(tmp_path: Path) -> None:
    link, new = tmp_path / "today.tq", tmp_path / "new"
    (tmp_path / "monday.tq").write_bytes(b"-old\n")
    (tmp_path / "tuesday.tq").write_bytes(b"-a\n-b\n-c\n")
    link.symlink_to("monday.tq")
    with TextQueue(link) as q:
        claim = taken(q)
        new.symlink_to("tuesday.tq")
        new.replace(link)
        with TextQueue(link) as other:
            found = [taker.take() for taker in (q, other, q)]
            assert [one.message.value for one in found if one is not None] == ["a", "b", "c"], "each to one worker"
            assert [one.done() for one in found if one is not None] == [True] * 3
        assert not claim.done()
        assert q.conflicts[0].kind == "changed"
        q.append("d")
    assert plain(tmp_path / "tuesday.tq") == b"=a\n=b\n=c\n-d\n"
    assert plain(tmp_path / "monday.tq") == b"-old\n"


def test_an_archive_within_the_queue_is_refused_before_anything_is_moved(tmp_path: Path) -> None:
    for name in ("a", "z"):
        (tmp_path / f"{name}.tq").write_bytes(b"=x\n")
    with TextQueue(tmp_path) as q:
        for name in ("done.tq", "z.tq"):
            with pytest.raises(InvalidTextError, match="outside"):
                q.archive(tmp_path / name)
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(InvalidTextError, match="outside"):
            q.archive(tmp_path / "link" / "done.tq")
    q = TextQueue()
    q.add_input(tmp_path / "a.tq")
    q.add_input(tmp_path / "z.tq")
    with pytest.raises(InvalidTextError, match="another file"):
        q.archive(tmp_path / "z.tq")
    assert plain(tmp_path / "a.tq") == plain(tmp_path / "z.tq") == b"=x\n"


def test_a_pattern_does_not_match_sidecars(tmp_path: Path) -> None:
    with TextQueue(tmp_path / "jobs.tq") as q:
        q.append_many(["a", "b"])
        taken(q).give_back()
    (tmp_path / "jobs.tq~").write_bytes(b"-old\n")
    for name in (
        "jobs.tq.drain",
        "jobs.tq.drain.lck",
        "jobs.tq.spark",
        "jobs.tq.spark.lck",
        "jobs.tq.log.tmp",
        "#jobs.tq#",
    ):
        (tmp_path / name).write_bytes(b"-no\n")
    with TextQueue(tmp_path / "jobs*") as q, TextQueue(tmp_path / "*") as every:
        assert [m.value for m in q.messages()] == [m.value for m in every.messages()] == ["a", "b"]
    (tmp_path / "c.log").write_bytes(b"-c\n")
    with TextQueue(tmp_path / "*.log") as q:
        assert [m.value for m in q.messages()] == ["c"]


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_sidecars_have_the_owner_and_mode_of_the_queue(tmp_path: Path, mode: int) -> None:
    path, target = tmp_path / "jobs.tq", tmp_path / "done.tq"
    path.write_bytes(b"=a\n-b\n-c\n")
    path.chmod(mode)
    seen: list[int] = []

    class Writer:
        def append_once(self, name: str, number: int, values: object, keys: object = None) -> None:
            seen.append((tmp_path / ".jobs.tq.drain").stat().st_mode & 0o777)

        def sync(self) -> None:
            pass

    with TextQueue(path) as q:
        assert q.archive(target) == 1
        path.write_bytes(plain(path) + b"# a person\n")
        assert q.drain_to(Writer()) == 2
    assert seen == [mode]
    for name in ("jobs.tq", "done.tq", ".jobs.tq.log", ".jobs.tq.lck"):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode, name


READS = """
import encodings.idna, os, sys, textqueue
if not os.geteuid():
    os.setuid(65534)  # whom everything is allowed, nothing is refused
q = textqueue.TextQueue(sys.argv[1])
print([m.value for m in q.messages()], q.get_next().value)
"""


def test_a_user_without_write_permission_can_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.tq")
        with TextQueue(path) as q:
            q.append_many(["a", "b"])
            next(q.messages()).mark_as_cleared()
        for above in ("", "# a person was here\n"):
            path.write_text(above + path.read_text())
            for file in Path(folder).iterdir():
                file.chmod(0o444)
            Path(folder).chmod(0o555)
            command = [sys.executable, "-c", READS, str(path)]
            done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
            Path(folder).chmod(0o755)
            for file in Path(folder).iterdir():
                file.chmod(0o644)
            assert (done.stdout, done.stderr) == ("['b'] b\n", "")


def test_archive_refuses_what_would_lose_messages(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"=a\n-b\n")
    (tmp_path / "same.tq").hardlink_to(path)
    with TextQueue(path) as q:
        for name in ("jobs.tq", "same.tq"):
            with pytest.raises(InvalidTextError, match="another file"):
                q.archive(tmp_path / name)
        with pytest.raises(InvalidTextError, match="only cleared"):
            q.archive(tmp_path / "done.tq", {MessageStatus.queued})


def test_claims_survive_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "b", "c"])
        next(q.messages()).mark_as_cleared()
        claim = taken(q)
        assert other.archive(tmp_path / "done.tq") == 1
        assert taken(other).message.value == "c"
        assert claim.done()
    assert plain(path) == b"=b\n-c\n"


def test_check_reports_line_column_and_fix(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(
        b"\xef\xbb\xbf lost\n-a\n\n\\lost too\nT2024 what\n-\xc3\xa4\xffb\n"
        b"\\retries=many\n\\retries=1\n\\mutex=  \n-end"
    )
    found = check(path)
    assert [(p.line, p.column, p.position) for p in found] == [
        (1, 1, 0),
        (1, 1, 3),
        (4, 1, 13),
        (5, 1, 23),
        (6, 3, 37),
        (7, 2, 41),
        (8, 2, 55),
        (9, 8, 72),
        (10, 5, 79),
    ]
    assert all(p.what and p.mend and p.path == str(path) for p in found)
    assert "0xff is not UTF-8" in found[4].what
    assert str(found[3]).startswith(f"{path}:5:1: a line cannot begin with 'T'")
    with pytest.raises(FileNotFoundError):
        check(tmp_path / "missing.tq")
    path.write_bytes("-a\n".encode("utf-16"))
    assert ["begin with byte 0xff" in p.what and "as UTF-8" in p.mend for p in check(path)[:1]] == [True]


def test_check_names_the_path_that_is_no_file_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist; .*`sej tq add` creates it.*absent.tq"):
        textqueue.check(tmp_path / "absent.tq")
    with pytest.raises(sej.FileTypeError, match="got a directory; check each of its files") as refused:
        textqueue.check(tmp_path)
    assert refused.value.path == str(tmp_path)


def test_check_reports_a_claim_whose_worker_has_ended(tmp_path: Path) -> None:
    from sej.system.locks import process_host

    path = tmp_path / "jobs.tq"
    path.write_text(f"-a\n\\mutex=999999999@{process_host()}/1{' ' * 20}\n")
    (problem,) = textqueue.check(path)
    assert "has ended" in problem.what


def test_check_reports_other_names_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n")
    (tmp_path / "link.tq").symlink_to(path)
    assert check(tmp_path / "link.tq") == []
    (tmp_path / "other.tq").hardlink_to(path)
    assert ["2 names (hard links)" in problem.what for problem in check(path)] == [True]
    (tmp_path / "other.tq").unlink()
    table = f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:1 /x {path} rw - ext4 a rw\n".encode()
    monkeypatch.setattr(sej.system.disk, "_mount_table", lambda: table)
    assert ["mounted here" in problem.what for problem in check(tmp_path / "link.tq")] == [True]


def test_lines_of_standard_input_are_kept_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    done = CliRunner().invoke(app, ["add", str(path)], input=b"caf\xe9\r\na\rb\nend")
    assert done.exit_code == 0
    assert plain(path) == b"-caf\xe9\n-a\rb\n-end\n"


def test_files_that_are_not_regular_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tq")
    (tmp_path / "b.tq").write_text("-b\n")
    with TextQueue(tmp_path) as q:
        assert drain(q) == ["b"]
    problem = check(tmp_path / "a.tq")[0]
    assert (problem.line, "a pipe" in problem.what) == (1, True)
    with pytest.raises(TextQueueError, match="expected a regular file"):
        TextQueue(tmp_path / "a.tq")
    with TextQueue() as q, pytest.raises(TextQueueError, match="expected a regular file"):
        q.add_input(tmp_path / "a.tq")


def test_a_listing_leaves_out_a_file_that_is_gone_for_a_moment(tmp_path: Path) -> None:
    path, other = tmp_path / "a.tq", tmp_path / "b.tq"
    path.write_bytes(b"-1\n-2\n")
    other.write_bytes(b"-3\n")
    with TextQueue(tmp_path) as q:

        def renamed() -> Iterator[Message]:
            for message in q.messages():
                path.unlink(missing_ok=True)
                yield message

        assert [one.message.value for one in details(renamed(), now_ns=0)] == ["3"]


def test_a_split_that_begins_again_numbers_its_files_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(lined(b"-a\n-b\n-c\n"))
    saves = [path.read_bytes() + b"-d\n"]

    def after_a_save(queue: QueueFile, file: File, temporary: str, before: Token) -> bool:
        if saves:
            path.write_bytes(saves.pop())
        return real(queue, file, temporary, before)

    real = QueueFile.swap
    monkeypatch.setattr(QueueFile, "swap", after_a_save)
    done = CliRunner().invoke(app, ["split", str(path), str(tmp_path / "new"), "--every", "2"])
    assert done.exit_code == 0
    found = {one.name: one.read_bytes() for one in (tmp_path / "new").iterdir()}
    assert found == {"jobs-0001.tq": b"-a\n-b\n", "jobs-0002.tq": b"-c\n-d\n"}


# --- Files with two versions: conflicts of Git, and conflict copies of programs that synchronise files


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


def all_taken(q: TextQueue) -> list[str]:
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
        assert all_taken(q) == ["pay invoice 2", "pay invoice 3", "call"]
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
