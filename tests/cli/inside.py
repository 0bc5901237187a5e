"""The command inside this process: a tenth of the cost, and whatever would have been a traceback is one of the test."""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from sej.cli.app import app, run


class Done(NamedTuple):
    """How it ended."""

    code: int
    out: bytes
    err: str


def inside(monkeypatch: pytest.MonkeyPatch, *words: str | Path, program: Callable[[list[str]], int] = run) -> Done:
    """Run a command line that ends by itself; nothing is on its standard input."""
    out, err = io.BytesIO(), io.BytesIO()
    with monkeypatch.context() as patched, Path(os.devnull).open() as nothing, warnings.catch_warnings():
        warnings.simplefilter("default")
        patched.setattr(sys, "stdin", nothing)
        patched.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
        patched.setattr(sys, "stderr", io.TextIOWrapper(err, write_through=True))
        code = program([str(word) for word in words])
        return Done(code, out.getvalue(), err.getvalue().decode())


def leaves() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command of all packages that is not a group, with the words that call it."""
    yield from _leaves(app, click.Context(app, info_name="sej"), ())


def _leaves(
    command: click.Command, context: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _leaves(found, click.Context(found, info_name=name, parent=context), (*words, name))
