"""Programs that a command starts for each message."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import click

__all__ = ["require_program"]


def require_program(command: Sequence[str]) -> None:
    """Make sure that there is such a program, before anything is taken for it; no command at all is well.

    Raises:
        click.UsageError: there is none.
    """
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]!r} that can be run")
