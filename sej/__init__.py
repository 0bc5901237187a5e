"""SEJ, segmented journals: message queues that are plain files.

Public names are imported at their first use, so that importing ``sej`` is fast and loads no other package. README.md
explains the names, docs/guarantees.md the promises.
"""

from __future__ import annotations

from sej.imports import TYPE_CHECKING
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from sej.errors import BadOffsetFileError as BadOffsetFileError
    from sej.errors import BatchConflictError as BatchConflictError
    from sej.errors import ClosedError as ClosedError
    from sej.errors import ConflictError as ConflictError
    from sej.errors import CorruptionError as CorruptionError
    from sej.errors import DecodeError as DecodeError
    from sej.errors import FileTypeError as FileTypeError
    from sej.errors import InvalidMessageError as InvalidMessageError
    from sej.errors import InvalidNameError as InvalidNameError
    from sej.errors import ItemFailedError as ItemFailedError
    from sej.errors import JournalNotFoundError as JournalNotFoundError
    from sej.errors import LeaseLostError as LeaseLostError
    from sej.errors import LockedError as LockedError
    from sej.errors import LockLostError as LockLostError
    from sej.errors import NetworkFileSystemError as NetworkFileSystemError
    from sej.errors import NotAJournalError as NotAJournalError
    from sej.errors import OffsetBeyondEndError as OffsetBeyondEndError
    from sej.errors import OffsetGapError as OffsetGapError
    from sej.errors import OffsetTooSmallError as OffsetTooSmallError
    from sej.errors import QueueFullError as QueueFullError
    from sej.errors import QueueNotFoundError as QueueNotFoundError
    from sej.errors import ResultGoneError as ResultGoneError
    from sej.errors import RetriesExhaustedError as RetriesExhaustedError
    from sej.errors import SejError as SejError
    from sej.errors import TruncatedError as TruncatedError
    from sej.errors import UnsupportedError as UnsupportedError
    from sej.errors import WriterFailedError as WriterFailedError
    from sej.journal.directory import Gap as Gap
    from sej.journal.recovery import Recovery as Recovery
    from sej.journal.repair import Problem as Problem
    from sej.journal.repair import Repair as Repair
    from sej.journal.retention import Retention as Retention
    from sej.journal.view import Journal as Journal
    from sej.message import FIRST as FIRST
    from sej.message import LAST as LAST
    from sej.message import NO_TIMESTAMP as NO_TIMESTAMP
    from sej.message import Message as Message
    from sej.queue.adapter import AsyncQueue as AsyncQueue
    from sej.queue.adapter import QueueAdapter as QueueAdapter
    from sej.queue.interface.queue import Item as Item
    from sej.queue.interface.queue import ResultHandle as ResultHandle
    from sej.queue.interface.queue import Schedules as Schedules
    from sej.queue.interface.queue import WorkQueue as WorkQueue
    from sej.queue.interface.queue import open_queue as open_queue
    from sej.queue.interface.values import Limit as Limit
    from sej.queue.interface.values import QueuedItem as QueuedItem
    from sej.queue.interface.values import Schedule as Schedule
    from sej.queue.interface.values import Stats as Stats
    from sej.queue.work import work as work
    from sej.reading.consumer import Consumer as Consumer
    from sej.reading.dead_letters import DeadLetter as DeadLetter
    from sej.reading.dead_letters import dead_letters as dead_letters
    from sej.reading.offset import Offset as Offset
    from sej.reading.offset import read_offset as read_offset
    from sej.reading.scanner import Scanner as Scanner
    from sej.writing.shared_writer import SharedWriter as SharedWriter
    from sej.writing.writer import Writer as Writer
else:
    __getattr__, __dir__, __all__ = _lazily(__name__, {
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
        "sej.journal.directory": ("Gap",),
        "sej.journal.view": ("Journal",),
        "sej.journal.retention": ("Retention",),
        "sej.message": ("FIRST", "LAST", "NO_TIMESTAMP", "Message"),
        "sej.reading.offset": ("Offset", "read_offset"),
        "sej.queue.adapter": ("AsyncQueue", "QueueAdapter"),
        "sej.journal.recovery": ("Recovery",),
        "sej.journal.repair": ("Problem", "Repair"),
        "sej.reading.scanner": ("Scanner",),
        "sej.writing.shared_writer": ("SharedWriter",),
        "sej.queue.interface.queue": ("Item", "ResultHandle", "Schedules", "WorkQueue", "open_queue"),
        "sej.queue.interface.values": ("Limit", "QueuedItem", "Schedule", "Stats"),
        "sej.writing.writer": ("Writer",),
        "sej.queue.work": ("work",),
    }, ("aio", "codec"))  # fmt: skip

__version__ = "0.1.0"
