"""SEJ, segmented journals: message queues that are plain files.

Names are handed on when they are first used, so that importing ``sej`` costs next to nothing and loads no other
package. The names and what they mean: README.md; the promises: docs/guarantees.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sej.backends import open_queue
    from sej.consumer import Consumer
    from sej.dead import DeadLetter, dead_letters
    from sej.errors import (
        BadOffsetFileError,
        BatchConflictError,
        ClosedError,
        CorruptionError,
        DecodeError,
        FileTypeError,
        InvalidMessageError,
        InvalidNameError,
        JournalNotFoundError,
        LeaseLostError,
        LockedError,
        LockLostError,
        NetworkFileSystemError,
        NotAJournalError,
        OffsetBeyondEndError,
        OffsetGapError,
        OffsetTooSmallError,
        QueueFullError,
        QueueNotFoundError,
        RetriesExhaustedError,
        SejError,
        TruncatedError,
        UnsupportedError,
        WriterFailedError,
    )
    from sej.gaps import Gap
    from sej.journal import Journal
    from sej.maintenance import Retention
    from sej.message import FIRST, LAST, NO_TIMESTAMP, Message
    from sej.offset import Offset, read_offset
    from sej.queue_adapter import AsyncQueue, QueueAdapter
    from sej.recovery import Recovery
    from sej.repair import Repair
    from sej.scanner import Scanner
    from sej.shared_writer import SharedWriter
    from sej.verify import Problem
    from sej.work import Item, Stats, WorkQueue
    from sej.writer import Writer

_HOME = {
    "sej.backends": ("open_queue",),
    "sej.consumer": ("Consumer",),
    "sej.dead": ("DeadLetter", "dead_letters"),
    "sej.errors": (
        "BadOffsetFileError", "BatchConflictError", "ClosedError", "CorruptionError", "DecodeError",
        "FileTypeError", "InvalidMessageError", "InvalidNameError", "JournalNotFoundError", "LeaseLostError",
        "LockLostError", "LockedError", "NetworkFileSystemError", "NotAJournalError", "OffsetBeyondEndError",
        "OffsetGapError", "OffsetTooSmallError", "QueueFullError", "QueueNotFoundError", "RetriesExhaustedError",
        "SejError",
        "TruncatedError", "UnsupportedError", "WriterFailedError",
    ),
    "sej.gaps": ("Gap",),
    "sej.journal": ("Journal",),
    "sej.maintenance": ("Retention",),
    "sej.message": ("FIRST", "LAST", "NO_TIMESTAMP", "Message"),
    "sej.offset": ("Offset", "read_offset"),
    "sej.queue_adapter": ("AsyncQueue", "QueueAdapter"),
    "sej.recovery": ("Recovery",),
    "sej.repair": ("Repair",),
    "sej.scanner": ("Scanner",),
    "sej.shared_writer": ("SharedWriter",),
    "sej.verify": ("Problem",),
    "sej.work": ("Item", "Stats", "WorkQueue"),
    "sej.writer": ("Writer",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "FIRST",
    "LAST",
    "NO_TIMESTAMP",
    "AsyncQueue",
    "BadOffsetFileError",
    "BatchConflictError",
    "ClosedError",
    "Consumer",
    "CorruptionError",
    "DeadLetter",
    "DecodeError",
    "FileTypeError",
    "Gap",
    "InvalidMessageError",
    "InvalidNameError",
    "Item",
    "Journal",
    "JournalNotFoundError",
    "LeaseLostError",
    "LockLostError",
    "LockedError",
    "Message",
    "NetworkFileSystemError",
    "NotAJournalError",
    "Offset",
    "OffsetBeyondEndError",
    "OffsetGapError",
    "OffsetTooSmallError",
    "Problem",
    "QueueAdapter",
    "QueueFullError",
    "QueueNotFoundError",
    "Recovery",
    "Repair",
    "Retention",
    "RetriesExhaustedError",
    "Scanner",
    "SejError",
    "SharedWriter",
    "Stats",
    "TruncatedError",
    "UnsupportedError",
    "WorkQueue",
    "Writer",
    "WriterFailedError",
    "dead_letters",
    "open_queue",
    "read_offset",
]


def __getattr__(name: str) -> object:
    """Fetch a public name from its module at its first use."""
    import importlib

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sej' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
