"""How people's programs save a queue file: each loads it first, and later writes its old buffer.

A saver is a context manager. Its block begins when the program has loaded the file, and gets a function that saves. The
programs of other packages are used if they are installed.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.cli.terminal import terminal

Save = Callable[[bytes], None]
Saver = Callable[[Path], AbstractContextManager[Save]]


WAYS: Final = ("checkout", "stash", "ours", "theirs")
"""The ways of Git: the last two merge."""


def _buffer(path: Path, data: bytes) -> Path:
    buffer = path.with_name("buffer~")
    buffer.write_bytes(data)
    return buffer


@contextmanager
def _at_once(write: Callable[[Path, bytes], None], path: Path) -> Iterator[Save]:
    """Save with a program that need not load the file."""
    yield partial(write, path)


def _in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _in_steps(path: Path, data: bytes) -> None:
    """Let other processes run while a part of the text is in the file."""
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), step := len(data) // 3 + 1):
            file.write(data[at : at + step])
            for _ in range(50):
                os.sched_yield()


def _by_rename(path: Path, data: bytes) -> None:
    _buffer(path, data).replace(path)


def _shell(line: str) -> Callable[[Path, bytes], None]:
    """Run a line of a shell, with the names ``$buffer`` and ``$path``."""

    def write(path: Path, data: bytes) -> None:
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "buffer": str(_buffer(path, data)), "path": str(path)}
        subprocess.run(["sh", "-euc", line], env=env, check=True)

    return write


def _sort(path: Path, data: bytes) -> None:
    """Sort the lines; a message of several lines would lose them."""
    _shell('cat "$buffer" >"$path"' if b"\n\\" in data else 'sort -o "$path" "$buffer"')(path, data)


@contextmanager
def _vi(program: str, path: Path) -> Iterator[Save]:
    """Vim or Neovim in a terminal, without a swap file."""
    with terminal("-u", "NONE", "-i", "NONE", "-n", path, command=[program]) as shown:
        shown.send(b":echo 'LOA' . 'DED'\r")
        shown.expect(b"LOADED")

        def save(data: bytes) -> None:
            read = f"0r {_buffer(path, data)} | $d _ |" if data else ""
            shown.send(f":%d _ | {read} w!\r".encode())
            while shown.expect([b"written", b"really want to write"]):
                shown.send(b"y\r")
            shown.send(b":q!\r")
            assert path.stat().st_size == len(data)  # workers may have changed it in place

        yield save


@contextmanager
def _nano(path: Path) -> Iterator[Save]:
    """Nano in a terminal, without its configuration; ``-L`` adds no newline."""
    with terminal("-I", "-L", path, command=["nano"]) as shown:
        shown.expect(b"Help")

        def save(data: bytes) -> None:
            shown.send(b"\x1bT\x12")  # cut everything; insert a file
            shown.expect(b"to insert")
            shown.send(f"{_buffer(path, data)}\r".encode())
            shown.expect(b"Read|empty")
            shown.send(b"\x0f")
            shown.expect(b"Name to Write")
            shown.send(b"\r")
            while shown.expect([b"Wrote", b"since you opened"]):
                shown.send(b"y")
            assert path.stat().st_size == len(data)  # workers may have changed it in place

        yield save


_EMACS: Final = """(progn
  (load "userlock")
  (fset 'ask-user-about-supersession-threat #'ignore)
  (fset 'yes-or-no-p (lambda (&rest _) t))
  (find-file (getenv "queue"))
  (princ "loaded\\n")
  (read-string "")
  (erase-buffer)
  (insert-file-contents (getenv "buffer"))
  (set-buffer-modified-p t)
  (save-buffer))"""


@contextmanager
def _emacs(path: Path) -> Iterator[Save]:
    """Emacs without a terminal; as in one, it makes a backup by renaming the file."""
    env = {**os.environ, "queue": str(path), "buffer": str(path.with_name("buffer~"))}
    command = ["emacs", "-Q", "--batch", "--eval", _EMACS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"loaded\n"

        def save(data: bytes) -> None:
            _buffer(path, data)
            program.communicate(b"go\n")
            assert program.returncode == 0
            assert path.stat().st_size == len(data)  # workers may have changed it in place

        yield save


@contextmanager
def git(path: Path, chance: random.Random, work: Callable[[], None], ways: Sequence[str] = WAYS) -> Iterator[Save]:
    """Git: the person's version is checked out, stashed and restored, or merged with what programs wrote.

    Args:
        path: the queue file.
        chance: chooses what is done.
        work: called while the person's version is stashed.
        ways: what may be done.
    """

    def run(*words: str, check: bool = True) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(path.parent), *who, *words]
        env = {"PATH": os.environ["PATH"], "HOME": str(path.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(command, env=env, check=check, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(text: str) -> None:
        run("add", path.name)
        run("commit", "-q", "--allow-empty", "-m", text)

    if not (path.parent / ".git").exists():
        run("init", "-q")
    commit("before")

    def save(data: bytes) -> None:
        blob = run("hash-object", "-w", str(_buffer(path, data)))
        run("update-index", "--cacheinfo", f"100644,{blob},{path.name}")
        version = run("commit-tree", run("write-tree"), "-p", "HEAD", "-m", "person")
        run("reset", "-q")
        how = chance.choice(ways)
        if how == "checkout":
            run("checkout", "-q", version, "--", path.name)
        elif how == "stash":
            path.write_bytes(data)
            run("stash", "push", "-q")
            work()
            if run("stash", "list"):
                run("checkout", "-q", "stash", "--", path.name)  # to pop is refused after a change
                run("stash", "drop", "-q")
        else:
            commit("programs")
            run("merge", "-q", "-X", how, "-m", "merged", version)

    yield save


_TRIM: Final = "sed 's/[ \t]*$//' \"$buffer\""
_PROGRAMS: Final[dict[str, Saver]] = {
    "vim": partial(_vi, "vim"),
    "nvim": partial(_vi, "nvim"),
    "nano": _nano,
    "emacs": _emacs,
    "rsync": partial(_at_once, _shell('rsync -I "$buffer" "$path"')),
    "rsync --inplace": partial(_at_once, _shell('rsync -I --inplace "$buffer" "$path"')),
    "sponge": partial(_at_once, _shell(_TRIM + ' | sponge "$path"')),
    "sed": partial(_at_once, _shell('cp "$buffer" "$path"; sed -i "s/[ \t]*\\$//" "$path"')),
    "sort": partial(_at_once, _sort),
    "dd": partial(_at_once, _shell('dd if="$buffer" of="$path" bs=7 status=none')),
    "cp": partial(_at_once, _shell('cp "$buffer" "$path"')),
    "sh": partial(_at_once, _shell(_TRIM + ' >"$path"')),
}
MISSING: Final = sorted({name.split()[0] for name in [*_PROGRAMS, "git"] if shutil.which(name.split()[0]) is None})
"""The programs that are not installed."""
SAVERS: Final[dict[str, Saver]] = {
    "in place": partial(_at_once, _in_place),
    "in steps": partial(_at_once, _in_steps),
    "by rename": partial(_at_once, _by_rename),
    **{name: saver for name, saver in _PROGRAMS.items() if name.split()[0] not in MISSING},
}
"""The programs of this machine."""
