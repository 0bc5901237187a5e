"""Programs that a command starts for each message."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import click

__all__ = ["require_program"]


def require_program(command: Sequence[str]) -> None:
    """Check that the program exists before any message is taken for it; an empty command passes.

    Raises:
        click.UsageError: the program does not exist.
    """
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"program {command[0]!r} not found, or not executable")
