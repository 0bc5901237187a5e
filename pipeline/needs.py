"""The error if a library of an extra is not installed: it names the extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needed"]


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Add the extra's name to the error if the block cannot import its library."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.add_note(f"pipeline needs the extra `{extra}`: pip install 'sej-journals[{extra}]'")
        raise
