"""The two locks of an exclusive writer: the journal's lock file, and the last segment itself."""

from __future__ import annotations

import errno
import time
from typing import Final

from sej.errors import LockedError
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.locks import Lock

__all__ = ["lock_segment", "require_name", "writer_lock"]

_DYING_S: Final = 0.25
_PAUSE_S: Final = 0.002


def writer_lock(directory: Directory) -> Lock:
    """Return the journal's lock, which an original takes and unlinks too; not taken yet."""
    return Lock(
        directory.prefix + "jnl.lck",
        what="the journal's writer lock",
        written=lambda: bool(directory.segments()),
        disk=directory.disk,
    )


def lock_segment(file: File) -> None:
    """Take the last segment's own lock, which an exclusive writer holds in addition to ``jnl.lck``.

    The original unlinks ``jnl.lck``, and with it the lock of the process that holds that inode. No process unlinks the
    last segment, so two of our own writers never append, whatever happens to the lock file.

    A process that is killed gives its locks back one after the other, ``jnl.lck`` first. So this waits for a moment.

    Raises:
        LockedError: another writer holds it.
    """
    deadline = time.monotonic() + _DYING_S
    while not file.lock():
        if time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            continue
        raise LockedError(
            "another writer holds this segment, although the journal's lock file is free: the file was removed"
            " while that writer ran; close that writer",
            path=file.path,
        )


def require_name(segment: File) -> None:
    """Check that the segment that a writer appends to still has a name.

    Raises:
        OSError: ESTALE: it was removed, and what was appended after that is lost.
    """
    if not segment.extent()[1]:
        raise OSError(
            errno.ESTALE,
            "this segment was removed while a writer appended to it, and its messages with it: find the program that"
            " removes it, then open a new writer",
            segment.path,
        )
