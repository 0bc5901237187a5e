"""What a person wants to know about a message in addition to its text: its line, its age, and who has claimed it.

The ledger has the time of each edit by a program: the time at which the file was changed. A message that no program has
edited has no time of its own. It is at least as old as the last change of its file.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

from sej.system.disk import File
from textqueue.editing.message import Message
from textqueue.editing.tq_file import TqFile
from textqueue.format.generation import generations_in
from textqueue.format.grammar import CONTROL_OF, STATUS_OF, MessageStatus
from textqueue.format.mutex import HELD, claimant, holder_of, is_alive, is_here
from textqueue.format.parser import decode, digest
from textqueue.format.windows import placed
from textqueue.ledger.log import CHANGES, CLAIMS, Record
from textqueue.reading.cursor import pieces

_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]
_BLOCK: Final = 1 << 20


class Detail(NamedTuple):
    """A message with the number of its first line, from 1, its age, and its holder.

    The age is the time since a program added, marked or claimed it, otherwise since its file was changed. The holder is
    the process that has claimed it and is alive, or the text that a user wrote into its mutex.
    """

    message: Message
    line: int
    age_s: float
    holder: str | None


def details(messages: Iterable[Message], *, now_ns: int) -> Iterator[Detail]:
    """Yield the details of messages in their order. The messages of a file that has vanished are left out."""
    for source, group in itertools.groupby(messages, lambda message: message.source):
        for file in _opened(source):
            for message in group:
                holder, since_ns = file.claim(message, digest(message.raw))
                yield Detail(message, file.line(message.position), max(now_ns - since_ns, 0) / 1e9, holder)


class Totals(NamedTuple):
    """How many messages have each status, how many are claimed, and the age of the oldest queued one, if any."""

    counts: dict[MessageStatus, int]
    claimed: int
    oldest_s: float | None


def totals(sources: Iterable[TqFile], *, now_ns: int) -> Totals:
    """Count the messages of some files. A message is looked at only if the ledger or a claim is about it."""
    counts = dict.fromkeys(MessageStatus, 0)
    claimed, oldest_ns = 0, now_ns + 1
    for source in sources:
        for file in _opened(source):
            for position, data, epoch in pieces(source):
                text = b"\n" + data
                for control, status in STATUS_OF.items():
                    counts[status] += text.count(b"\n%c" % control)
                counts[MessageStatus.comment] -= len(generations_in(data))
                for holder, since_ns in file.claims(position, data, epoch) if b"\n-" in text else ():
                    claimed += holder is not None
                    oldest_ns = min(oldest_ns, since_ns)
    return Totals(counts, claimed, None if oldest_ns > now_ns else (now_ns - oldest_ns) / 1e9)


def _opened(source: TqFile) -> Iterator[_File]:
    """Yield the file of a source, unless an editor is between two renames."""
    with suppress(FileNotFoundError), closing(_File(source)) as file:
        yield file


class _File:
    """One file of the queue: its ledger, and the lines up to the last message."""

    def __init__(self, source: TqFile) -> None:
        self.source = source
        self._file: File = source.reading()
        self._changed_ns = self._file.status().mtime_ns
        self._position, self._lines = 0, 1
        with source.file.threads:
            source.file.refresh()
            ledger = source.file.ledger
            self._claims = dict(ledger.claims)
            self._epoch = ledger.epoch
            edits = [one for one in ledger.history() if one.kind in CHANGES or one.kind in CLAIMS]
        # For a user who may only read, lines may have moved since the positions in the ledger were correct.
        self._unplaced: dict[bytes, list[Record]] = defaultdict(list)
        for record in self._claims.values():
            self._unplaced[record.digest].append(record)
        # Equal messages are interchangeable: the newest edit counts for all that have no edit at their position.
        self._edited = {record.digest: record.token[2] for record in edits}
        self._edited_at = {(record.position, record.digest): record.token[2] for record in edits}

    def close(self) -> None:
        self._file.close()

    def line(self, position: int) -> int:
        while self._position < position:
            data = self._file.read(min(_BLOCK, position - self._position), self._position)
            if not data:
                break
            self._lines += data.count(b"\n")
            self._position += len(data)
        return self._lines

    def claims(self, position: int, data: bytes, epoch: int) -> Iterator[tuple[str | None, int]]:
        """Yield holder and time of the queued messages in some entries; once for all about which nothing is known."""
        held = self._claims or HELD.search(data)
        if not self._edited and not held:
            yield None, self._changed_ns
            return
        for at, raw in placed(position, data):
            if raw[0] == _QUEUED:
                name = digest(raw)
                known = held or name in self._edited
                yield self.claim(Message(self.source, raw, at, epoch), name) if known else (None, self._changed_ns)

    def claim(self, message: Message, name: bytes) -> tuple[str | None, int]:
        """Return the holder of a message, and the time of its last edit in nanoseconds since 1970."""
        since_ns = self._edited_at.get((message.position, name), self._edited.get(name, self._changed_ns))
        if message.epoch == self._epoch:
            record = self._claims.get(message.position)
        else:
            record = self._unplaced[name].pop(0) if self._unplaced.get(name) else None
        owner = record.detail if record is not None and record.digest == name else holder_of(message.raw)
        holder = claimant(owner)
        if record is None and message.epoch == self._epoch and is_here(message.raw):  # a user copied the message
            return None, since_ns
        is_held = holder and is_alive(holder) and not self.source.leases.is_over(owner)
        return (decode(holder) if is_held else None), since_ns
