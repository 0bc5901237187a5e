"""Clocks: one that a test moves, and that of a file system."""

import os
from pathlib import Path


def next_tick(path: Path) -> None:
    """Wait until a write changes the time of the file: on many file systems it has ticks of 4 or 10 ms."""
    other = path.with_name("tick~")
    other.touch()
    while other.stat().st_mtime_ns == path.stat().st_mtime_ns:
        os.utime(other)
    other.unlink()


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: int = 1000) -> None:
        self.now: int = now

    def __call__(self) -> int:
        return self.now
