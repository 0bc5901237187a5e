"""The two locks of an exclusive writer: the journal's lock file, and the last segment itself."""

from __future__ import annotations

from sej.errors import LockedError
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.locks import Lock

__all__ = ["lock_segment", "writer_lock"]


def writer_lock(directory: Directory) -> Lock:
    """The journal's lock, which an original takes and unlinks, too; not taken so far."""
    return Lock(
        directory.at("jnl.lck"),
        what="the journal's writer lock",
        written=lambda: bool(directory.segments()),
        disk=directory.disk,
    )


def lock_segment(file: File) -> None:
    """Take the last segment's own lock, which an exclusive writer holds beside ``jnl.lck``.

    The original unlinks ``jnl.lck``, and with it the lock of the process that holds that inode. No process unlinks the
    last segment: of our own writers never two append, whatever becomes of the lock file.

    Raises:
        LockedError: another writer holds it.
    """
    if not file.lock(brief=True):
        raise LockedError(
            "another writer is at work on this segment, though the journal's lock file is free: it was removed under"
            " that writer; close it there",
            path=file.path,
        )
