"""Taking a journal: lock it, finish what an earlier process left unfinished, then open its end."""

from __future__ import annotations

import contextlib

from sej.errors import LockLostError
from sej.journal.directory import Directory
from sej.journal.identity import journal_id
from sej.journal.repair import finish_repair
from sej.journal.retention import finish_merge
from sej.system.durable import KeptPosition
from sej.system.locks import Lock
from sej.writing.opening import End, sweep
from sej.writing.overlap import open_mended_end

__all__ = ["take_end"]


def take_end(
    directory: Directory, kept: KeptPosition, lock: Lock, first_offset: int, lock_timeout: float | None
) -> End:
    """Take the lock and open the end. If an original removes the lock file in the meantime, start again.

    If this raises, the lock may be held, and the caller releases it.

    Args:
        directory: the journal.
        kept: its kept position.
        lock: its lock, not yet taken.
        first_offset: where a journal without segments starts.
        lock_timeout: seconds to wait for the lock; None waits without a limit.

    Returns:
        The end, ready for appending.
    """
    end: End | None = None
    recovery = None
    try:
        while True:
            lock.acquire(timeout=lock_timeout)
            ours = journal_id(directory) is not None
            segments = finish_merge(directory)
            if directory.disk.status(directory.at("txn", "repair")) is not None:
                finish_repair(directory)
                segments = directory.segments()
            sweep(directory)
            with contextlib.suppress(LockLostError):
                end = open_mended_end(directory, kept, lock, segments, first_offset=first_offset, ours=ours)
                recovery = end.recovery or recovery
                if not ours:
                    journal_id(directory, create=True)
                if lock.original is None or lock.is_current():
                    return end._replace(recovery=recovery)
            if end is not None:
                end.index_file.close()
                end.file.close()
                end = None
            lock.release()
    except BaseException:
        if end is not None:
            end.file.close()  # its lock must not live as long as the traceback
        raise
