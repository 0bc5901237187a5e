"""The intent of a drain, ``.jobs.tq.drain``: the batch that is being moved into a journal, for the run after a crash.

The file is one JSON object after a checksum (:mod:`sej.system.sealed`), and is replaced atomically:

- ``producer`` and ``number`` identify the batch in the journal;
- ``messages`` are the raw bytes of its messages, ``owners`` their claims, and ``keys`` their keys.

An intent without messages is closed: no batch is being moved.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

from sej.system.disk import Disk, read_small
from sej.system.sealed import seal, unseal, whole
from textqueue.errors import TextQueueError
from textqueue.format.parser import decode, encode, essence
from textqueue.ledger.sidecar import replace_sidecar

_INTENT_BYTES: Final = 1 << 30
"""The largest intent. JSON needs up to six characters for each byte of a message."""


class Intent(NamedTuple):
    """A batch: its producer and number, and the bytes, claims and keys of its messages."""

    producer: str
    number: int
    raws: list[bytes]
    owners: list[bytes]
    keys: list[bytes] | None


def write_intent(disk: Disk, path: str, intent: Intent, queue: str) -> None:
    """Replace the intent atomically. The file gets the owner and mode of the queue file."""
    fields: dict[str, Any] = {"producer": intent.producer, "number": intent.number}
    fields["messages"] = [decode(raw) for raw in intent.raws]
    fields["owners"] = [decode(owner) for owner in intent.owners]
    fields["keys"] = None if intent.keys is None else [decode(key) for key in intent.keys]
    data = seal(path, fields)
    if len(data) > _INTENT_BYTES:
        raise TextQueueError(
            f"a batch must be at most {_INTENT_BYTES} bytes, got {len(data)} bytes in {len(intent.raws)} messages:"
            " drain fewer messages at a time, with batch=",
            path=path,
        )
    replace_sidecar(disk, path, data, queue)


def read_intent(disk: Disk, path: str) -> Intent:
    """Read the intent. If the file is missing, the result is a closed intent with a new producer name.

    Raises:
        TextQueueError: the file is damaged.
    """
    data = _read(disk, path)
    if data is None:
        # A new name: after the file was lost, new batches must not look like old ones.
        return Intent(f"textqueue-{uuid.uuid4().hex}", 0, [], [], None)
    return _parse(path, data)


class InTransit:
    """The messages in the open drain of a queue. The file is read for each answer, and parsed if it has changed."""

    def __init__(self, disk: Disk) -> None:
        """Take the disk; nothing is read yet."""
        self._disk = disk
        self._data: bytes | None = None
        self._names: frozenset[bytes] = frozenset()

    def has(self, path: str, raw: bytes) -> bool:
        """Return whether a message is in the batch of an open intent.

        Raises:
            TextQueueError: the file is damaged.
        """
        data = _read(self._disk, path)
        if data != self._data:
            self._names = frozenset(map(essence, () if data is None else _parse(path, data).raws))
            self._data = data
        return bool(self._names) and essence(raw) in self._names


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return read_small(disk, path, _INTENT_BYTES)
    except FileNotFoundError:
        return None


def _parse(path: str, data: bytes) -> Intent:
    try:
        fields = unseal(path, data)
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
            f"the record of a batch that was being moved into a journal is damaged ({error}); compare the end of the"
            " journal with the queue, mark the messages that are in the journal, then remove this file",
            path=path,
        ) from error
