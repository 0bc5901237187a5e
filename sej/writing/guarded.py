"""Appending beside an original: each message between two looks at lock and end. Theory: sej.system.original."""

from __future__ import annotations

from collections.abc import Callable

from sej.codec import measure
from sej.errors import LockLostError
from sej.system.disk import File

__all__ = ["expect_size", "write_guarded"]


def write_guarded(file: File, data: memoryview, position: int, look: Callable[[], None]) -> None:
    """Append whole messages to a segment that ends at position, each between two looks.

    Raises:
        LockLostError: a look failed; the last message that was written, or none, is one too many.
    """
    at = 0
    look()
    expect_size(file, position)
    while at < len(data):
        due = int.from_bytes(data[at : at + 8], "big")
        end = measure(data, at, len(data), due, 1).position
        file.write(data[at:end])
        at = end
        look()
        expect_size(file, position + at)


def expect_size(file: File, position: int) -> None:
    """Make sure that no other process has appended to a segment.

    Raises:
        LockLostError: another process has.
    """
    size = file.size()
    if size != position:
        raise LockLostError(
            f"the segment has {size} bytes, this writer left it at {position}: another process writes it at the same"
            " time; close that one, then open this writer again",
            path=file.path,
            position=position,
        )
