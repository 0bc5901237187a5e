"""Running the real command, as a program of its own."""

import functools
import os
import subprocess
import sys
from pathlib import Path

from tests.forking import Forkserver

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-W", "error", "-m", "sej"]
# The commands whose imports cost most; those of the others are among them.
COMMON = [
    *("sej.cli.doctor", "sej.cli.queue", "textqueue.commands.group", "kestrel.commands", "shard.cli", "hub.cli"),
    *("sej.cli.app", "sej.cli.checking", "sej.cli.reading", "sej.cli.stat", "sej.cli.writing"),
    *("sej.queue.journal_queue", "pipeline.health", "importlib.metadata", "ctypes", "mmap"),
]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


@functools.cache
def _forkserver() -> Forkserver:
    """One for all tests of a run. What else a command needs it imports, as the program does."""
    return Forkserver(*COMMON, options=COMMAND[1:3], env=ENV)


def sej(
    *words: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``sej`` to its end; the caller judges the exit code. With env, in a fresh interpreter that has it."""
    if env is None:
        done = _forkserver().run(["sej", *map(str, words)], stdin=stdin)
    else:
        command = [*COMMAND, *map(str, words)]
        done = subprocess.run(command, input=stdin, capture_output=True, env={**ENV, **env}, timeout=60, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def start(*words: str | Path, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start ``sej`` with pipes at both ends."""
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    )
