"""From a queue file into a journal: each message once, whatever dies in between.

What a writer must offer (:class:`OnceWriter`; ``sej.Writer`` does):

- ``append_once(producer, number, values, keys=...)`` appends batch ``number`` of a producer's, all or nothing, and when
  it is called again with the same batch, even after a crash, appends nothing. Of a batch that it can never append it
  raises :class:`~sej.InvalidMessageError`.
- ``sync()`` returns when what was appended is on the medium.

Steps for a batch: claim the messages; sync queue file and ledger; write what they are into ``jobs.tq.drain``, synced
(the intent); ``append_once``; ``sync``; mark the messages; sync the queue file; close the intent. Whoever finds an open
intent repeats from ``append_once`` with the very same values, so the journal recognises them, and marks what is still
queued, which is known by its claims. What the journal refuses for what it is, it will always refuse: the messages are
given back, and the intent is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sej.errors import InvalidMessageError
from sej.system.locks import Lock
from textqueue.claims.claim import Claim, Claimer
from textqueue.editing.message import Message, marking
from textqueue.editing.place import Place
from textqueue.editing.proof import entry_at
from textqueue.editing.source import Source
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import MessageStatus
from textqueue.format.parser import digest, value_of
from textqueue.hot import essence
from textqueue.ledger.intent import Intent, read_intent, write_intent

__all__ = ["OnceWriter", "drain"]


class OnceWriter(Protocol):
    """What ``drain_to`` relies on."""

    def append_once(
        self, name: str, number: int, values: Sequence[bytes], keys: Sequence[bytes] | None = None
    ) -> object:
        """Append batch ``number`` of a producer; a repeat appends nothing."""

    def sync(self) -> None:
        """Return when everything is on the medium."""


def drain(
    source: Source,
    claimer: Claimer,
    writer: OnceWriter,
    *,
    key: Callable[[Message], bytes] | None,
    batch: int,
    owner: str | None = None,
) -> int:
    """Move every free message of a file into a journal; -> how many.

    Raises:
        InvalidMessageError: the journal refuses one of a batch, as for a key that is too long.
        LockedError: somebody else drains this file.
        TextQueueError: ``jobs.tq.drain`` cannot be read.
    """
    path = source.file.home + ".drain"
    count = 0
    with _alone(source):
        intent = read_intent(source.file.disk, path)
        if intent.raws:
            source.file.disk.sync_dir(os.path.dirname(path) or ".")  # the run that wrote it may have failed to
            count += _finish(source, writer, path, intent, [])
        while True:
            claims: list[Claim] = []
            before = intent.number
            try:
                while len(claims) < batch and (claim := claimer.take(owner, pull=False)) is not None:
                    claims.append(claim)
                if not claims:
                    return count
                messages = [claim.message for claim in claims]
                keys = None if key is None else [key(message) for message in messages]
                raws = [message._raw for message in messages]
                owners = [claim.owner.encode() for claim in claims]
                intent = Intent(intent.producer, before + 1, raws, owners, keys)
                source.sync()  # by its claim each is known after a power loss
                write_intent(source.file.disk, path, intent, source.path)
            except BaseException:
                if read_intent(source.file.disk, path).number == before:  # the next run knows nothing of this batch
                    for claim in claims:
                        claim.give_back()
                raise
            for claim in claims:  # from here on the intent says what becomes of them
                claim._let_go()
            count += _finish(source, writer, path, intent, [message._place for message in messages])
            intent = intent._replace(raws=[], owners=[], keys=None)


def _finish(source: Source, writer: OnceWriter, path: str, intent: Intent, known: Sequence[Place]) -> int:
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


def _end(source: Source, path: str, intent: Intent, known: Sequence[Place], status: MessageStatus) -> None:
    """Mark the messages of a batch by what became of it, and close the intent."""
    became = "is in the journal" if status is MessageStatus.cleared else "is not in the journal"
    for place, owner in zip(known, intent.owners, strict=True) if known else _claimed(source, intent):
        change = marking(source, place.raw, place.position, status, None, owner)
        try:
            source.edit(place, change, f"mark a message that {became}")
        except MessageMovedError as error:
            source.file.report(place.position, place.raw, "changed", f"{became}, left as it is: {error.reason}")
    source.sync()
    write_intent(source.file.disk, path, intent._replace(raws=[], owners=[], keys=None), source.path)


def _claimed(source: Source, intent: Intent) -> list[tuple[Place, bytes]]:
    """After a crash: where the messages of a batch stand now, with their owners.

    They are known by their claims, not by their text, since an equal message that is not in the journal may stand
    beside them. One without a claim was marked before the crash, or taken away by a person.
    """
    there: dict[tuple[bytes, bytes], list[Place]] = {}
    with source.file.session() as session:
        for position, record in sorted(source.file.ledger.claims.items(), reverse=True):
            raw = entry_at(session.file, position) if position >= 0 else b""
            if raw and digest(essence(raw)) == record.digest:
                place = Place(position, raw, source.file.ledger.epoch)
                there.setdefault((record.digest, record.owner), []).append(place)
    found = []
    for raw, owner in zip(intent.raws, intent.owners, strict=True):
        places = there.get((digest(essence(raw)), owner))
        if places:
            found.append((places.pop(), owner))
    return found


@contextmanager
def _alone(source: Source) -> Iterator[None]:
    with Lock(source.file.home + ".drain.lck", what="the drain of this queue file", disk=source.file.disk):
        yield
