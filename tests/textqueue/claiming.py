"""A process that claims a message for a test."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import textqueue
from sej.system.disk import Disk
from tests.house.house import ROOT
from textqueue.claiming import Claim

MUTEX = "mutex=" + " " * 24
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""Before a command: it runs with pids of its own, as in a container."""
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
"""Of a process that imports the packages."""


def takes_lines(q: textqueue.TextQueue) -> textqueue.TextQueue:
    """Let a worker take a last message as soon as it has a newline, and a line without one never."""
    for one in q._inputs.found:
        one.source.settled = lambda position, raw: raw.endswith(b"\n")  # type: ignore[method-assign]
    return q


def taken(q: textqueue.TextQueue, owner: str | None = None, lease_s: float | None = None) -> Claim:
    """Take the next message, which there must be."""
    claim = q.take(owner, lease_s=lease_s)
    assert claim is not None
    return claim


def claim_elsewhere(path: Path, then: str, options: str = "", before: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start another process that claims the next message, reports it, and then runs more code; before: a prefix."""
    script = (
        "import sys, textqueue\n"
        f"q = textqueue.TextQueue({str(path)!r})\n"
        f"claim = q.take({options})\n"
        "print(claim.message.value if claim else None, flush=True)\n" + then
    )
    pipe, command = subprocess.PIPE, [*before, sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=pipe, stdin=pipe, text=True, env=ENV)


def create(disk: Disk, path: str, data: bytes) -> None:
    """Create a file on a disk, and sync it."""
    with disk.open(path, "new") as file:
        file.write(data)
        file.sync()


def plain(path: Path) -> bytes:
    """Return the content of a queue file without the line that names its generation."""
    return re.sub(rb"#queue\r?\n\\seq=[0-9]{12}\r?\n", b"", path.read_bytes())


def lined(text: bytes, number: int = 0) -> bytes:
    """Return the content of a queue file with that line, so that marks without claims have numbers, too."""
    return b"#queue\n\\seq=%012d\n" % number + text


def rewrite(path: Path, text: bytes) -> None:
    """Save a text as a person who has seen the present state: with the line of the file."""
    found = re.search(rb"#queue\n\\seq=[0-9]{12}\n", path.read_bytes())
    path.write_bytes((found[0] if found else b"") + text)


def got(q: textqueue.TextQueue) -> textqueue.Message:
    """Read the next message, which there must be."""
    message = q.get_next()
    assert message is not None
    return message


def said(worker: "subprocess.Popen[str]") -> str:
    """Wait for a line of a process."""
    assert worker.stdout is not None
    return str(worker.stdout.readline())
