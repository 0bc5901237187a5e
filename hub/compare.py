"""Compare messages that a client sent again with the stored ones."""

from __future__ import annotations

from collections.abc import Sequence

from hub.errors import ConflictError
from hub.naming import Source
from sej.errors import OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message


def compare(directory: Directory, source: Source, messages: Sequence[Message]) -> tuple[int, int]:
    """Compare messages that were sent again with the stored ones.

    Returns:
        How many are the same, and how many the hub has deleted and therefore accepts unchecked.

    Raises:
        ConflictError: a message differs.
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
                    f"{source}: the hub has another message with offset {sent[at].offset}: two machines or journals use"
                    " this name, or the client's was re-created; copy it under another one (--client, --journal)",
                    path=directory.path,
                    offset=sent[at].offset,
                )
            same += len(sent)
            index += len(sent)
    finally:
        cursor.close()
    return same, len(messages) - same
