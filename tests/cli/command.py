"""Running the real command, as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-W", "error", "-m", "sej"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def sej(
    *words: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``sej`` to its end; the caller judges the exit code."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        input=stdin,
        capture_output=True,
        env={**ENV, **(env or {})},
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def start(*words: str | Path, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start ``sej`` with pipes at both ends."""
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    )
