"""Programs that a command starts for each message."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence

import click


class ProgramCommand(click.Command):
    """A command that takes a program and its arguments after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if an option is unknown, explain where the options of the program belong."""
        separated = "--" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if separated:
                raise
            raise click.UsageError(
                f"{error.format_message()} Put the program after --, as in `{ctx.command_path} ... -- PROGRAM -x`.", ctx
            ) from None


def require_program(command: Sequence[str], *, json: bool = False) -> None:
    """Check that the program exists before any message is taken for it; an empty command passes.

    Raises:
        click.UsageError: the program does not exist, or ``--json`` was given, which is for messages that are printed.
    """
    if command and json:
        raise click.UsageError(
            f"--json is for printing; leave it out, because {command[0]!r} gets the text as its input"
        )
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"program {command[0]!r} not found, or not executable")


def ending(code: int) -> str:
    """Describe the return code of a program that failed.

    Example:
        >>> ending(1), ending(-15)
        ('exit code 1', 'killed by SIGTERM')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"
