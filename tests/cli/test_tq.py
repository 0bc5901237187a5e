"""sej tq: text queues from a shell."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import COMMAND, ENV, sej, start
from tests.cli.inside import inside
from tests.cli.tq import name_of, rows
from tests.textqueue.claiming import plain, taken
from textqueue import TextQueue

CAT = [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]
FAIL = [sys.executable, "-S", "-c", "import sys; sys.exit(3)"]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    assert names(sej("tq", "add", path, "one", "größer").stdout) == [0, 5]
    return path


def names(output: bytes) -> list[int]:
    """The positions of the names at the beginning of each line."""
    found = [re.match(rb"(\d+):[0-9a-f]{8}(?:\t|$)", line) for line in output.splitlines()]
    assert all(found)
    return [int(one[1]) for one in found if one is not None]


def listed(path: Path, *words: str) -> list[tuple[str, str]]:
    return [(row["status"], row["value"]) for row in rows(path, *words)]


def test_add_next_done_fail(jobs: Path) -> None:
    one, larger = name_of(jobs, "one"), name_of(jobs, "größer")
    assert sej("tq", "next", jobs).stdout == f"{one}\tqueued\tone\n".encode()
    assert sej("tq", "done", jobs, one).returncode == 0
    assert sej("tq", "next", jobs).stdout == f"{larger}\tqueued\tgrößer\n".encode()
    assert sej("tq", "fail", jobs, larger, "--reason", "why").returncode == 0
    assert sej("tq", "next", jobs).returncode == 4
    assert listed(jobs, "--status", "cleared", "--status", "critical") == [("cleared", "one"), ("critical", "größer")]
    done = sej("tq", "done", jobs, "3" + one[1:])
    assert (done.returncode, f"choose by name:\n  {one}  line 1, cleared: 'one'\n".encode() in done.stderr) == (4, True)
    assert sej("tq", "add", jobs, stdin=b"three\nfour\n").returncode == 0
    assert listed(jobs) == [("queued", "three"), ("queued", "four")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.md", "# Notes\n\nSome words.\nMore of them.\n\n- a bullet\n"),
        ("tool.py", "#!/usr/bin/python3\n# A tool.\nimport os\n\nif os.name:\n    print()\n"),
        ("data.json", '{"a": 1}'),
    ],
)
def test_a_file_that_is_not_a_queue_is_not_changed(jobs: Path, name: str, text: str) -> None:
    file = jobs.parent / name
    file.write_text(text)
    sej("tq", "done", jobs, name_of(jobs, "one"))
    for words in (("add", file, "two"), ("archive", jobs, file)):
        done = sej("tq", *words)
        assert (done.returncode, file.read_text()) == (2, text)
        assert f"{name}: this is not a text queue: lines like " in done.stderr.decode()
    file.rename(jobs.parent / "named.tq")
    assert names(sej("tq", "add", jobs.parent / "named.tq", "two").stdout) != []


def test_a_path_with_a_slash_at_the_end_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside(monkeypatch, "tq", "add", f"{tmp_path}/new/", "one", "--writer", "ann").code == 0
    assert (tmp_path / "new" / "ann.tq").read_text() == "-one\n"
    assert inside(monkeypatch, "tq", "add", f"{tmp_path}/new/ann.tq/", "two").code != 0
    assert (tmp_path / "new" / "ann.tq").read_text() == "-one\n"


def test_a_queue_with_any_name_is_appended_to(tmp_path: Path) -> None:
    for number, text in enumerate(["", "\n\n", "# a comment\n", "wrong line\n-a\n", "-a\n\n=b\n c\n\\d\n"]):
        file = tmp_path / f"todo-{number}"
        file.write_text(text)
        assert sej("tq", "add", file, "new").returncode == 0
        assert file.read_text() == text + "-new\n"
    assert sej("tq", "add", tmp_path / "made.txt", "new").returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "{dir}"], 4),
        (["next", "{dir}"], 4),
        (["check", "{dir}"], 4),
        (["edit", "{dir}"], 4),
        (["split", "{dir}", "{dir}/parts", "--status"], 4),
        (["claim", "{dir}"], 4),
        (["follow", "{dir}", "--timeout", "0"], 0),
        (["drain", "{dir}", "{dir}/journal"], 0),
    ],
)
def test_a_directory_without_a_queue_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    done = inside(monkeypatch, "tq", *(word.replace("{dir}", str(tmp_path)) for word in words))
    (line,) = done.err.splitlines()
    assert done.code == code
    assert line == f"sej: {tmp_path}: no file in this directory has a name that ends in .tq; `sej tq add` creates one"
    assert not (tmp_path / "parts").exists()


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\x1b[31m\tb\\c\r.\n d\x7f\n")
    assert sej("tq", "list", path).stdout.partition(b"\t")[2] == rb"queued	a\x1b[31m\tb\\c\r.\nd\x7f" + b"\n"


def test_claim_runs_a_command(jobs: Path) -> None:
    assert sej("tq", "claim", jobs, "--", *CAT).stdout == b"ONE"
    sej("tq", "add", jobs, "last", "--variable", "retries=0 ")
    assert sej("tq", "claim", "--all", jobs, "--", *CAT).stdout == "größer".encode().upper() + b"LAST"
    assert sej("tq", "claim", jobs, "--", *CAT).returncode == 4
    sej("tq", "add", jobs, "hopeless", "--variable", "retries=1 ")
    assert sej("tq", "claim", jobs, "--", *FAIL).returncode == 1
    assert listed(jobs, "--status", "critical") == [("critical", "hopeless")]


def test_claim_all_ends_where_nothing_counts_the_tries(jobs: Path) -> None:
    sej("tq", "add", jobs, "counted", "--variable", "retries=2 ")
    assert sej("tq", "claim", "--all", jobs, "--", *FAIL).returncode == 1
    assert listed(jobs) == [("queued", "one"), ("queued", "größer"), ("queued", "counted")]
    assert "counted\n\\retries=1 \n" in jobs.read_text()


def test_a_claim_without_a_command_is_the_shells(jobs: Path) -> None:
    script = '"$@" tq claim "$JOBS" && "$@" tq claim "$JOBS" && "$@" tq claim "$JOBS"; echo $?'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND], env={**ENV, "JOBS": str(jobs)}, capture_output=True, check=True
    )
    first, second, code = done.stdout.splitlines()
    assert (first.split(b"\t")[2], second.split(b"\t")[2], code) == (b"one", "größer".encode(), b"4")
    assert sej("tq", "claim", jobs, "--", *CAT).stdout == b"ONE"  # that shell is gone


def shell(jobs: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """A shell that claims; ``tq`` and ``$JOBS`` are the command and the file."""
    whole = f'command="$*"; tq() {{ $command tq "$@"; }}; {script}'
    return subprocess.run(
        ["sh", "-c", whole, "sh", *COMMAND], env={**ENV, "JOBS": str(jobs)}, capture_output=True, text=True, check=False
    )


def test_after_its_lease_another_worker_claims_the_message_of_a_shell(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.tq"
    sej("tq", "add", jobs, "one", "--variable", "mutex=" + " " * 30)
    assert shell(jobs, "tq claim $JOBS --lease 1h && tq claim $JOBS -- false").returncode == 4
    late = shell(jobs, "tq claim $JOBS --lease 0.001 && tq claim $JOBS -- false; tq done $JOBS")
    assert late.returncode == 4
    assert "this shell has claimed no message" in late.stderr
    assert listed(jobs) == [("queued", "one")], "the other worker has put it back"
    assert sej("tq", "claim", jobs, "--lease", "0", "--", *CAT).returncode == 2


def test_done_ends_the_claim_of_the_shell_wherever_its_message_is(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.tq"
    sej("tq", "add", jobs, "one", "two", "three")
    done = shell(jobs, "tq claim $JOBS && sed -i '1i-urgent' $JOBS && tq done $JOBS && tq claim $JOBS && tq fail $JOBS")
    assert (done.returncode, done.stderr) == (0, "")
    assert listed(jobs) == [("queued", "two"), ("queued", "three")]
    assert listed(jobs, "--status", "critical") == [("critical", "urgent")]
    assert b"@" not in jobs.read_bytes(), "no name is left in a mutex"


def test_done_without_a_name_is_refused_if_it_is_not_clear_what_is_meant(jobs: Path) -> None:
    before = plain(jobs)
    assert "no message" in shell(jobs, "tq done $JOBS").stderr
    two = shell(jobs, "tq claim $JOBS && tq claim $JOBS && tq done $JOBS")
    assert (two.returncode, "2 messages; name one of" in two.stderr) == (4, True)
    assert plain(jobs) == before
    named = shell(jobs, "tq claim $JOBS && tq claim $JOBS && tq done $JOBS " + name_of(jobs, "größer"))
    assert named.returncode == 0
    assert listed(jobs) == [("queued", "one")]


@pytest.mark.parametrize(
    ("command", "variables"), [("done", []), ("fail", ["mutex=" + " " * 40]), ("give-back", ["mutex=" + " " * 40])]
)
def test_a_name_of_another_process_claim_is_refused(tmp_path: Path, variables: list[str], command: str) -> None:
    jobs = tmp_path / "jobs.tq"
    with TextQueue(jobs) as q:
        q.append_many(["one", "two", "one"], variables)
        claim = taken(q)
        name, free = (f"{row['position']}:{row['hash']}" for row in rows(jobs)[:2])
        for above in (b"", b"-urgent\n"):
            jobs.write_bytes(above + jobs.read_bytes())
            if above:
                assert sej("tq", command, jobs, name).returncode == 4, "a line was inserted above"
                name, free = (f"{row['position']}:{row['hash']}" for row in rows(jobs)[1:3])
            before = jobs.read_bytes()
            refused = sej("tq", command, jobs, name, free)
            assert (refused.returncode, jobs.read_bytes()) == (1, before), refused.stderr
            assert claim.owner.encode() in refused.stderr
        assert claim.done()
        assert q.conflicts == []
    assert listed(jobs, "--status", "cleared") == [("cleared", "one")]


@pytest.mark.parametrize(
    ("command", "status", "variables"), [("done", "cleared", []), ("fail", "critical", ["mutex=" + " " * 40])]
)
@pytest.mark.parametrize("ended", ["its worker died", "its lease is over"])
def test_a_name_is_enough_after_the_end_of_a_claim(
    tmp_path: Path, variables: list[str], command: str, status: str, ended: str
) -> None:
    jobs = tmp_path / "jobs.tq"
    with TextQueue(jobs) as q:
        q.append("one", variables)
        if ended == "its worker died":
            subprocess.run(["sh", "-c", '"$@"; true', "sh", *COMMAND, "tq", "claim", jobs], env=ENV, check=True)
            claim = None
        else:
            claim = q.take(lease_s=1e-9)
            assert claim is not None
        done = sej("tq", command, jobs, name_of(jobs, "one"))
        assert (done.returncode, done.stderr) == (0, b"")
        assert listed(jobs, "--status", status) == [(status, "one")]
        assert b"@" not in jobs.read_bytes(), "no name is left in the mutex"
        assert claim is None or not claim.done()


def test_a_shell_gives_back_its_claim(jobs: Path) -> None:
    done = shell(jobs, "tq claim $JOBS && tq give-back $JOBS && tq claim $JOBS && tq give-back $JOBS 0:00000000")
    assert done.returncode == 4
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == ["one", "one"]
    refused = sej("tq", "give-back", jobs, name_of(jobs, "größer"))
    assert (refused.returncode, b"no process has claimed it" in refused.stderr) == (1, True)


def test_archive_and_check(jobs: Path, tmp_path: Path) -> None:
    sej("tq", "done", jobs, name_of(jobs, "one"))
    sej("tq", "fail", jobs, name_of(jobs, "größer"))
    assert sej("tq", "archive", jobs, tmp_path / "done").stdout == b"1\n"
    assert sej("tq", "archive", "--critical", jobs, tmp_path / "done").stdout == b"1\n"
    assert plain(jobs) == b""
    assert sej("tq", "check", jobs).returncode == 0
    jobs.write_bytes(b"no control character\n")
    done = sej("tq", "check", jobs)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{jobs}:1:1: ".encode())
    assert json.loads(sej("tq", "check", "--json", jobs).stdout)["line"] == 1


def test_what_is_among_the_files_of_a_journal_is_not_written(jobs: Path, tmp_path: Path) -> None:
    journal = tmp_path / "orders"
    sej("append", journal, stdin=b"one\n")
    sej("tq", "done", jobs, name_of(jobs, "one"))
    before, data = sorted(journal.rglob("*")), jobs.read_bytes()
    words: list[list[str | Path]] = [
        ["archive", jobs, journal / "jnl" / "done"],
        ["split", "--status", jobs, journal / "jnl" / "new"],
    ]
    for line in words:
        refused = sej("tq", *line)
        assert (refused.returncode, f"is among the files of the journal {journal}".encode() in refused.stderr) == (
            2,
            True,
        )
    assert (sorted(journal.rglob("*")), jobs.read_bytes()) == (before, data)


def test_follow_and_drain(jobs: Path, tmp_path: Path) -> None:
    with start("tq", "follow", jobs) as running:
        assert running.stdout is not None
        assert running.stdout.readline().endswith(b"\tqueued\tone\n")
        sej("tq", "add", jobs, "three")
        assert running.stdout.readline().endswith("\tqueued\tgrößer\n".encode())
        assert running.stdout.readline().endswith(b"\tthree\n")
        running.stdout.close()
        sej("tq", "add", jobs, "four")
        assert running.wait(20) == 0
    assert sej("tq", "drain", jobs, tmp_path / "journal").stdout == b"4\n"
    with library.Scanner(tmp_path / "journal") as scanner:
        assert [message.value for message in scanner] == [b"one", "größer".encode(), b"three", b"four"]
    assert sej("tq", "drain", jobs, tmp_path / "journal").stdout == b"0\n"


def test_what_is_missing_is_not_made(tmp_path: Path) -> None:
    for words in (["next"], ["list"], ["check"], ["claim"], ["follow"]):
        assert sej("tq", *words, tmp_path / "jobs.tq").returncode == 4
    assert sej("tq", "done", tmp_path / "jobs.tq", "0:01234567").returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    done = sej("tq", "add", tmp_path / "none" / "jobs.tq", "one")
    what = f"sej: {tmp_path / 'none'}: this directory does not exist; create it first\n"
    assert (done.returncode, done.stderr.decode()) == (4, what)


def test_list_all(jobs: Path) -> None:
    sej("tq", "done", jobs, name_of(jobs, "one"))
    sej("tq", "add", jobs, "--comment", "a note")
    assert listed(jobs, "--status", "all") == [("cleared", "one"), ("queued", "größer"), ("comment", "a note")]
    for words in (["--", "./no-such-program"], ["--json", "--", *CAT], ["--all"]):
        assert sej("tq", "claim", jobs, *words).returncode == 2
    assert listed(jobs) == [("queued", "größer")]


def test_a_text_file_without_a_message_is_reported(tmp_path: Path) -> None:
    notes, empty = tmp_path / "notes.txt", tmp_path / "empty.tq"
    notes.write_bytes(b"hello\n\nworld\n")
    empty.write_bytes(b"")
    note = f"sej: {notes}: no line is a message (2 lines are skipped); run `sej tq check {notes}`\n".encode()
    for words, code in (
        (["list"], 0),
        (["next"], 4),
        (["claim"], 4),
        (["drain"], 0),
        (["follow", "--timeout", "0s"], 0),
    ):
        target = [tmp_path / "j"] if words == ["drain"] else []
        done = sej("tq", *words, notes, *target)
        assert (done.returncode, done.stderr) == (code, note), words
        assert sej("tq", *words, empty, *target).stderr == b"", words
    notes.write_bytes(b"\xef\xbb\xbf# only a comment")
    assert sej("tq", "list", notes).stderr == b""


def test_a_failed_program_is_reported(jobs: Path) -> None:
    done = sej("tq", "claim", jobs, "--", *FAIL)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"sej: {jobs}: message {name_of(jobs, 'one')}: {FAIL[0]}: exit code 3\n".encode()


def test_texts_and_names_that_are_not_utf8_are_printed(tmp_path: Path) -> None:
    strict = {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\xff\n")
    done = sej("tq", "claim", path, "--", "sh", "-c", "printf '=a\\377\\n' > $0", path, env=strict)
    assert (done.returncode, rb"position 0: a\xff: changed" in done.stderr) == (0, True), done.stderr
    jobs = tmp_path / os.fsdecode(b"\xff")
    jobs.mkdir()
    added = sej("tq", "add", jobs, "a", "--writer", os.fsdecode(b"\xfe"), env=strict)
    assert (added.returncode, added.stdout[:4]) == (0, b"\xfe.tq"), added.stderr
    (jobs / os.fsdecode(b"\xfe.tq")).write_bytes(b"?\n")
    assert sej("tq", "check", jobs, env=strict).stdout.startswith(bytes(jobs) + b"/\xfe.tq:1:1: ")
