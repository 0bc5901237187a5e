"""Types of parameters: paths, and offsets, times, durations and sizes, as :mod:`sej.cli.shared.units` parses them."""

from __future__ import annotations

import time
from collections.abc import Callable
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
