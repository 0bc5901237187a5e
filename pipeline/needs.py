"""The error if Spark is not installed: it names the extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["spark_needed"]


@contextmanager
def spark_needed() -> Iterator[None]:
    """Add the extra's name to the error if the block cannot import Spark."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.add_note("pipeline needs the extra `spark`: pip install 'sej-journals[spark]'")
        raise
