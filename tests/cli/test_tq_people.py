"""sej tq, as a person uses it: looks, reopens, undoes, edits, splits and watches."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, ENV, sej, start
from tests.cli.terminal import ended, terminal
from tests.cli.tq import name_of, rows
from tests.textqueue.claiming import plain, taken
from textqueue import TextQueue

SHELL = " ".join(COMMAND)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
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


def test_list_shows_who_has_claimed_a_message_and_since_when(jobs: Path) -> None:
    with TextQueue(jobs) as q:
        claim = taken(q)
        jobs.write_bytes(b"-urgent\n" + jobs.read_bytes())  # a save does not make the claim younger
        first, *others = rows(jobs, "--claimed")
        assert (first["value"], first["line"], first["holder"], others) == ("one", 5, claim.owner, [])
        assert values(jobs, "--free") == ["urgent", "two\nmore"]
        before = first["age_s"]
        assert isinstance(before, float)
        jobs.write_bytes(b"-more\n" + jobs.read_bytes())
        (after,) = rows(jobs, "--claimed")
        assert isinstance(after["age_s"], float)
        assert after["age_s"] > before
        assert claim.done()
    assert values(jobs, "--claimed") == []


def test_dates_priorities_and_tags(jobs: Path) -> None:
    jobs.write_text(
        "-plain\n-later\n\\due=2999-01-01\n\\pri=9\n-soon\n\\due=2001-01-01 09:00\n"
        "-high\n\\pri=2\n\\tags=home, urgent\n"
        "-low\n\\pri=-1\n-odd\n\\pri=first\n\\due=soon\n"
    )
    assert values(jobs, "--sort", "pri") == ["later", "high", "soon", "plain", "odd", "low"]
    assert values(jobs, "--sort", "due") == ["soon", "later", "plain", "high", "low", "odd"]
    assert values(jobs, "--sort", "age") == values(jobs)
    assert values(jobs, "--tag", "urgent") == ["high"]
    (row,) = rows(jobs, "--text", "high")
    assert (row["due"], row["priority"], row["tags"]) == ("", 2, ["home", "urgent"])
    assert sej("tq", "check", jobs).stdout.count(b" got ") == 2
    with terminal("tq", "watch", jobs) as shown:
        for text in (b"high", b"soon", b"plain", b"due 2999-01-01", b"later"):
            shown.expect(text)
        shown.send("q")
        assert ended(shown)[0] == 0
    done = []
    while (found := sej("tq", "next", "--json", jobs)).returncode == 0:
        done.append(json.loads(found.stdout)["value"])
        assert sej("tq", "done", jobs, done[-1]).returncode == 0
    assert done == ["high", "soon", "plain", "odd", "low"]
    assert sej("tq", "claim", jobs).returncode == 4
    assert sej("tq", "next", jobs).returncode == 4


def test_undo_does_not_take_a_message_for_an_equal_one(jobs: Path) -> None:
    jobs.write_bytes(b"-a\n-a\n")
    with TextQueue(jobs) as q:
        first, second = q.messages()
        first.mark_as_cleared()
        jobs.write_bytes(b"# above\n=a\n-a\n")
        second.mark_as_critical_error()
    assert sej("tq", "undo", jobs).returncode == 0
    assert jobs.read_bytes() == b"# above\n=a\n-a\n", "it was queued before, not cleared"


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


def test_edit_keeps_what_programs_do_meanwhile(jobs: Path, tmp_path: Path) -> None:
    env = editor(
        tmp_path,
        f"{SHELL} tq done {jobs} {name_of(jobs, 'one')}",
        f"{SHELL} tq add {jobs} five",
        r"sed -i -e 's/^!four/-four/' -e 's/^-two/-TWO/' -e '1i-zero' $1",
    )
    inode = jobs.stat().st_ino
    done = sej("tq", "edit", jobs, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    expected = b"-zero\n# today\n=one\n\n-TWO\n more\n=three\n-four\n-five\n"
    assert jobs.read_bytes() == expected
    assert jobs.stat().st_ino != inode
    assert values(jobs) == ["zero", "TWO\nmore", "four", "five"]
    assert sej("tq", "list", jobs).stderr == b"", "nothing looks like a stale save"
    assert jobs.read_bytes() == expected


def test_edit_lets_the_person_win_and_says_so(jobs: Path, tmp_path: Path) -> None:
    env = editor(tmp_path, f"{SHELL} tq done {jobs} {name_of(jobs, 'one')}", "sed -i 's/^-one/-one more/' $1")
    done = sej("tq", "edit", jobs, env=env)
    assert done.returncode == 0
    assert done.stderr == f"sej: {jobs}: one: a program changed this message; your version was saved\n".encode()
    assert jobs.read_bytes().startswith(b"# today\n-one more\n")


def test_edit_keeps_your_version_if_another_person_has_saved_the_file(jobs: Path, tmp_path: Path) -> None:
    env = editor(tmp_path, f"sed -i '1i-above' {jobs}", "echo '-mine' >> $1") | {"TMPDIR": str(tmp_path)}
    done = sej("tq", "edit", jobs, env=env)
    assert (done.returncode, b"your version was not saved" in done.stderr) == (1, True)
    (copy,) = tmp_path.glob("sej-tq-*/*")
    assert str(copy.parent).encode() in done.stderr
    assert copy.read_bytes().endswith(b"-mine\n")
    assert jobs.read_bytes().startswith(b"-above\n") and b"-mine" not in jobs.read_bytes()


def test_edit_without_a_change_and_with_a_failure_changes_nothing(jobs: Path, tmp_path: Path) -> None:
    before = jobs.read_bytes()
    assert sej("tq", "edit", jobs, env=editor(tmp_path, "exit 0")).returncode == 0
    failed = sej("tq", "edit", jobs, env=editor(tmp_path, "echo -n '-x' > $1", "exit 3"))
    assert (failed.returncode, b"exit code 3" in failed.stderr) == (1, True)
    assert sej("tq", "edit", jobs, env={"VISUAL": str(tmp_path / "none")}).returncode == 1
    removed = sej("tq", "edit", jobs, env={"VISUAL": "rm"})
    assert (removed.returncode, b"the editor removed its copy" in removed.stderr) == (1, True)
    unclear = sej("tq", "edit", jobs, env={"VISUAL": " ", "EDITOR": "vi '"})
    assert (unclear.returncode, b"set VISUAL or EDITOR" in unclear.stderr) == (1, True)
    assert jobs.read_bytes() == before
    assert sej("tq", "edit", tmp_path / "none.tq").returncode == 4


@pytest.mark.parametrize(("answers", "code"), [(["e", "x"], 1), (["s"], 0)])
def test_edit_checks_and_asks_as_visudo_does(jobs: Path, tmp_path: Path, answers: list[str], code: int) -> None:
    before = jobs.read_bytes()
    env = editor(tmp_path, "echo '?what' >> $1")
    with terminal("tq", "edit", jobs, env=env) as shown:
        for answer in answers:
            shown.expect(b"jobs.tq:8:1: a line cannot begin with '\\?'")
            shown.expect(rb"\(e\)dit again, \(x\) leave without saving changes, or \(s\)ave anyway")
            shown.sendline(answer)
        assert ended(shown)[0] == code
    assert jobs.read_bytes() == before + (b"" if code else b"?what\n")


def test_watch_prints_lines_in_a_pipe_and_a_table_in_a_terminal(jobs: Path) -> None:
    line = sej("tq", "watch", "--once", jobs).stdout.decode()
    assert line.endswith("\tqueued=2\tcleared=1\tcritical=1\tclaimed=0\n")
    assert json.loads(sej("tq", "watch", "--once", "--json", jobs).stdout)["critical"] == 1
    with terminal("tq", "watch", "--interval", "0.1s", jobs) as shown:
        shown.expect(b"2 queued, 1 cleared, 1 critical, 0 claimed")
        with TextQueue(jobs) as q:
            claim = q.take()
            shown.expect(b"1 claimed")
            assert claim is not None
            claim.done()
        shown.expect(b"1 queued, 2 cleared")
        shown.send(b"q")
        assert ended(shown)[0] == 0
    assert next(iter(TextQueue(jobs).messages())).value == "two\nmore"


def test_watch_shows_the_texts_in_a_narrow_terminal(jobs: Path) -> None:
    with terminal("tq", "watch", jobs, columns=40) as shown:
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
