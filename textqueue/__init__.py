"""TextQueue: message queues in plain text files that users edit while programs work on them."""

# Of the distribution sej-journals: sej/names.py looks for this name.

from textqueue.claims.claim import Claim
from textqueue.editing.conflicts import Conflict
from textqueue.editing.message import Message
from textqueue.errors import (
    FileInUseError,
    InvalidTextError,
    MessageMovedError,
    NoSuchVariableError,
    TextQueueError,
    VariableTooLongError,
)
from textqueue.format.grammar import MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import Problem, check

QueueItem = Message
"""The published package's name for a message."""

__all__ = [
    "Claim",
    "Conflict",
    "FileInUseError",
    "InvalidTextError",
    "Message",
    "MessageMovedError",
    "MessageStatus",
    "NoSuchVariableError",
    "Problem",
    "QueueItem",
    "TextQueue",
    "TextQueueError",
    "VariableTooLongError",
    "check",
]
