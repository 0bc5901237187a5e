"""sej tq: text queues from a shell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import COMMAND, ENV, sej, start

CAT = [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]
FAIL = [sys.executable, "-S", "-c", "import sys; sys.exit(3)"]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    assert sej("tq", "add", path, "one", "größer").stdout == b"0\n5\n"
    return path


def listed(path: Path, *words: str) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in sej("tq", "list", "--json", *words, path).stdout.splitlines()]
    return [(row["status"], row["value"]) for row in rows]


def test_add_next_done_fail(jobs: Path) -> None:
    assert sej("tq", "next", jobs).stdout == b"0\tqueued\tone\n"
    assert sej("tq", "done", jobs, "0").returncode == 0
    assert sej("tq", "next", jobs).stdout == "5\tqueued\tgrößer\n".encode()
    assert sej("tq", "fail", jobs, "5", "--reason", "why").returncode == 0
    assert sej("tq", "next", jobs).returncode == 4
    assert listed(jobs, "--status", "cleared", "--status", "critical") == [("cleared", "one"), ("critical", "größer")]
    done = sej("tq", "done", jobs, "3")
    assert (done.returncode, b"position 3" in done.stderr) == (4, True)
    assert sej("tq", "add", jobs, stdin=b"three\nfour\n").returncode == 0
    assert listed(jobs) == [("queued", "three"), ("queued", "four")]


def test_what_a_person_typed_reaches_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\x1b[31m\tb\\c\r.\n d\x7f\n")
    assert sej("tq", "list", path).stdout == rb"0	queued	a\x1b[31m\tb\\c\r.\nd\x7f" + b"\n"


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
    assert listed(jobs) == [("queued", "one"), ("queued", "größer")]
    assert listed(jobs, "--status", "critical") == [("critical", "counted")]


def test_a_claim_without_a_command_is_the_shells(jobs: Path) -> None:
    script = '"$@" tq claim "$JOBS" && "$@" tq claim "$JOBS" && "$@" tq claim "$JOBS"; echo $?'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND], env={**ENV, "JOBS": str(jobs)}, capture_output=True, check=True
    )
    assert done.stdout.splitlines() == [b"0\tqueued\tone", "5\tqueued\tgrößer".encode(), b"4"]
    assert sej("tq", "claim", jobs, "--", *CAT).stdout == b"ONE"  # that shell is gone


def test_archive_and_check(jobs: Path, tmp_path: Path) -> None:
    sej("tq", "done", jobs, "0")
    sej("tq", "fail", jobs, "5")
    assert sej("tq", "archive", jobs, tmp_path / "done").stdout == b"1\n"
    assert sej("tq", "archive", "--critical", jobs, tmp_path / "done").stdout == b"1\n"
    assert jobs.read_bytes() == b""
    assert sej("tq", "check", jobs).returncode == 0
    jobs.write_bytes(b"no control character\n")
    done = sej("tq", "check", jobs)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{jobs}:1:1: ".encode())
    assert json.loads(sej("tq", "check", "--json", jobs).stdout)["line"] == 1


def test_follow_and_drain(jobs: Path, tmp_path: Path) -> None:
    with start("tq", "follow", jobs) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"0\tqueued\tone\n"
        sej("tq", "add", jobs, "three")
        assert running.stdout.readline() == "5\tqueued\tgrößer\n".encode()
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
    assert sej("tq", "done", tmp_path / "jobs.tq", "0").returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_list_all(jobs: Path) -> None:
    sej("tq", "done", jobs, "0")
    sej("tq", "add", jobs, "--comment", "a note")
    assert listed(jobs, "--status", "all") == [("cleared", "one"), ("queued", "größer"), ("comment", "a note")]
    assert sej("tq", "claim", jobs, "--", "./no-such-program").returncode == 2
    assert listed(jobs) == [("queued", "größer")]
