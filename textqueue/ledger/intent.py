"""What is on its way from a queue file into a journal: ``jobs.tq.drain``, so that a crash in between is recognised.

One JSON object with a checksum in front (:mod:`sej.system.sealed`), replaced atomically: ``producer`` and ``number``
name the batch for the journal; ``messages`` are the bytes of its messages as they stood in the queue, ``owners`` their
claims, and ``keys`` their keys. No messages: nothing is on its way.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

from sej.system.disk import Disk, read_small
from sej.system.sealed import seal, unseal, whole
from textqueue.errors import TextQueueError
from textqueue.format.parser import decode, encode, essence
from textqueue.ledger.sidecar import replace_beside

__all__ = ["Intent", "read_intent", "write_intent"]

_INTENT_BYTES: Final = 1 << 30
"""A batch of messages is in it, with up to six characters for each of their bytes."""


class Intent(NamedTuple):
    """A batch: of which producer, its number, the messages' bytes, who claimed each, and their keys."""

    producer: str
    number: int
    raws: list[bytes]
    owners: list[bytes]
    keys: list[bytes] | None

    def holds(self, raw: bytes) -> bool:
        """Whether a message is on its way."""
        return bool(self.raws) and essence(raw) in {essence(one) for one in self.raws}


def write_intent(disk: Disk, path: str, intent: Intent, queue: str) -> None:
    """Make the file say so, or leave it as it is; it is as open as the queue file."""
    fields: dict[str, Any] = {"producer": intent.producer, "number": intent.number}
    fields["messages"] = [decode(raw) for raw in intent.raws]
    fields["owners"] = [decode(owner) for owner in intent.owners]
    fields["keys"] = None if intent.keys is None else [decode(key) for key in intent.keys]
    data = seal(path, fields)
    if len(data) > _INTENT_BYTES:
        raise TextQueueError(
            f"{len(intent.raws)} messages are {len(data)} bytes on their way into a journal, expected at most"
            f" {_INTENT_BYTES}: drain fewer at a time, by batch=",
            path=path,
        )
    replace_beside(disk, path, data, queue)


def read_intent(disk: Disk, path: str) -> Intent:
    """What the file says; without one, nothing is on its way for a producer of a new name.

    Raises:
        TextQueueError: it cannot be read.
    """
    try:
        data = read_small(disk, path, _INTENT_BYTES)
    except FileNotFoundError:
        # A new name: a lost file must not make new batches look like old ones.
        return Intent(f"textqueue-{uuid.uuid4().hex}", 0, [], [], None)
    try:
        fields = unseal(path, data, ("producer", "number", "messages", "owners", "keys"))
        keys = fields["keys"]
        return Intent(
            str(fields["producer"]),
            whole(fields["number"]),
            [encode(raw) for raw in fields["messages"]],
            [encode(owner) for owner in fields["owners"]],
            None if keys is None else [encode(each) for each in keys],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TextQueueError(
            f"this file says what is on its way into a journal, and cannot be read ({error}); compare the journal's end"
            " with the queue, mark by hand what is there, then remove this file",
            path=path,
        ) from error
