"""TextQueue: message queues in plain text files that users edit while programs work on them.

The modules and folders, in the order in which they are best read::

    queue, errors     TextQueue, the public class; the errors
    format            bytes as entries: the grammar, the parser, the mutex. No I/O
    reading           files, the next message, waiting for new ones, check
    editing           changes of a file, each proven first; what a person's save has not seen is done again
    ledger            the files next to a queue: the lock, and the log of all edits
    claims            one worker for each message; moving messages into a journal
    backend           a .tq file as a work queue
    commands, lsp     sej tq; the language server
    main              names for scripts of the published package
"""

from textqueue.claims.claim import Claim
from textqueue.editing.message import Message
from textqueue.errors import (
    Conflict,
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
