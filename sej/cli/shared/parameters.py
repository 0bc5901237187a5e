"""Types of parameters: paths, and offsets, times, durations and sizes, as :mod:`sej.cli.shared.units` parses them.

Also commands that start a program for each message, whose parameters come after ``--``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from sej.cli.shared.units import parse_place, parse_size
from sej.durations import parse_duration


class FilePath(click.Path):
    """A path that is not empty: an empty one, as of a variable that is not set, would mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse an empty one."""
        if value == "":
            self.fail(
                "expected the path of a file or directory ('.' is the current one), got an empty path", param, ctx
            )
        return super().convert(value, param, ctx)


class IntRange(click.IntRange):
    """A whole number from a range, named as such in errors: click's would say "not a valid integer range"."""

    name = "integer"


class _Parsed(click.ParamType[Any]):
    """A parameter that a function of :mod:`sej.cli.shared.units` parses."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the argument; a default is already parsed."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


def _parse_age(text: str) -> float:
    """Return the age after which something is removed. A number alone may be meant as days, so it needs a unit."""
    seconds = parse_duration(text)
    if seconds and not text.strip()[-1].isalpha():
        raise ValueError(f"{text!r} has no unit; expected {text}s for seconds, {text}h for hours or {text}d for days")
    return seconds


PATH: Final = FilePath(path_type=Path, readable=False)
PLACE: Final = _Parsed("offset or time", lambda text: parse_place(text, time.time_ns()))
DURATION: Final = _Parsed("duration", parse_duration)
AGE: Final = _Parsed("age", _parse_age)
SIZE: Final = _Parsed("size", parse_size)
BYTES: Final = _Parsed("text", os.fsencode)
"""The bytes of the argument, whether or not they are UTF-8."""


DIRECTORY: Final = click.argument("directory", metavar="DIR", type=PATH)
JSON: Final = click.option("--json", is_flag=True, help="One JSON object per line.")


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
    import shutil

    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"program {command[0]!r} not found, or not executable")


def run_program(command: Sequence[str], value: bytes, key: bytes | None = None, **variables: object) -> str | None:
    """Run a program with a value as its input; return how it failed, or None.

    Its environment has the variables, as ``SEJ_`` and their names, and ``SEJ_KEY`` unless the key has a zero byte.

    Example:
        >>> run_program(["sh", "-c", "exit $SEJ_CODE"], b"", code=1), run_program(["sh", "-c", "kill -TERM $$"], b"")
        ('exit code 1', 'killed by SIGTERM')
    """
    import subprocess

    environment = {**os.environ, **{f"SEJ_{name.upper()}": str(what) for name, what in variables.items()}}
    if key is not None and b"\0" not in key:
        environment["SEJ_KEY"] = os.fsdecode(key)
    code = subprocess.run(command, input=value, env=environment, check=False).returncode
    if code >= 0:
        return f"exit code {code}" if code else None
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"
