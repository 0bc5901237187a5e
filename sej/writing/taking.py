"""Taking a journal: lock it, finish what an earlier process left unfinished, then open its end."""

from __future__ import annotations

from typing import Final

from sej.errors import LockLostError
from sej.journal.directory import Directory, Segment
from sej.journal.identity import journal_id
from sej.journal.writer_lock import WriterLock
from sej.system.durable import KeptPosition
from sej.writing.end import End
from sej.writing.opening import open_end, refuse_surplus, sweep

_FEW_SEGMENTS: Final = 2
"""A journal with more of them may have a segment whose messages the one before it has too."""


def take_end(
    directory: Directory, kept: KeptPosition, lock: WriterLock, first_offset: int, lock_timeout: float | None
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
    recovery = None
    while True:
        lock.acquire(timeout=lock_timeout)
        ours = journal_id(directory) is not None
        pending = directory.names("txn")
        segments = _finished(directory, pending)
        sweep(directory)
        try:
            if lock.original is not None:
                refuse_surplus(directory)
                segments = directory.segments()  # an original may just have added one
            end = open_end(directory, kept, first_offset=first_offset, lock=lock, segments=segments)
            recovery = end.recovery or recovery
            if not ours:
                journal_id(directory, create=True)
            if lock.original is None or lock.is_current():
                promised = bool(pending) or lock.original is not None
                return end._replace(recovery=recovery, promised=promised) if recovery or promised else end
        except LockLostError:
            pass  # start again
        lock.release()


def _finished(directory: Directory, pending: list[str]) -> list[Segment]:
    """Finish a repair that crashed, and return the segments. What is rarely needed is imported here.

    Args:
        directory: the journal.
        pending: the names in ``txn/``.
    """
    segments = directory.segments()
    if len(segments) > _FEW_SEGMENTS:
        from sej.journal.retention import remove_covered

        segments = remove_covered(directory)
    if "repair" in pending:
        from sej.journal.repair import finish_repair

        finish_repair(directory)
        segments = directory.segments()
    return segments
