"""SEJ, segmented journals: message queues that are plain files.

Public names are imported at their first use, so that importing ``sej`` is fast and loads no other package. README.md
explains the names, docs/guarantees.md the promises.
"""

from __future__ import annotations

from sej.imports import TYPE_CHECKING
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from sej.errors import (
        BadOffsetFileError,
        BatchConflictError,
        ClosedError,
        ConflictError,
        CorruptionError,
        DecodeError,
        FileTypeError,
        InvalidMessageError,
        InvalidNameError,
        ItemFailedError,
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
        ResultGoneError,
        RetriesExhaustedError,
        SejError,
        TruncatedError,
        UnsupportedError,
        WriterFailedError,
    )
    from sej.journal.gaps import Gap
    from sej.journal.recovery import Recovery
    from sej.journal.repair import Repair
    from sej.journal.retention import Retention
    from sej.journal.verify import Problem
    from sej.journal.view import Journal
    from sej.message import FIRST, LAST, NO_TIMESTAMP, Message
    from sej.queue.adapter import AsyncQueue, QueueAdapter
    from sej.queue.interface.queue import Item, ResultHandle, Schedules, WorkQueue, open_queue
    from sej.queue.interface.schedules import Schedule
    from sej.queue.interface.values import Limit, QueuedItem, Stats
    from sej.queue.work import work
    from sej.reading.consumer import Consumer
    from sej.reading.dead_letters import DeadLetter, dead_letters
    from sej.reading.offset import Offset, read_offset
    from sej.reading.scanner import Scanner
    from sej.writing.shared_writer import SharedWriter
    from sej.writing.writer import Writer
else:
    __getattr__, __dir__ = _lazily(__name__, {
        "sej.reading.consumer": ("Consumer",),
        "sej.reading.dead_letters": ("DeadLetter", "dead_letters"),
        "sej.errors": (
            "BadOffsetFileError", "BatchConflictError", "ClosedError", "ConflictError", "CorruptionError",
            "DecodeError", "FileTypeError", "InvalidMessageError", "InvalidNameError", "ItemFailedError",
            "JournalNotFoundError", "LeaseLostError", "LockLostError", "LockedError", "NetworkFileSystemError",
            "NotAJournalError", "OffsetBeyondEndError", "OffsetGapError", "OffsetTooSmallError", "QueueFullError",
            "QueueNotFoundError", "ResultGoneError", "RetriesExhaustedError", "SejError", "TruncatedError",
            "UnsupportedError", "WriterFailedError",
        ),
        "sej.journal.gaps": ("Gap",),
        "sej.journal.view": ("Journal",),
        "sej.journal.retention": ("Retention",),
        "sej.message": ("FIRST", "LAST", "NO_TIMESTAMP", "Message"),
        "sej.reading.offset": ("Offset", "read_offset"),
        "sej.queue.adapter": ("AsyncQueue", "QueueAdapter"),
        "sej.journal.recovery": ("Recovery",),
        "sej.journal.repair": ("Repair",),
        "sej.reading.scanner": ("Scanner",),
        "sej.writing.shared_writer": ("SharedWriter",),
        "sej.journal.verify": ("Problem",),
        "sej.queue.interface.queue": ("Item", "ResultHandle", "Schedules", "WorkQueue", "open_queue"),
        "sej.queue.interface.schedules": ("Schedule",),
        "sej.queue.interface.values": ("Limit", "QueuedItem", "Stats"),
        "sej.writing.writer": ("Writer",),
        "sej.queue.work": ("work",),
    }, ("aio", "codec"))  # fmt: skip

__version__ = "0.1.0"

__all__ = [
    "FIRST",
    "LAST",
    "NO_TIMESTAMP",
    "AsyncQueue",
    "BadOffsetFileError",
    "BatchConflictError",
    "ClosedError",
    "ConflictError",
    "Consumer",
    "CorruptionError",
    "DeadLetter",
    "DecodeError",
    "FileTypeError",
    "Gap",
    "InvalidMessageError",
    "InvalidNameError",
    "Item",
    "ItemFailedError",
    "Journal",
    "JournalNotFoundError",
    "LeaseLostError",
    "Limit",
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
    "QueuedItem",
    "Recovery",
    "Repair",
    "ResultGoneError",
    "ResultHandle",
    "Retention",
    "RetriesExhaustedError",
    "Scanner",
    "Schedule",
    "Schedules",
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
    "work",
]
