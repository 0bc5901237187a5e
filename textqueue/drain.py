"""Moving messages from a queue file into a journal, each exactly once, also after a crash.

The writer must have these methods (:class:`OnceWriter`; ``sej.Writer`` has them):

- ``append_once(producer, number, values, keys=...)`` appends batch ``number`` of a producer, all or nothing. A second
  call with the same batch, even after a crash, appends nothing. For a batch that it can never append, it raises
  :class:`~sej.InvalidMessageError`.
- ``sync()`` returns when the appended messages are on disk.

The steps for a batch::

    1  claim the messages; sync the queue file and the ledger
    2  write the batch into .jobs.tq.drain, and sync it           the intent is open
    3  append_once; sync of the journal
    4  mark the messages as cleared; sync the queue file
    5  write an empty intent                                     the intent is closed

**The invariant.** As long as the intent is open, its messages are claimed or marked. The batch is in the journal
completely or not at all. After a crash before the end of step 2, the claims end with their process, and the messages
are free. After a later crash, the next run finds the open intent and repeats from step 3 with the same values, which
the journal recognises. It then marks the messages that still have the claims of the batch.

If the journal refuses a batch, it would refuse it again. So the messages are given back, and the intent is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from sej.errors import InvalidMessageError
from sej.system.locks import Lock
from textqueue.claiming import Claim, Claimer, claimed
from textqueue.editing.message import Message, marking
from textqueue.editing.proof import Place
from textqueue.editing.tq_file import TqFile
from textqueue.errors import MessageMovedError
from textqueue.format.parser import MessageStatus, digest, value_of
from textqueue.log import CLAIMS, MARKS
from textqueue.sidecar import Intent, read_intent, write_intent


class OnceWriter(Protocol):
    """The methods of a writer that ``drain_to`` calls."""

    def append_once(
        self, name: str, number: int, values: Sequence[bytes], keys: Sequence[bytes] | None = None
    ) -> object:
        """Append batch ``number`` of a producer; a repeated call appends nothing."""

    def sync(self) -> None:
        """Return when everything is on disk."""


def drain(
    source: TqFile,
    claimer: Claimer,
    writer: OnceWriter,
    *,
    key: Callable[[Message], bytes] | None,
    batch: int,
) -> int:
    """Move every free message of a file into a journal, and return their number. Errors: as ``TextQueue.drain_to``."""
    with source.file.guard:  # decides about the names
        path = source.file.guard.path(".drain")
    count = 0
    lock = Lock(source.file.guard.path(".drain.lck"), what="the drain of this queue file", disk=source.file.disk)
    with lock:
        intent = read_intent(source.file.disk, path)
        if intent.raws:
            # The run that wrote the intent may have died before this sync.
            source.file.disk.sync_dir(os.path.dirname(path) or ".")
            count += _finish(source, writer, path, intent, [])
        while True:
            claims: list[Claim] = []
            before = intent.number
            try:
                while len(claims) < batch and (claim := claimer.take(None, pull=False)) is not None:
                    claims.append(claim)
                if not claims:
                    return count
                messages = [claim.message for claim in claims]
                keys = None if key is None else [key(message) for message in messages]
                raws = [message.raw for message in messages]
                owners = [claim.owner.encode() for claim in claims]
                intent = Intent(intent.producer, before + 1, raws, owners, keys)
                source.sync()  # after a power loss, each message is identified by its claim
                write_intent(source.file.disk, path, intent, source.path)
            except BaseException:
                if (
                    read_intent(source.file.disk, path).number == before
                ):  # the intent was not written: the next run will not finish this batch
                    for claim in claims:
                        claim.give_back()
                raise
            for claim in claims:  # from here on, the intent decides about the messages
                claimer.forget(claim)
            count += _finish(source, writer, path, intent, [message.place for message in messages])
            intent = intent._replace(raws=[], owners=[], keys=None)


def _finish(source: TqFile, writer: OnceWriter, path: str, intent: Intent, known: Sequence[Place]) -> int:
    values = [value_of(raw) for raw in intent.raws]
    try:
        if intent.keys is None:
            writer.append_once(intent.producer, intent.number, values)
        else:
            writer.append_once(intent.producer, intent.number, values, keys=intent.keys)
    except InvalidMessageError:
        _end(source, path, intent, known, MessageStatus.queued)
        raise
    writer.sync()
    _end(source, path, intent, known, MessageStatus.cleared)
    return len(intent.raws)


def _end(source: TqFile, path: str, intent: Intent, known: Sequence[Place], status: MessageStatus) -> None:
    """Mark the messages of a batch, or give them back, and close the intent."""
    result = "is in the journal" if status is MessageStatus.cleared else "is not in the journal"
    for place, owner in zip(known, intent.owners, strict=True) if known else _claimed(source, intent):
        change = marking(source, status, None, owner)
        try:
            source.edit_many([place], change, f"mark a message that {result}")
        except MessageMovedError as error:
            source.file.report(place.position, place.raw, "changed", f"{result}, left as it is: {error.reason}")
    source.sync()
    write_intent(source.file.disk, path, intent._replace(raws=[], owners=[], keys=None), source.path)


def _claimed(source: TqFile, intent: Intent) -> list[tuple[Place, bytes]]:
    """After a crash, return the current places of the messages of a batch, with their owners.

    The claims identify them, because the file may have an equal message that is not in the journal. A message without a
    claim was marked, or a user removed it. If a power loss kept the line of a mark only, that line identifies it.
    """
    ledger = source.file.ledger
    there: dict[bytes, list[Place]] = {}
    with source.file as session:
        last = {(one.position, one.digest): one for one in ledger.history() if one.kind in MARKS | CLAIMS}
        ended = [one for one in last.values() if one.kind in MARKS]
        for record in sorted([*ledger.claims.values(), *ended], key=lambda one: one.position, reverse=True):
            if raw := claimed(session.file, record.position, record):
                known = record.detail if record.kind in CLAIMS else b""
                there.setdefault(record.digest + known, []).append(Place(record.position, raw, ledger.epoch))
    found = []
    for raw, owner in zip(intent.raws, intent.owners, strict=True):
        name = digest(raw)
        places = there.get(name + owner) or there.get(name)
        if places:
            found.append((places.pop(), owner))
    return found
