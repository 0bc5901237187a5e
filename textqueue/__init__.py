"""TextQueue: message queues in plain text files that users edit while programs work on them.

The modules and folders, in the order in which they are best read::

    queue, errors     TextQueue, the public class; the errors
    format            bytes as entries: the grammar and the parser, the mutex, files read in windows
    files, cursor     the files of a queue; the next message
    editing           changes of a file, each proven first; what a person's save has not seen is done again
    sidecar, log      the files next to a queue: the lock, and the log of all edits
    claiming, drain   one worker for each message; moving messages into a journal
    checker           mistakes in a file; the age and the holder of a message
    backend           a .tq file as a work queue
    commands, lsp     sej tq; the language server
    main              names for scripts of the published package
"""

from textqueue.checker import Problem, check
from textqueue.claiming import Claim
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
from textqueue.format.parser import MessageStatus
from textqueue.queue import TextQueue

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
