"""sej tq: text queues from a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import COMMAND, ENV, sej, start
from tests.cli.tq import name_of, rows
from tests.textqueue.claiming import plain, taken
from textqueue import TextQueue

CAT = [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]
FAIL = [sys.executable, "-S", "-c", "import sys; sys.exit(3)"]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_text("-one\n-größer\n")
    return path


def listed(path: Path, *words: str) -> list[tuple[str, str]]:
    return [(row["status"], row["value"]) for row in rows(path, *words)]


def test_a_queue_with_any_name_is_appended_to(tmp_path: Path) -> None:
    for number, text in enumerate(["", "\n\n", "# a comment\n", "wrong line\n-a\n", "-a\n\n=b\n c\n\\d\n"]):
        file = tmp_path / f"todo-{number}"
        file.write_text(text)
        assert sej("tq", "add", file, "new").returncode == 0
        assert file.read_text() == text + "-new\n"
    assert sej("tq", "add", tmp_path / "made.txt", "new").returncode == 0


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
