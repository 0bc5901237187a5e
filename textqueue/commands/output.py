"""What the commands print: texts with escaped control characters, and refusals."""

from __future__ import annotations

import json as jsonlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from sej.cli.shared.exits import Exit

JSON: Final = click.option("--json", is_flag=True, help="One JSON object per line.")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")
_ESCAPED: Final = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\\": b"\\\\"}
"""Control characters are printed as ``sej scan`` prints them."""


def shown(text: bytes) -> bytes:
    """Return a text with its control characters escaped."""
    return _CONTROL.sub(lambda found: _ESCAPED.get(found[0]) or b"\\x%02x" % found[0][0], text)


def print_json(fields: Mapping[str, Any]) -> None:
    """Print one object, in UTF-8 in every locale. Bytes that are not UTF-8 remain as they are."""
    sys.stdout.buffer.write(jsonlib.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")


def print_line(*columns: str | bytes) -> None:
    """Print one line of columns, separated by tabs."""
    found = [one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in columns]
    sys.stdout.buffer.write(b"\t".join(found) + b"\n")


def refuse(path: Path, why: str, code: Exit = Exit.MISSING) -> NoReturn:
    """Print why a command does nothing, and end it."""
    click.echo(f"sej: {path}: {why}", err=True)
    raise SystemExit(code)
