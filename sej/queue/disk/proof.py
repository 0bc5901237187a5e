"""Compare a queue's log with the journal: a power loss may have removed messages that the log knows.

A power loss removes the journal's end. If one message is the one that a record was written for, so are those before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.message import Message
from sej.queue.disk.reader import MessageReader
from sej.queue.log.format import DEAD, DEDUPE, DONE, EXPIRE, INTENT, LEASE, PICK, SCAN, START, WAIT
from sej.queue.log.records import message_check, read_fields, stamp_of
from sej.queue.log.schedule import NEVER


def holds(directory: Directory, tail: Tail, offset: int, stamp: int) -> bool:
    """Return whether a message is the one that was taken; one that retention removed was durable."""
    segments = directory.segments()
    if segments and offset < segments[0].first_offset:
        return True
    message = _message(directory, tail, offset)
    return message is not None and stamp_of(message.timestamp) == stamp


def proven(directory: Directory, tail: Tail, records: bytes) -> int | None:
    """Return the offset up to which the journal holds the messages of the records; None: it is another journal."""
    base, taken = 0, []
    checked: list[tuple[int, int]] = []
    for kind, row in read_fields(records):
        if kind == LEASE or (kind in (DONE, SCAN) and row["stamp"]):
            taken.append((row["stop"] - 1, row["stamp"]))
        elif (kind in (DEAD, PICK) or (kind == WAIT and row["exhausted"])) and row["stamp"]:
            taken.append((row["offset"], row["stamp"]))
        elif kind == START:
            base = row["frontier"]  # what is below it was durable before it was written
            if row["newest"] != NEVER and not holds(directory, tail, row["newest"], row["stamp"]):
                return None
        elif kind in (INTENT, EXPIRE) or (kind == DEDUPE and row["until_ns"]):
            checked.append((row["offset"], row["check"]))
    if base > tail.end_offset():
        return None
    taken.sort()
    low, high = 0, len(taken)  # the lost messages are the last ones
    while low < high:
        middle = (low + high) // 2
        if holds(directory, tail, *taken[middle]):
            low = middle + 1
        else:
            high = middle
    found = max([base, *(offset + 1 for offset, _ in taken[:low])])
    return next(_checked(directory, tail, checked, found), found)


def _checked(directory: Directory, tail: Tail, rows: list[tuple[int, int]], above: int) -> Iterator[int]:
    for offset, check in sorted(rows, reverse=True):
        if above <= offset and (message := _message(directory, tail, offset)) and message_check(message) == check:
            yield offset + 1


def _message(directory: Directory, tail: Tail, offset: int) -> Message | None:
    if offset >= tail.end_offset():
        return None
    reader = MessageReader(directory, 1)
    try:
        message = reader.at(offset)
    except SejError:  # it was removed or is damaged: unknown
        return None
    finally:
        reader.close()
    return message if message is not None and message.offset == offset else None
