"""Types of parameters: offsets, times, durations and sizes, as :mod:`sej.cli.units` parses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import click

from sej.cli.units import parse_place, parse_size
from sej.durations import parse_duration

__all__ = ["DURATION", "PLACE", "SIZE"]


class _Parsed(click.ParamType[Any]):
    """A parameter that a function of :mod:`sej.cli.units` parses."""

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


PLACE: Final = _Parsed("offset or time", lambda text: parse_place(text, time.time_ns()))
DURATION: Final = _Parsed("duration", parse_duration)
SIZE: Final = _Parsed("size", parse_size)
