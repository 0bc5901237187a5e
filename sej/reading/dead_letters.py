r"""Dead letters: messages that could not be handled, in a journal of their own.

A dead letter keeps type, key, timestamp and every byte of the original's value, after one line of JSON with its origin
and the reason::

    {"source": ..., "reader": ..., "offset": ..., "attempts": ..., "reason": ...}\n<the original value>

An item of a work queue that was put with a priority, an expiry or headers also has ``"priority"``, ``"expire_s"`` or
``"headers"``. If the last failure was an exception, there is also ``"traceback"``. ``source`` is the identity of the
journal (its ``id``, in hex), or its path if it has none, as in journals of the original.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from sej.checks import OFFSET, Failure, optional
from sej.errors import CorruptionError, JournalNotFoundError
from sej.journal.directory import Directory
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.message import Message
from sej.reading.scanner import Scanner
from sej.system.disk import OS, Disk, Resolved
from sej.writing.writer import Writer

_REASON_CHARS = 2000
_TRACEBACK_BYTES = 4096
_LOOK_BACK = 4096


class DeadLetter(NamedTuple):
    """A message that could not be handled.

    Attributes:
        message: the original: its offset, timestamp, type, key and value.
        source: the original's journal.
        reader: the reader that could not handle it.
        attempts: the number of attempts.
        reason: the last failure.
        letter_offset: the offset in the dead-letter journal; -1 before it is written.
        priority: the item's priority in its queue.
        expire_s: seconds after which the item expires; None: never.
        headers: the item's headers.
        traceback: of the last failure, its last 4 KiB; empty if it is not that of an exception.
    """

    message: Message
    source: str
    reader: str
    attempts: int
    reason: str
    letter_offset: int = -1
    priority: int = 0
    expire_s: float | None = None
    headers: Mapping[str, str] = {}
    traceback: str = ""


def dead_letters(path: str | os.PathLike[str], offset: int | None = None, *, disk: Disk = OS) -> Iterator[DeadLetter]:
    """Yield the dead letters of a journal, oldest first, from one of its offsets on.

    Letters stay in the journal: those that ``redrive()`` has put back are yielded too.

    Raises:
        JournalNotFoundError: the journal does not exist; a queue or consumer creates it with the first letter.
        CorruptionError: a message in it is not a dead letter.
        ValueError: a message in it is not a dead letter, and it is the journal of a queue.
    """
    optional(OFFSET)("offset", offset)
    return _decoded(Scanner(path, disk=disk) if offset is None else Scanner(path, offset, disk=disk))


def _decoded(scanner: Scanner) -> Iterator[DeadLetter]:
    with scanner:
        for message in scanner:
            yield _decode(message, scanner.path)


def append_dead_letter(
    path: str | os.PathLike[str],
    letter: DeadLetter,
    *,
    perhaps_there: bool = False,
    first: int = 0,
    lock_timeout: float | None = None,
    disk: Disk = OS,
) -> None:
    """Write a dead letter, durably.

    Args:
        path: the dead-letter journal; created if it is missing.
        letter: the letter. If its reason is that of an exception, it gets its traceback.
        perhaps_there: whether an earlier process may have done this just before it died: then the newest letters are
            checked first.
        first: letters before this one do not count then: they were put back.
        lock_timeout: seconds to wait for another writer of that journal, which several readers may share; None: without
            a limit.
        disk: the disk.

    Raises:
        LockedError: another writer held it for longer.
    """
    if perhaps_there and _has_letter(path, letter, first, disk):
        sync_dead_letters(path, disk)  # its writer may have died before its sync
        return
    message, reason = letter.message, letter.reason
    head: dict[str, object] = {
        "source": letter.source,
        "reader": letter.reader,
        "offset": message.offset,
        "attempts": letter.attempts,
        "reason": reason[:_REASON_CHARS].encode(errors="backslashreplace").decode(),  # a text that can be printed
    }
    if letter.priority:
        head["priority"] = letter.priority
    if letter.expire_s is not None:
        head["expire_s"] = letter.expire_s
    if letter.headers:
        head["headers"] = dict(letter.headers)
    if isinstance(reason, Failure):
        text = reason.traceback.encode(errors="backslashreplace")
        head["traceback"] = text[-_TRACEBACK_BYTES:].decode(errors="ignore")
    value = json.dumps(head).encode() + b"\n" + message.value
    writer = Writer(path, lock_timeout=lock_timeout, disk=disk)
    try:
        with writer:
            writer.append(value, message.key, message.type, message.timestamp)
            writer.sync()
    except BaseException:
        writer.close()  # an exception of a signal handler may have interrupted the exit before it released the lock
        raise


def sync_dead_letters(path: str | os.PathLike[str], disk: Disk = OS) -> None:
    """Make the existing letters durable, whichever process wrote them."""
    directory = Directory(path, disk)
    tail = Tail(directory)
    sync_up_to(directory, tail.end_offset(), tail)


def letters_path(directory: Directory, path: str | os.PathLike[str]) -> str:
    """Return the absolute path of the dead letters of a journal.

    Args:
        directory: the journal that is read.
        path: the dead-letter journal. A relative path means the current directory of this call.

    Raises:
        ValueError: both are the same. Each letter would be read, fail and become another letter.
    """
    found = Directory(path, directory.disk).path
    if os.path.realpath(found) == os.path.realpath(directory.path):
        raise ValueError(f"dead_letter must be another journal than the one that is read, got {os.fspath(path)!r}")
    return Resolved(found)


def source_of(directory: Directory) -> str:
    """Return the name of a journal in dead letters."""
    identity = Journal(directory.path, disk=directory.disk).id
    return identity.hex() if identity is not None else os.path.realpath(directory.path)


def _has_letter(path: str | os.PathLike[str], wanted: DeadLetter, first: int, disk: Disk) -> bool:
    """Return whether one of the newest letters, from the first one on, is that of the same message."""
    try:
        letters = Journal(path, disk=disk).reversed()
    except JournalNotFoundError:
        return False
    for there in islice(letters, _LOOK_BACK):
        if there.offset < first:
            break
        letter = _decode(there, os.fspath(path))
        if (letter.source, letter.reader, letter.message) == (wanted.source, wanted.reader, wanted.message):
            return True
    return False


def _decode(message: Message, path: str) -> DeadLetter:
    head, newline, value = message.value.partition(b"\n")
    try:
        if not newline:
            raise ValueError("no line of JSON")
        fields = json.loads(head)
        priority, expire_s, headers = fields.get("priority", 0), fields.get("expire_s"), fields.get("headers", {})
        if type(priority) is not int or not (expire_s is None or 0 <= expire_s < math.inf):
            raise ValueError("the priority or the expiry is not a number")
        if not all(type(text) is str for text in headers.values()):
            raise ValueError("a header is not a text")
        return DeadLetter(
            Message(fields["offset"], message.timestamp, message.type, message.key, value),
            fields["source"],
            fields["reader"],
            fields["attempts"],
            fields["reason"],
            message.offset,
            priority,
            expire_s,
            headers,
            str(fields.get("traceback", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        directory = Directory(path, OS)
        ofs = directory.at("ofs")
        for name in OS.list(ofs) if OS.status(ofs) else ():
            if name.endswith(".queue"):
                where = directory.at("dead", name.removesuffix(".queue"))
                raise ValueError(
                    f"path must be a journal of dead letters, got that of a queue, {path!r}; pass q.dead_letter of the"
                    f" open queue, as in {where!r}"
                ) from error
        raise CorruptionError(
            "this message is not a dead letter: its value does not begin with a line of JSON; use a journal that"
            " holds only dead letters",
            path=path,
            offset=message.offset,
        ) from error
