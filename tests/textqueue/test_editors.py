"""The files for editors: they are installed where the editors look, and Vim in a terminal shows what workers mark."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from tests.cli.command import ENV, sej
from tests.cli.inside import inside
from tests.cli.terminal import terminal
from tests.textqueue.claiming import plain, taken
from tests.ticks import next_tick
from textqueue import TextQueue
from textqueue.format.parser import CONTROLS

ROOT = Path(__file__).parent.parent.parent
EDITORS = ROOT / "textqueue" / "editors"
VIM = shutil.which("vim")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    assert VIM is not None, "this test needs Vim: apt-get install vim"
    done = sej("tq", "editors", "install", "vim", "--home", tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / ".vimrc").write_text("set nocompatible\nfiletype plugin on\nsyntax on\nset updatetime=200\n")
    return tmp_path


@pytest.fixture
def path(home: Path) -> Path:
    path = home / "jobs.tq"
    path.write_bytes(b"# today\n-one\n\\v=1   \n-two\n")
    return path


@contextmanager
def vim(home: Path, path: Path) -> Iterator["pexpect.spawn[bytes]"]:
    with terminal("-n", path, command=[str(VIM)], env={"HOME": str(home)}) as shown:
        shown.expect(b"-two")
        yield shown
        shown.send(b"\x1b:qa!\r")
        shown.expect(pexpect.EOF)


def asked(shown: "pexpect.spawn[bytes]", home: Path, expression: str) -> str:
    """Let Vim evaluate an expression."""
    answer = home / "answer"
    answer.unlink(missing_ok=True)
    shown.send(
        f"\x1b:call writefile([string({expression})], '{answer}.new') | call rename('{answer}.new', '{answer}')\r"
    )
    shown.send(b":echo 'END' . 'MARK'\r")
    shown.expect(b"ENDMARK")
    return answer.read_text().strip()


def test_vim_shows_what_workers_mark(home: Path, path: Path) -> None:
    with vim(home, path) as shown, TextQueue(path) as q:
        first, second = taken(q), taken(q)
        assert first.done()
        shown.expect(b"=one")
        next_tick(path)
        assert second.give_up()
        shown.expect(b"!two")
        q.append("three")
        shown.expect(b"-three")
        assert q.conflicts == []


def test_vim_keeps_blanks_and_marks_messages_with_commands(home: Path, path: Path) -> None:
    with vim(home, path) as shown:
        assert asked(shown, home, "[&filetype, &autoread, b:EditorConfig_disable]") == "['textqueue', 1, 1]"
        shown.send(b":3TqDone\r:4TqFail\r:w\r")
        shown.expect(b"written")
        assert plain(path) == b"# today\n=one\n\\v=1   \n!two\n"
        shown.send(b":2,4TqReopen\r:w\r")
        shown.expect(b"written")
        assert plain(path) == b"# today\n-one\n\\v=1   \n-two\n"


def lines_after(home: Path, path: Path, command: str, *options: str) -> tuple[list[str], str]:
    """Run a command in Vim without a screen; return the lines of the file, and what Vim printed."""
    start = ["-n", "-es", "-S", str(home / ".vimrc"), "-c", f"edit {path}", "-c", command, "-c", "wq"]
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [str(VIM), *options, *start], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return path.read_text().splitlines(), done.stdout + done.stderr


def test_vim_leaves_the_comments_between_messages(home: Path, path: Path) -> None:
    assert lines_after(home, path, "%TqDone") == (["# today", "=one", "\\v=1   ", "=two"], "")
    assert lines_after(home, path, "1,2TqComment") == (["# today", "#one", "\\v=1   ", "=two"], "")
    assert lines_after(home, path, "1,3TqReopen") == (["- today", "-one", "\\v=1   ", "=two"], ""), "only comments"


def test_vim_reads_the_files_in_its_compatible_mode(home: Path, path: Path) -> None:
    (home / ".vimrc").write_text("set compatible\nfiletype plugin on\n")
    lines, printed = lines_after(home, path, "set filetype=text filetype=textqueue | 4TqDone", "-V1")
    assert lines == ["# today", "-one", "\\v=1   ", "=two"]
    assert not re.search(r"\bE\d+:", printed), printed


def test_vim_jumps_to_a_mistake(home: Path, path: Path) -> None:
    (home / "bin").mkdir()
    command = home / "bin" / "sej"
    problem = f"{path}:4:2: a problem; a way out"
    command.write_text(f'#!/bin/sh\n[ "$*" = "tq check {path}" ] && echo \'{problem}\'\nexit 1\n')
    command.chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    with terminal("-n", path, command=[str(VIM)], env=env) as shown:
        shown.expect(b"-two")
        shown.send(b":silent make!\r:redraw!\r:cc 1\r")
        found = asked(shown, home, "map(getqflist(), '[v:val.lnum, v:val.col, v:val.text]')")
        assert found == "[[4, 2, 'a problem; a way out']]"
        assert asked(shown, home, "getcurpos()[1:2]") == "[4, 2]"
        shown.send(b"\x1b:qa!\r")
        shown.expect(pexpect.EOF)


def test_every_file_is_installed_where_its_editor_looks(tmp_path: Path) -> None:
    names = ["vim", "nvim", "emacs", "nano", "vscode"]
    done = sej("tq", "editors", "install", *names, "--home", tmp_path, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"sej: vscode: only the colours are set up, because npm is not on the PATH\n"
    extension = tmp_path / ".vscode" / "extensions" / "sej.textqueue-1.0.0"
    assert "main" not in json.loads((extension / "package.json").read_text()), "this extension starts no program"
    pack = Path("pack") / "sej" / "start" / "textqueue"
    for file in (
        tmp_path / ".vim" / pack / "ftplugin" / "textqueue.vim",
        tmp_path / ".local/share/nvim/site" / pack / "lsp" / "textqueue.lua",
        tmp_path / ".local/share/nvim/site" / pack / "syntax" / "textqueue.vim",
        tmp_path / ".emacs.d/textqueue/textqueue-mode.el",
        tmp_path / ".local/share/nano/tq.nanorc",
        tmp_path / ".vscode/extensions/sej.textqueue-1.0.0/package.json",
    ):
        assert file.is_file(), file
    assert f'(load "{tmp_path}/.emacs.d/textqueue/textqueue-mode")' in done.stdout.decode()
    assert f'include "{tmp_path}/.local/share/nano/tq.nanorc"' in done.stdout.decode()
    again = sej("tq", "editors", "install", "vim", "--home", tmp_path)
    assert again.stdout.decode() == f"vim: {tmp_path / '.vim' / pack}\n"
    assert sej("tq", "editors", "install", "ed").returncode == 2


def test_the_line_for_emacs_is_whole_wherever_the_home_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path('a "b\\').mkdir()
    done = inside(monkeypatch, "tq", "editors", "install", "emacs", "emacs", "--home", 'a "b\\')
    path = tmp_path / 'a "b\\' / ".emacs.d" / "textqueue"
    line = str(path / "textqueue-mode").replace("\\", "\\\\").replace('"', '\\"')
    assert done.out.decode().splitlines() == [f"emacs: {path}", f'emacs: add to your init file: (load "{line}")']


def test_a_home_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = inside(monkeypatch, "tq", "editors", "install", "vim", "--home", tmp_path / "typo")
    assert (done.code, done.out) == (4, b"")
    assert f"{tmp_path / 'typo'}: this home directory does not exist" in done.err
    assert not (tmp_path / "typo").exists()


def test_without_a_name_the_editors_on_the_path_are_set_up(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    env = {"PATH": str(bin)}
    assert sej("tq", "editors", "install", "--home", tmp_path, env=env).returncode == 2
    (bin / "nvim").write_text("#!/bin/sh\n")
    (bin / "nvim").chmod(0o755)
    done = sej("tq", "editors", "install", "--home", tmp_path, env=env)
    assert [line.partition(":")[0] for line in done.stdout.decode().splitlines()] == ["nvim"]


def test_emacs_has_a_row_for_every_control_character() -> None:
    text = (EDITORS / "emacs" / "textqueue-mode.el").read_text()
    rows = re.findall(r'\("\^(.+?)\.\*\$" \.', text)
    assert {row.replace("\\\\\\\\", "\\") for row in rows[:-1]} == {chr(control.byte) for control in CONTROLS}
    outside = re.sub(r'"(?:[^"\\]|\\.)*"|;.*', "", text)
    assert outside.count("(") == outside.count(")")


def test_the_extension_of_vscode_is_complete() -> None:
    folder = EDITORS / "vscode"
    package = json.loads((folder / "package.json").read_text())
    assert package["license"] == "Apache-2.0"
    assert plain(folder / "LICENSE") == plain(ROOT / "LICENSE")
    icon = (folder / package["icon"]).read_bytes()
    assert icon[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(icon[16:20]) == int.from_bytes(icon[20:24]) == 128
    defaults = package["contributes"]["configurationDefaults"]["[textqueue]"]
    assert defaults["files.trimTrailingWhitespace"] is False
    named = [one["path"] for one in package["contributes"]["grammars"]]
    named += [one["configuration"] for one in package["contributes"]["languages"]]
    assert all((folder / path).exists() for path in named)
    source = (folder / "extension.js").read_text()
    assert '"tq", "lsp"' in source
    node = shutil.which("node")
    if node is not None:
        subprocess.run([node, "--check", folder / "extension.js"], env=ENV, check=True)
