"""A process that claims a message for a test."""

import os
import subprocess
import sys
from pathlib import Path

MUTEX = "mutex=" + " " * 24
ROOT = Path(__file__).parent.parent.parent


def claim_elsewhere(path: Path, then: str, options: str = "") -> "subprocess.Popen[str]":
    """Start another process that claims the next message, reports it, and then runs more code."""
    script = (
        "import sys, textqueue\n"
        f"q = textqueue.TextQueue({str(path)!r})\n"
        f"claim = q.take({options})\n"
        "print(claim.message.value if claim else None, flush=True)\n" + then
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env
    )
