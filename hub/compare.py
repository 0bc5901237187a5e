"""Known offsets that came again: are they the same messages?"""

from __future__ import annotations

from collections.abc import Sequence

from hub.errors import ConflictError
from hub.naming import Source
from sej.errors import OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message

__all__ = ["compare"]


def compare(directory: Directory, source: Source, messages: Sequence[Message]) -> tuple[int, int]:
    """Compare messages that came again with those that are there.

    Returns:
        How many are the same, and how many the hub does not have any more and takes on trust.

    Raises:
        ConflictError: one differs.
    """
    index = same = 0
    cursor = Cursor(directory, messages[0].offset)
    try:
        while index < len(messages):
            try:
                stored = cursor.read(len(messages) - index)
            except OffsetTooSmallError as error:
                index = error.first_available - messages[0].offset
                cursor.close()
                cursor = Cursor(directory, error.first_available)
                continue
            if not stored:
                break
            index = stored[0].offset - messages[0].offset  # a recorded gap may lie between
            sent = messages[index : index + len(stored)]
            if sent != stored[: len(sent)]:
                at = next(k for k, (mine, theirs) in enumerate(zip(stored, sent, strict=False)) if mine != theirs)
                raise ConflictError(
                    f"{source}: the hub has a message with offset {sent[at].offset} and other bytes; two journals use"
                    " this name, or the client's was made anew: copy it under another name",
                    path=directory.path,
                    offset=sent[at].offset,
                )
            same += len(sent)
            index += len(sent)
    finally:
        cursor.close()
    return same, len(messages) - same
