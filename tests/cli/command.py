"""Running the real command, as a program of its own."""

import functools
import os
import subprocess
import sys
from pathlib import Path

from tests.forking import Forkserver, Piped

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-W", "error", "-m", "sej"]
# The commands whose imports cost most; those of the others are among them.
COMMON = [
    *("textqueue.commands", "kestrel.commands", "shard.cli", "hub.cli", "sej.cli.app"),
    *(f"sej.cli.{name}" for name in ("maintenance", "queue", "reading", "stat")),
    *("sej.queue.journal_queue", "pipeline.health", "importlib.metadata", "ctypes", "mmap"),
]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


@functools.cache
def _forkserver() -> Forkserver:
    """One for all tests of a run. What else a command needs it imports, as the program does."""
    return Forkserver(*COMMON, options=COMMAND[1:3], env=ENV)


AT_START = ("PYTHON", "LANG", "LC_", "SEJ_CODEC")
"""How the variables begin that an interpreter, or a module when it is imported, reads once."""


def sej(
    *words: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``sej`` to its end; the caller judges the exit code. Variables of env are added to the environment."""
    if env is None or not any(name.startswith(AT_START) for name in env):
        done = _forkserver().run(["sej", *map(str, words)], stdin=stdin, env=env)
    else:
        command = [*COMMAND, *map(str, words)]
        done = subprocess.run(command, input=stdin, capture_output=True, env={**ENV, **env}, timeout=60, check=False)
    assert b"Traceback" not in done.stderr or b" attempt" in done.stderr, done.stderr.decode()
    return done


def start(*words: str | Path, stdin: bool = False) -> Piped:
    """Start ``sej`` with pipes; without stdin, its standard input is empty."""
    return _forkserver().pipe(["sej", *map(str, words)], stdin=stdin)
