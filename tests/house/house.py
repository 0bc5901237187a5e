"""What the checks of the house know: the root, the packages, and how a program is run from outside."""

import functools
import os
import pty
import re
import shutil
import subprocess
import sys
import sysconfig
import termios
from collections.abc import Iterator, Sequence
from contextlib import chdir, suppress
from pathlib import Path

from tests.forking import Forkserver

ROOT = Path(__file__).resolve().parent.parent.parent
# From the ground up, in import order.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PACKAGES = ("sej", "shard", "textqueue", "kestrel", "hub", "pipeline")

_PROGRESS = re.compile(r"\x1b\[\?25l.*?\x1b\[\?25h\s*(\x1b\[1A\x1b\[2K)?", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def seen(printed: str) -> str:
    """What a person sees of what was printed to a terminal: without colours, and progress that was erased."""
    return _COLOURS.sub("", _PROGRESS.sub("", printed.replace("\r\n", "\n")))


def matches(expected: str, printed: str) -> bool:
    """Whether a page shows this output; there, ``…`` is any text of a line, or alone any lines."""
    lines = (
        "(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in expected.splitlines()
    )
    return re.fullmatch("".join(lines), printed) is not None


def run(command: Sequence[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program elsewhere than in the tree, with no input; the caller judges its exit code."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def typed(text: str, directory: Path, **env: str) -> tuple[int, str]:
    """Run lines of a shell in a terminal: the exit code, and what it shows."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, 120))
    env = {**os.environ, "PATH": PATH, "TERM": "xterm-256color", **env}
    # Not by a fork of this process, which may have gRPC's threads.
    with subprocess.Popen(
        ["sh", "-euc", text], cwd=directory, env=env, stdin=terminal, stdout=terminal, stderr=terminal
    ) as shell:
        os.close(terminal)
        printed = b""
        with suppress(OSError), open(screen, "rb", buffering=0) as file:  # EIO: no process has the terminal any more
            while data := file.read(4096):
                printed += data
    return shell.returncode, seen(printed.decode())


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter of this environment."""
    return run([sys.executable, "-c", code], cwd, **env)


def sources() -> Iterator[Path]:
    """Every Python file of the packages that is not generated."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name)


def tracked() -> list[Path]:
    """Every file that git would hand to a stranger."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def has_compiler(tmp_path: Path) -> bool:
    """Whether a C compiler with Python's headers is at hand, found by compiling: asking for its name proves little."""
    compiler = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc")
    words = compiler.split()
    if shutil.which(words[0]) is None:
        return False
    source = tmp_path / "probe.c"
    source.write_text("#include <Python.h>\n")
    include = sysconfig.get_path("include")
    return run([*words, f"-I{include}", "-c", source, "-o", tmp_path / "probe.o"], tmp_path).returncode == 0


@functools.cache
def _forkserver() -> Forkserver:
    """One for all documents and examples of a run: most of the time of a short program is that of its imports."""
    imported = ("sej.aio", "sej.queue.journal_queue", "shard", "textqueue", "kestrel.segmented", "hub.wire", "pipeline")
    libraries = ("pyarrow.compute", "duckdb")
    env = {**os.environ, "PATH": PATH, "PYTHONPATH": str(ROOT)}
    return Forkserver(*imported, *libraries, options=["-W", "error"], env=env)


def forked(name: str, text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code as a program of its own, in which warnings are errors; the caller judges its exit code."""
    with chdir(cwd), _forkserver().pipe(["tests.house.program", name, text]) as program:
        out, err = program.communicate(timeout=280)
    return subprocess.CompletedProcess(program.args, program.wait(), out.decode(), err.decode())
