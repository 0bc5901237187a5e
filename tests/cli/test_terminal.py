"""As a person works: in a terminal and in pipes of a real shell."""

import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pexpect
import pytest

import sej as library
from tests.cli.command import COMMAND, ENV, sej, start
from tests.cli.terminal import ended, terminal
from tests.sej.hooks import until
from tests.sej.support import commit, overwrite, write

SEJ = shlex.join(COMMAND)
BASH = shutil.which("bash") or "bash"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    with library.Writer(path, segment_bytes=2000) as writer:
        for number in range(200):
            writer.append(b"value %d" % number, b"\x1b[31mkey")
    commit(path, "billing", 50)
    return path


def bash(script: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash with `sej` in it."""
    line = f'sej() {{ {SEJ} "$@"; }}; {script}'
    return subprocess.run([BASH, "-c", line], cwd=folder, env=ENV, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("words", ["count orders", "scan orders", "queue get orders", "top --once orders"])
def test_what_cannot_be_printed_is_an_error_and_not_done(journal: Path, words: str) -> None:
    library.open_queue(journal).close()
    done = bash(f"sej {words} >&-", journal.parent)
    assert (done.returncode, done.stderr) == (1, b"sej: Bad file descriptor\n")
    with library.open_queue(journal) as queue:
        assert tuple(queue.stats().values())[:4] == (200, 0, 0, 0)


@pytest.mark.parametrize("words", ["--help", "--version", "queue --help", "count orders"])
def test_an_output_that_is_full_or_closed_ends_every_command_alike(journal: Path, words: str) -> None:
    done = bash(f"sej {words} > /dev/full", journal.parent)
    assert (done.returncode, done.stderr) == (1, b"sej: No space left on device\n")
    done = bash(f"sej {words} | true; exit ${{PIPESTATUS[0]}}", journal.parent)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_input_that_is_closed_is_empty(journal: Path) -> None:
    done = bash("sej append orders <&-; sej queue put jobs <&- && sej count orders", journal.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"200\n", b"")
    done = bash("sej reset orders billing first <&-", journal.parent)
    assert done.returncode == 1 and done.stderr.endswith(b"no terminal and no answer: nothing was changed; use --yes\n")


def test_a_path_that_is_not_utf_8(journal: Path) -> None:
    shutil.copytree(journal, journal.parent / "x\udcff")
    done = bash("export PYTHONIOENCODING=utf-8:strict; sej file x* && sej top --once x*", journal.parent)
    assert (done.returncode, done.stderr) == (0, b"")
    *segments, sample = done.stdout.splitlines()
    assert b"/x\xff/jnl/" in segments[0] and b"\tx\xff\t" in sample


def test_reset_asks(journal: Path) -> None:
    with terminal("reset", journal, "billing", "7") as shown:
        shown.expect(b"43 messages will be read again")
        shown.expect(rb"Do it\? \[y/N\]")
        shown.sendline("y")
        assert ended(shown)[0] == 0
    with terminal("reset", journal, "billing", "9") as shown:
        shown.expect(b"Do it")
        shown.sendintr()
        while shown.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=2):
            shown.sendintr()  # the first may come just before the question waits
        assert ended(shown)[0] == 130
    assert library.read_offset(journal, "billing") == 7


def test_repair_shows_asks_and_says_where(journal: Path) -> None:
    segment = sorted((journal / "jnl").iterdir())[1]
    overwrite(segment, 100, b"\xff" * 40)
    with terminal("repair", journal) as shown:
        shown.expect(b"reading")  # the bar
        shown.expect(b"messages lost")
        shown.expect(rb"Do it\? \[y/N\]")
        shown.sendline("y")
        shown.expect(rb"kept: [^\r\n]*\.damaged")
        shown.expect(b"repaired: ")
        assert ended(shown)[0] == 0
    assert sej("verify", journal).returncode == 0


def watches(pid: int | None) -> bool:
    """Whether a process has a watch of inotify: it waits, or is about to."""
    return any("inotify" in os.path.realpath(file) for file in Path(f"/proc/{pid}/fd").iterdir())


def test_an_interrupt_is_130_and_no_traceback(journal: Path) -> None:
    for words in (["tail", "-f", "-n", "1"], ["follow", "--start", "199"]):
        with terminal(*words, journal) as shown:
            shown.expect(b"value 199")
            write(journal, [b"while %s waits" % words[0].encode()])
            shown.expect(b"while %s waits" % words[0].encode())
            until(partial(watches, shown.pid))  # an interrupt of an import is another case
            shown.sendintr()
            code, text = ended(shown)
        assert code == 130
        assert text.replace(b"^C", b"").strip() == b""


def test_a_key_cannot_paint_the_terminal(journal: Path) -> None:
    with terminal("tail", "-n", "1", journal) as shown:
        code, text = ended(shown)
    assert code == 0
    assert b"\\x1b[31mkey" in text
    assert b"\x1b" not in text


def test_append_in_a_terminal_says_how_many(tmp_path: Path) -> None:
    with terminal("append", tmp_path / "j") as shown:
        shown.sendline("one")
        shown.sendline("zwei größer")
        shown.sendeof()
        code, text = ended(shown)
    assert (code, b"appended 2 messages from offset 0 on" in text) == (0, True)
    assert sej("scan", tmp_path / "j").stdout.endswith("\tzwei größer\n".encode())
    with terminal("append", tmp_path / "j") as shown:
        shown.sendline("three")
        shown.sendeof()
        code, text = ended(shown)
    assert (code, b"appended 1 message from offset 2 on" in text) == (0, True)


@pytest.mark.parametrize(
    ("script", "lines", "codes"),
    [
        ("sej scan orders | head -3", 3, "0 0"),
        ("sej scan --json orders | head -1", 1, "0 0"),
        ("sej tail -f orders | head -1", 1, "0 0"),  # nothing comes after
        ("sej tail -n 3 -f orders | head -2", 2, "0 0"),
        ("sej follow --start 0 --reader '' orders | head -1", 0, "2 0"),
        ("sej follow --reader shipper orders | head -1", 1, "0 0"),
        ("sej top --interval 0.05 orders | head -2", 2, "0 0"),
        ("sej dump $(sej file orders 0) | tail -n 1", 1, "0 0"),
        ("sej scan --start 195 orders | cut -f 1 | sort -n | head -2", 2, "0 0 0 0"),
        ("yes | sej reset orders billing 3 | tail -1", 1, "141 0 0"),
        ("sej count missing | cat", 0, "4 0"),
    ],
)
def test_pipes(journal: Path, script: str, lines: int, codes: str) -> None:
    done = bash(f"{script}; echo codes ${{PIPESTATUS[@]}} >&2", journal.parent)
    *said, last = done.stderr.decode().splitlines()
    assert last == f"codes {codes}", done.stderr
    assert len(done.stdout.splitlines()) == lines
    assert "Traceback" not in done.stderr.decode()
    assert bool(said) == (codes[0] in "24"), said


def test_a_text_queue_and_a_hub_notice_that_their_reader_left(tmp_path: Path) -> None:
    import hub

    sej("tq", "add", tmp_path / "jobs.tq", "one", "two")
    with hub.Store(tmp_path / "hub") as store:
        store.put("EWR", "flights", [library.Message(n, n + 1, 0, b"", b"x") for n in range(3)])
    for words in ("tq follow jobs.tq", "hub merge --follow hub"):
        done = bash(f"sej {words} | head -1; echo ${{PIPESTATUS[@]}}", tmp_path)
        assert done.stdout.splitlines()[1:] == [b"0 0"], done
        assert done.stderr == b""


@pytest.mark.torture
def test_a_million_lines(tmp_path: Path, torture_s: float) -> None:
    """In and out again through pipes, equal to the byte; a tenth of it in a short run."""
    count = 1_000_000 if torture_s >= 10 else 100_000
    lines = b"".join(b"line %d\n" % number for number in range(count))
    assert sej("append", tmp_path / "j", stdin=lines).returncode == 0
    (segment,) = (tmp_path / "j" / "jnl").iterdir()
    with start("dump", segment) as dumping:
        out = dumping.stdout.read()
    assert b"".join(line.split(b"\t")[4] for line in out.splitlines(keepends=True)) == lines


@pytest.fixture
def shell(journal: Path) -> "pexpect.spawn[bytes]":
    """A bash with the completion of `sej` switched on."""
    scripts = Path(sys.executable).parent
    env = {**ENV, "PATH": f"{scripts}:{ENV['PATH']}", "PS1": "> ", "TERM": "dumb", "INPUTRC": "/dev/null"}
    running: pexpect.spawn[bytes] = pexpect.spawn(
        BASH, ["--norc", "--noprofile", "-i"], env=env, cwd=str(journal.parent), timeout=30, dimensions=(40, 200)
    )
    running.sendline("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'")
    running.sendline('eval "$(_SEJ_COMPLETE=bash_source sej)"; echo ready $((40 + 2))')
    running.expect(b"ready 42")
    return running


def test_completion_in_a_live_shell(shell: "pexpect.spawn[bytes]") -> None:
    for typed, completed in (
        ("sej rep", "air "),
        ("sej repair --dr", "y-run "),
        ("sej queue red", "rive "),
        ("sej tq arc", "hive "),
        ("sej scan --format msg", "pack "),
        ("sej scan or", "ders/"),
        ("sej offset orders bil", "ling "),
    ):
        shell.send(typed + "\t")
        shell.expect_exact(typed + completed)
        shell.sendcontrol("u")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()
