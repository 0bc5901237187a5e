"""What is said where Spark is not installed: the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["spark_needed"]


@contextmanager
def spark_needed() -> Iterator[None]:
    """While something is imported that needs Spark: whoever lacks it is told what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.add_note("pipeline needs the extra `spark`: pip install 'sej-journals[spark]'")
        raise
