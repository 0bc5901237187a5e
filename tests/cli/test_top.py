"""sej top: a table in a terminal, lines in a pipe."""

import json
import os
import signal
from io import BytesIO
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import COMMAND, sej, start
from tests.cli.terminal import ended, terminal
from tests.sej.support import commit, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, count in (("small", 3), ("large", 50)):
        write(tmp_path / "root" / name, [b"value"] * count)
    commit(tmp_path / "root" / "large", "mailer", 10)
    (tmp_path / "root" / "neither").mkdir()
    return tmp_path / "root"


def test_once_says_everything(root: Path) -> None:
    small, large = sorted(
        (json.loads(line) for line in sej("top", "--once", "--json", root).stdout.splitlines()),
        key=lambda row: row["end_offset"],
    )
    assert (Path(small["path"]), small["end_offset"], small["readers"], small["rate"]) == (root / "small", 3, [], None)
    assert (large["end_offset"], large["writer"]) == (50, None)
    (reader,) = large["readers"]
    assert reader == {"name": "mailer", "offset": 10, "behind": 40, "rate": None, "running": False}
    lines = sej("top", "--once", "--sort", "lag", root, root / "small").stdout.decode().splitlines()
    assert [line.split("\t")[1] for line in lines] == [str(root / "large"), str(root / "small")]
    assert lines[0].endswith("\tmailer:40")
    assert sej("top", "--once", root / "neither").returncode == 4
    assert sej("top", "--once", root / "missing").returncode == 4


def test_rates_come_with_the_second_look(root: Path) -> None:
    with start("top", "--json", "--interval", "0.05", root / "small") as running:
        assert json.loads(running.stdout.readline())["rate"] is None
        with library.Writer(root / "small") as writer:
            while json.loads(running.stdout.readline())["rate"] != 0:
                pass
            writer.append_many([b"x" * 100] * 500)
            while not (row := json.loads(running.stdout.readline()))["rate"]:
                pass
            assert row["end_offset"] == 503
            assert row["byte_rate"] > 100 * row["rate"]
            assert f"pid={os.getpid()} " in row["writer"]
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
        assert running.stderr.read() == b""


def test_a_journal_that_comes_and_one_that_breaks(root: Path) -> None:
    with start("top", "--interval", "0.05", root) as running:
        assert b"large" in running.stdout.readline()
        write(root / "medium", [b"x"])
        while b"medium" not in running.stdout.readline():
            pass
        (root / "small" / "jnl" / "ffffffffffffffff.jnl").touch()
        while b"exceeds the largest offset" not in running.stdout.readline():
            pass
        running.stdout.close()
        assert running.wait(20) == 0


@pytest.mark.parametrize("colour", [True, False])
def test_a_table_in_a_terminal(root: Path, colour: bool) -> None:
    with (
        library.Offset(root / "small", "runs"),
        terminal("top", "--interval", "0.1", root, env=None if colour else {"NO_COLOR": "1"}) as shown,
    ):
        shown.logfile_read = seen = BytesIO()
        shown.expect(rb"messages/s")
        shown.expect(rb"large[^\n]*mailer 40")
        shown.expect(rb"2 journals")
        shown.send("x")  # no key that it knows
        with library.Writer(root / "large") as writer:
            writer.append_many([b"x"] * 5)
            shown.expect(rb"mailer 45")
        shown.send("q")
        code, rest = ended(shown)
        assert code == 0
        assert b"\x1b[?1049l" in rest  # the screen that was there before is back
        assert (b"\x1b[33mruns" in seen.getvalue()) == colour


def test_a_narrow_terminal_shows_names_and_readers(root: Path) -> None:
    with terminal("top", root, columns=40) as shown:
        shown.expect(rb"large[^\n]*mailer 40")
        shown.expect(rb"small")
        shown.send("q")
        assert ended(shown)[0] == 0


def test_an_interrupt_gives_the_terminal_back(root: Path) -> None:
    script = 'before=$(stty -g); "$@"; echo "code $?"; [ "$before" = "$(stty -g)" ] && echo same'
    with terminal(command=["bash", "-c", script, "bash", *COMMAND, "top", str(root)]) as shown:
        shown.expect(b"2 journals")
        shown.sendintr()
        shown.expect(b"code 130")
        shown.expect(b"same")
        assert ended(shown)[0] == 0
