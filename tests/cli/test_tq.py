"""sej tq: text queues from a shell, as programs and persons use them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sej as library
from tests.cli.command import COMMAND, ENV, sej, start
from tests.cli.terminal import ended, terminal
from tests.textqueue.claiming import plain, taken
from textqueue import TextQueue


def rows(path: Path | str, *words: str) -> list[dict[str, Any]]:
    """The messages, with the options of words."""
    return [json.loads(line) for line in sej("tq", "list", "--json", *words, path).stdout.splitlines()]


def name_of(path: Path, text: str) -> str:
    """The name of the message of a text."""
    (row,) = [row for row in rows(path, "--status", "all") if row["value"] == text]
    return f"{row['position']}:{row['hash']}"


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


SHELL = " ".join(COMMAND)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"# today\n-one\n\n-two\n more\n=three\n!four\n")
    return path


def values(path: Path | str, *words: str) -> list[object]:
    return [row["value"] for row in rows(path, *words)]


def editor(folder: Path, *lines: str) -> dict[str, str]:
    """An editor that runs a script on the file, whose path is its argument."""
    path = folder / "editor"
    path.write_text("\n".join(["#!/bin/sh", "set -e", *lines]))
    path.chmod(0o755)
    return {"VISUAL": str(path)}


def test_list_shows_who_has_claimed_a_message_and_since_when(mixed: Path) -> None:
    with TextQueue(mixed) as q:
        claim = taken(q)
        mixed.write_bytes(b"-urgent\n" + mixed.read_bytes())  # a save does not make the claim younger
        first, *others = rows(mixed, "--claimed")
        assert (first["value"], first["line"], first["holder"], others) == ("one", 5, claim.owner, [])
        assert values(mixed, "--free") == ["urgent", "two\nmore"]
        before = first["age_s"]
        assert isinstance(before, float)
        mixed.write_bytes(b"-more\n" + mixed.read_bytes())
        (after,) = rows(mixed, "--claimed")
        assert isinstance(after["age_s"], float)
        assert after["age_s"] > before
        assert claim.done()
    assert values(mixed, "--claimed") == []


def test_dates_priorities_and_tags(mixed: Path) -> None:
    mixed.write_text(
        "-plain\n-later\n\\due=2999-01-01\n\\pri=9\n-soon\n\\due=2001-01-01 09:00\n"
        "-high\n\\pri=2\n\\tags=home, urgent\n"
        "-low\n\\pri=-1\n-odd\n\\pri=first\n\\due=soon\n"
    )
    assert values(mixed, "--sort", "pri") == ["later", "high", "soon", "plain", "odd", "low"]
    assert values(mixed, "--sort", "due") == ["soon", "later", "plain", "high", "low", "odd"]
    assert values(mixed, "--sort", "age") == values(mixed)
    assert values(mixed, "--tag", "urgent") == ["high"]
    (row,) = rows(mixed, "--text", "high")
    assert (row["due"], row["priority"], row["tags"]) == ("", 2, ["home", "urgent"])
    assert sej("tq", "check", mixed).stdout.count(b" got ") == 2
    with terminal("tq", "watch", mixed) as shown:
        for text in (b"high", b"soon", b"plain", b"due 2999-01-01", b"later"):
            shown.expect(text)
        shown.send("q")
        assert ended(shown)[0] == 0
    done = []
    while (found := sej("tq", "next", "--json", mixed)).returncode == 0:
        done.append(json.loads(found.stdout)["value"])
        assert sej("tq", "done", mixed, done[-1]).returncode == 0
    assert done == ["high", "soon", "plain", "odd", "low"]
    assert sej("tq", "claim", mixed).returncode == 4
    assert sej("tq", "next", mixed).returncode == 4


def test_undo_does_not_take_a_message_for_an_equal_one(mixed: Path) -> None:
    mixed.write_bytes(b"-a\n-a\n")
    with TextQueue(mixed) as q:
        first, second = q.messages()
        first.mark_as_cleared()
        mixed.write_bytes(b"# above\n=a\n-a\n")
        second.mark_as_critical_error()
    assert sej("tq", "undo", mixed).returncode == 0
    assert mixed.read_bytes() == b"# above\n=a\n-a\n", "it was queued before, not cleared"


def test_undo_of_several_and_of_equal_messages(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-same\n-same\n-other\n")
    with TextQueue(path) as q:
        first, second, other = list(q.messages())
        first.mark_as_cleared()
        other.mark_as_cleared()
        other.mark_as_queued()
        second.mark_as_critical_error()
    assert path.read_bytes() == b"=same\n!same\n-other\n"
    done = sej("tq", "undo", "--count", "3", path)
    assert [line.partition(b"\t")[2] for line in done.stdout.splitlines()] == [b"queued", b"cleared", b"queued"]
    assert path.read_bytes() == b"=same\n-same\n-other\n"


def test_undo_passes_over_what_a_worker_gave_back(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q:
        q.append("one").mark_as_cleared()
        q.append("two")
        with pytest.raises(ValueError, match="x"), q.claim():
            raise ValueError("x")
        next(iter(q.messages())).mark_as_critical_error()
        claim = q.take()
        assert claim is None or claim.give_back()
    assert sej("tq", "undo", path).stdout.endswith(b"\tqueued\n")
    assert plain(path) == b"=one\n-two\n"


def test_claim_waits_for_a_message(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.touch()
    assert sej("tq", "claim", "--timeout", "10ms", path).returncode == 2
    assert sej("tq", "claim", "--timeout", "0.01s", path).returncode == 4
    with start("tq", "claim", "--timeout", "60s", path, "--", "cat") as running:
        sej("tq", "add", path, "late")
        assert running.communicate(timeout=60) == (b"late", b"")
        assert running.returncode == 0
    assert plain(path) == b"=late\n"


def test_edit_keeps_what_programs_do_meanwhile(mixed: Path, tmp_path: Path) -> None:
    env = editor(
        tmp_path,
        f"{SHELL} tq done {mixed} {name_of(mixed, 'one')}",
        f"{SHELL} tq add {mixed} five",
        r"sed -i -e 's/^!four/-four/' -e 's/^-two/-TWO/' -e '1i-zero' $1",
    )
    inode = mixed.stat().st_ino
    done = sej("tq", "edit", mixed, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    expected = b"-zero\n# today\n=one\n\n-TWO\n more\n=three\n-four\n-five\n"
    assert mixed.read_bytes() == expected
    assert mixed.stat().st_ino != inode
    assert values(mixed) == ["zero", "TWO\nmore", "four", "five"]
    assert sej("tq", "list", mixed).stderr == b"", "nothing looks like a stale save"
    assert mixed.read_bytes() == expected


def test_edit_lets_the_person_win_and_says_so(mixed: Path, tmp_path: Path) -> None:
    env = editor(tmp_path, f"{SHELL} tq done {mixed} {name_of(mixed, 'one')}", "sed -i 's/^-one/-one more/' $1")
    done = sej("tq", "edit", mixed, env=env)
    assert done.returncode == 0
    assert done.stderr == f"sej: {mixed}: one: a program changed this message; your version was saved\n".encode()
    assert mixed.read_bytes().startswith(b"# today\n-one more\n")


def test_edit_keeps_your_version_if_another_person_has_saved_the_file(mixed: Path, tmp_path: Path) -> None:
    env = editor(tmp_path, f"sed -i '1i-above' {mixed}", "echo '-mine' >> $1") | {"TMPDIR": str(tmp_path)}
    done = sej("tq", "edit", mixed, env=env)
    assert (done.returncode, b"your version was not saved" in done.stderr) == (1, True)
    (copy,) = tmp_path.glob("sej-tq-*/*")
    assert str(copy.parent).encode() in done.stderr
    assert copy.read_bytes().endswith(b"-mine\n")
    assert mixed.read_bytes().startswith(b"-above\n") and b"-mine" not in mixed.read_bytes()


def test_edit_without_a_change_and_with_a_failure_changes_nothing(mixed: Path, tmp_path: Path) -> None:
    before = mixed.read_bytes()
    assert sej("tq", "edit", mixed, env=editor(tmp_path, "exit 0")).returncode == 0
    failed = sej("tq", "edit", mixed, env=editor(tmp_path, "echo -n '-x' > $1", "exit 3"))
    assert (failed.returncode, b"exit code 3" in failed.stderr) == (1, True)
    assert sej("tq", "edit", mixed, env={"VISUAL": str(tmp_path / "none")}).returncode == 1
    removed = sej("tq", "edit", mixed, env={"VISUAL": "rm"})
    assert (removed.returncode, b"the editor removed its copy" in removed.stderr) == (1, True)
    unclear = sej("tq", "edit", mixed, env={"VISUAL": " ", "EDITOR": "vi '"})
    assert (unclear.returncode, b"set VISUAL or EDITOR" in unclear.stderr) == (1, True)
    assert mixed.read_bytes() == before
    assert sej("tq", "edit", tmp_path / "none.tq").returncode == 4


@pytest.mark.parametrize(("answers", "code"), [(["e", "x"], 1), (["s"], 0)])
def test_edit_checks_and_asks_as_visudo_does(mixed: Path, tmp_path: Path, answers: list[str], code: int) -> None:
    before = mixed.read_bytes()
    env = editor(tmp_path, "echo '?what' >> $1")
    with terminal("tq", "edit", mixed, env=env) as shown:
        for answer in answers:
            shown.expect(b"jobs.tq:8:1: a line cannot begin with '\\?'")
            shown.expect(rb"\(e\)dit again, \(x\) leave without saving changes, or \(s\)ave anyway")
            shown.sendline(answer)
        assert ended(shown)[0] == code
    assert mixed.read_bytes() == before + (b"" if code else b"?what\n")


def test_watch_prints_lines_in_a_pipe_and_a_table_in_a_terminal(mixed: Path) -> None:
    line = sej("tq", "watch", "--once", mixed).stdout.decode()
    assert line.endswith("\tqueued=2\tcleared=1\tcritical=1\tclaimed=0\n")
    assert json.loads(sej("tq", "watch", "--once", "--json", mixed).stdout)["critical"] == 1
    with terminal("tq", "watch", "--interval", "0.1s", mixed) as shown:
        shown.expect(b"2 queued, 1 cleared, 1 critical, 0 claimed")
        with TextQueue(mixed) as q:
            claim = q.take()
            shown.expect(b"1 claimed")
            assert claim is not None
            claim.done()
        shown.expect(b"1 queued, 2 cleared")
        shown.send(b"q")
        assert ended(shown)[0] == 0
    assert next(iter(TextQueue(mixed).messages())).value == "two\nmore"


def test_watch_shows_the_texts_in_a_narrow_terminal(mixed: Path) -> None:
    with terminal("tq", "watch", mixed, columns=40) as shown:
        shown.expect(rb"queued[^\n]*two")
        shown.send(b"q")
        assert ended(shown)[0] == 0


def test_a_line_for_gitignore_is_suggested_once(tmp_path: Path) -> None:
    git = {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", tmp_path], env={**ENV, **git}, check=True)
    (tmp_path / "deep").mkdir()
    first, second = tmp_path / "deep" / "first.tq", tmp_path / "second.tq"
    advice = f"sej: add the line .*.tq.* to {tmp_path / '.gitignore'}: it names the hidden files of queues\n"
    assert sej("tq", "add", first, "a").stderr.decode() == advice
    assert sej("tq", "add", first, "b").stderr == b""
    (tmp_path / ".gitignore").write_text(".*.tq.*\n")
    assert sej("tq", "add", second, "a").stderr == b""
    shown = subprocess.run(["git", "-C", tmp_path, "status", "--short", "-uall"], capture_output=True, check=True)
    assert shown.stdout == b"?? .gitignore\n?? deep/first.tq\n?? second.tq\n", "and the line ignores them"
