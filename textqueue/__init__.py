"""TextQueue: message queues in plain text files that people edit while programs work on them."""

from textqueue.checker import Problem, check
from textqueue.claims import Claim
from textqueue.errors import (
    FileInUseError,
    InvalidTextError,
    MessageMovedError,
    NoSuchVariableError,
    TextQueueError,
    VariableTooLongError,
)
from textqueue.grammar import MessageStatus
from textqueue.message import Message
from textqueue.published import warn_if_installed as _warn_if_installed
from textqueue.queue import TextQueue
from textqueue.reconcile import Conflict

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

_warn_if_installed()
