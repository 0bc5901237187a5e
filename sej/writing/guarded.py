"""Appending after a trace of the original: each message between two checks of the lock and of the segment's end.

:mod:`sej.system.original` explains what the checks prove.
"""

from __future__ import annotations

from collections.abc import Callable

from sej.codec import measure
from sej.errors import LockLostError
from sej.system.disk import File


def write_guarded(file: File, data: memoryview, position: int, check: Callable[[], None]) -> None:
    """Append whole messages to a segment that ends at position, each between two checks.

    Args:
        file: the segment.
        data: the messages.
        position: the end of the segment.
        check: raises LockLostError if the path of the lock is not the locked file any more.

    Raises:
        LockLostError: a check failed. The message before the failed check may be in the segment, unacknowledged.
    """
    at = 0
    check()
    expect_size(file, position)
    while at < len(data):
        offset = int.from_bytes(data[at : at + 8], "big")
        end = measure(data, at, len(data), offset, 1).position
        file.write(data[at:end])
        at = end
        check()
        expect_size(file, position + at)


def expect_size(file: File, position: int) -> None:
    """Check that no other process has appended to a segment.

    Raises:
        LockLostError: the segment does not end at position.
    """
    size = file.size()
    if size != position:
        raise LockLostError(
            f"the segment has {size} bytes, but this writer left it at {position}: another process is writing it too;"
            " close that process, then open this writer again",
            path=file.path,
            position=position,
        )
