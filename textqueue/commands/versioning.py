"""The advice to keep the files next to a queue out of version control, given when a command creates them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from textqueue.ledger.sidecar import real_path, sidecar_path

_LINE: Final = ".*.tq.*"
_TIMEOUT_S: Final = 5.0


@contextmanager
def advising(paths: Iterable[str]) -> Iterator[None]:
    """Print the advice if the ledger of a queue is created within this context, and git does not ignore it."""
    new = [ledger for path in paths if not os.path.exists(ledger := sidecar_path(real_path(path), ".log"))]
    try:
        yield
    finally:
        for root in dict.fromkeys(_work_tree(ledger) for ledger in new if os.path.exists(ledger)):
            if root is not None:
                where = root / ".gitignore"
                click.echo(f"sej: add the line {_LINE} to {where}: it names the hidden files of queues", err=True)


def _work_tree(ledger: str) -> Path | None:
    """Return the git work tree of a file that git does not ignore; None if it is in none."""
    folder = Path(ledger).absolute().parent
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if root is None:
        return None
    command = ["git", "-C", str(folder), "check-ignore", "-q", "--no-index", os.path.basename(ledger)]
    try:
        code = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
    return root if code == 1 else None
