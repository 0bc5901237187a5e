"""``append_once``: batches that are in the journal exactly once, even if the process or the machine crashes.

The steps, each durable before the next:

1. The rows are staged in ``tmp/NAME.rows``, encoded as they will be stored in the journal, with their final timestamps.
2. An intent is stored in ``txn/NAME.intent``: number, first offset, count, checksums. This is the promise: from here
   on, the next writer rolls the batch forward before its first append.
3. The rows are appended and synced.
4. The batch is added to ``txn/NAME.done``, which has the newest :data:`KEPT_BATCHES` of this name. The intent and the
   staged rows are removed.

==========  ==============================  ==================================================================
crash       what is found                   what the next writer does
==========  ==============================  ==================================================================
before 2    rows, no intent                 removes the rows; the batch is not in the journal
before 3    rows and intent                 appends the rows that are not yet in the journal
before 4    rows and intent                 finds all rows in the journal and appends none
within 4    intent, and the batch is done   removes the intent and the rows
==========  ==============================  ==================================================================

Rolling forward compares the staged rows with the messages from the intent's first offset on. The equal prefix stays,
and the other rows are appended at the journal's end. If a foreign writer has appended messages in between, the batch
has two spans, and ``done`` lists both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sej.checks import COUNT
from sej.codec import Buffer, decode_many, measure, renumber
from sej.codec.arguments import full
from sej.codec.format import MAX_OFFSET
from sej.errors import BatchConflictError, CorruptionError, DecodeError, OffsetGapError, OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, check_name
from sej.journal.segment import SegmentReader
from sej.message import BytesLike, Message
from sej.system.checksum import crc32c
from sej.system.disk import Disk, pieces
from sej.system.sealed import SealedFile

_T = TypeVar("_T")

KEPT_BATCHES: Final = 256
"""This many batches of a name are remembered. An older number is refused, so it is not appended a second time."""
_CHUNK_MESSAGES: Final = 4096
_CHUNK_BYTES: Final = 1 << 20
_UNKNOWN: Final = -1
"""The digest of a batch that was passed encoded. Such a batch is compared by its number alone."""


class Appending(Protocol):
    """The :class:`~sej.writing.appender.JournalAppender` that appends the batches, while no other thread can append."""

    @property
    def offset(self) -> int:
        """The offset of the next message."""

    def extend(self, data: BytesLike) -> None:
        """Append whole messages that are encoded with the next offsets."""

    def sync_now(self) -> None:
        """Sync everything that was appended."""

    def changing(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function that changes the journal's end. If it is interrupted, the end is in doubt."""


class Done(NamedTuple):
    """A batch that is in the journal.

    Attributes:
        number: the caller's number of the batch.
        messages: the number of messages in it.
        digest: the CRC32C of the keys, values and types. A repeat may have other timestamps, so they are not included.
        spans: its places in the journal, each a first offset and a count. There are two if a foreign writer has
            appended messages in between.
    """

    number: int
    messages: int
    digest: int
    spans: list[tuple[int, int]]

    @property
    def range(self) -> range:
        """Its offsets."""
        return range(self.spans[0][0], self.spans[-1][0] + self.spans[-1][1])


class Batches:
    """The batches of one journal. The caller makes sure that no other thread or process appends."""

    def __init__(self, directory: Directory) -> None:
        """Remember the journal. No file is read yet."""
        self._directory = directory
        self._disk = directory.disk
        self._done: dict[str, list[Done]] = {}

    def append(self, end: Appending, name: str, number: int, data: bytes, count: int) -> range:
        """Append the batch with a name and a number, unless it is in the journal. Errors as for :meth:`find`.

        Args:
            end: appends, while no other thread can.
            name: the name of the sender.
            number: the number of the batch.
            data: its messages, encoded with offsets from 0 on.
            count: how many there are.
        """
        digest = _digest(data, count)
        found = self.find(name, number, (count, digest))
        if found is not None:
            end.sync_now()
            return found.range
        if end.offset > MAX_OFFSET - count:
            raise full()
        rows = bytearray(data)
        renumber(rows, 0, len(rows), 0, end.offset)
        return self._append(end, name, number, digest, [rows])

    def append_encoded(self, end: Appending, name: str, number: int, chunks: Iterable[BytesLike]) -> range:
        """Append an encoded batch, unless it is in the journal. In that case chunks are not read.

        Raises:
            DecodeError: the chunks are not whole messages with the next offsets; nothing was appended.
            BatchConflictError: as for :meth:`find`.
        """
        found = self.find(name, number)
        return self._append(end, name, number, _UNKNOWN, chunks) if found is None else found.range

    def _append(self, end: Appending, name: str, number: int, digest: int, chunks: Iterable[BytesLike]) -> range:
        end.sync_now()
        first = end.offset
        count, crc = stage(self._disk, self._directory.at("tmp", f"{name}.rows"), first, chunks)
        if not count:
            self._close(name, Done(number, 0, digest, [(first, 0)]))
            return range(first, first)
        intent = {"name": name, "number": number, "first_offset": first, "count": count, "digest": digest}
        return end.changing(self._carry_out, end, {**intent, "crc32c": crc}).range

    def _carry_out(self, end: Appending, intent: dict[str, Any]) -> Done:
        self._store(f"{intent['name']}.intent", intent)
        return self._finish(end, intent, fresh=True)

    def last(self, name: str) -> int | None:
        """Return the highest batch number of a name, or None if the name has no batch."""
        return max((done.number for done in self._load(name)), default=None)

    def roll_forward(self, end: Appending) -> None:
        """Finish each batch that a writer promised before it died.

        Raises:
            CorruptionError: an intent is damaged, or its staged rows are missing or changed.
        """
        for entry in self._directory.names("txn"):
            if entry.endswith(".intent"):
                intent = self._file(entry).load()
                if intent is not None:
                    self._finish(end, intent)

    def _finish(self, end: Appending, intent: dict[str, Any], *, fresh: bool = False) -> Done:
        """Take steps 3 and 4, or those that are still missing.

        Args:
            end: appends, while no other thread can.
            intent: the intent.
            fresh: whether this process has just staged the rows, so that they need no check.

        Returns:
            The batch, which is in the journal.
        """
        name, number, first, count = (intent[key] for key in ("name", "number", "first_offset", "count"))
        staged = self._directory.at("tmp", f"{name}.rows")
        done = next((done for done in self._load(name) if done.number == number), None)
        if done is None:
            if not fresh and (self._disk.status(staged) is None or self._crc(staged) != intent["crc32c"]):
                raise CorruptionError(
                    f"the staged rows of batch {number} of {name!r} are missing or changed, so the batch cannot be"
                    " completed; to keep only its messages that are in the journal, remove"
                    f" {self._directory.at('txn', name)}.intent",
                    path=staged,
                )
            there = self._equal_prefix(staged, first, count, end.offset)
            spans = [(first, there)] if there else []
            if there < count:
                rest = self._append_rest(end, staged, first, there)
                if spans and rest[0] == first + there:
                    spans = [(first, count)]
                else:
                    spans.append(rest)
            end.sync_now()
            done = Done(number, count, intent["digest"], spans)
        self._close(name, done)
        self._file(f"{name}.intent").remove()
        self._disk.unlink(staged)
        return done

    def _append_rest(self, end: Appending, staged: str, first: int, there: int) -> tuple[int, int]:
        """Append the staged rows after those that are in the journal; return their first offset and their number."""
        start = end.offset
        with SegmentReader(self._disk, staged, 0, first, chunk_bytes=_CHUNK_BYTES) as reader:
            while reader.due < first + there:
                reader.read(min(first + there - reader.due, _CHUNK_MESSAGES))
            while (found := reader.read_encoded(_CHUNK_BYTES))[1]:
                rows = bytearray(found[0])
                at = reader.due - found[1]
                if at != end.offset:  # a foreign writer has appended messages in between
                    renumber(rows, 0, len(rows), at, end.offset)
                end.extend(rows)
        return start, end.offset - start

    def _equal_prefix(self, staged: str, first: int, count: int, end: int) -> int:
        """Return how many of the staged rows are already in the journal at their offsets.

        Rows that retention has deleted were in the journal, unless other messages than the staged ones follow them.
        """
        while True:
            segments = self._directory.segments()
            deleted = min(max(segments[0].first_offset - first, 0), count) if segments else 0
            try:
                equal = self._equal_rows(staged, first, deleted, min(end, first + count))
            except OffsetTooSmallError:
                continue  # retention has deleted more in the meantime
            return 0 if equal is None else deleted + equal

    def _equal_rows(self, staged: str, first: int, skipped: int, stop: int) -> int | None:
        """Return how many staged rows after the skipped ones are in the journal; None if another message is there.

        Segments may be deleted in the meantime.
        """
        rows = islice((message for messages in self._rows(staged, first) for message in messages), skipped, None)
        start = offset = first + skipped
        cursor = Cursor(self._directory, start)
        try:
            while offset < stop and (found := cursor.read(min(_CHUNK_MESSAGES, stop - offset))):
                for message in found:
                    if message.offset != offset:
                        return offset - start
                    if message != next(rows):
                        return (offset - start) or None
                    offset += 1
        except OffsetGapError:
            pass  # no message after a gap is of this batch
        finally:
            cursor.close()
        return offset - start

    def _rows(self, staged: str, first: int) -> Iterable[list[Message]]:
        with SegmentReader(self._disk, staged, 0, first) as reader:
            while messages := reader.read(_CHUNK_MESSAGES):
                yield messages

    def _crc(self, path: str) -> int:
        with self._disk.open(path, "read") as file:
            crc = 0
            for data in pieces(file):
                crc = crc32c(data, crc)
            return crc

    # --- the files in txn/

    def find(self, name: str, number: int, batch: tuple[int, int] | None = None) -> Done | None:
        """Return a batch, or None if it is not in the journal and may be appended.

        Args:
            name: the name of the sender.
            number: the number of the batch.
            batch: the number of its messages and their digest, to compare; None: not known.

        Raises:
            BatchConflictError: the batch is another one, or the number is new and below the last one, or so old that
                its record was removed.
        """
        check_name(name, "a batch name")
        COUNT("number", number)
        known = self._load(name)
        for done in known:
            if done.number == number:
                if batch is not None and done.digest != _UNKNOWN and (done.messages, done.digest) != batch:
                    raise BatchConflictError(
                        f"batch {number} of {name!r} is already in the journal, with {done.messages} messages, and this"
                        f" batch of {batch[0]} is different: use a new number for a new batch",
                        path=self._directory.path,
                        offset=done.spans[0][0],
                    )
                return done
        if known and number < known[-1].number:
            what = (
                f"only the newest {KEPT_BATCHES} are remembered, so this one may be in the journal or not"
                if len(known) >= KEPT_BATCHES and number < known[0].number
                else "it is not in the journal"
            )
            raise BatchConflictError(
                f"batch {number} of {name!r} follows batch {known[-1].number}, but batch numbers must rise: {what};"
                f" a new batch needs a number above {known[-1].number}",
                path=self._directory.path,
            )
        return None

    def _load(self, name: str) -> list[Done]:
        if name not in self._done:
            found = self._file(f"{name}.done").load() or {"batches": ()}
            self._done[name] = [
                Done(number, count, digest, [(first, size) for first, size in spans])
                for number, count, digest, spans in found["batches"]
            ]
        return self._done[name]

    def _close(self, name: str, done: Done) -> None:
        known = [batch for batch in self._load(name) if batch.number != done.number]
        known = [*known, done][-KEPT_BATCHES:]
        self._done.pop(name, None)  # if the write is interrupted, the file is read again
        self._store(f"{name}.done", {"batches": known})
        self._done[name] = known

    def _file(self, entry: str) -> SealedFile:
        return self._directory.sealed("a record of batches", "move it away to continue without it", "txn", entry)

    def _store(self, entry: str, content: dict[str, Any]) -> None:
        for directory in ("txn", "tmp"):
            self._disk.mkdir(self._directory.at(directory))
        self._file(entry).store(content)


def encode_many(
    first: int,
    values: Iterable[BytesLike],
    keys: Iterable[BytesLike] | None,
    type: int | Sequence[int],
    timestamp: int | Sequence[int] | None,
) -> tuple[bytes, range]:
    """Encode messages with consecutive offsets from first on; return the bytes and the offsets."""
    buffer = Buffer(first, _nothing, threading.Lock())
    buffer.limit = buffer.batch_limit = 2**62
    span = buffer.append_many(values, keys, type, timestamp)
    with buffer.pending() as view:
        return bytes(view), span


def _nothing() -> None:
    """Do nothing: no buffer here is ever full."""


def stage(disk: Disk, path: str, first: int, chunks: Iterable[BytesLike]) -> tuple[int, int]:
    """Stage messages that are encoded with consecutive offsets from first on.

    Returns:
        The number of messages, and the CRC32C of the file. Without messages, it leaves no file.

    Raises:
        DecodeError: a chunk does not consist of whole messages with these offsets; no file is left.
    """
    disk.mkdir(os.path.dirname(path))
    disk.unlink(path)
    file = disk.open(path, "new")  # this syncs the name, because an intent may refer to it
    count = crc = 0
    try:
        for chunk in chunks:
            run = measure(chunk, 0, len(chunk), first + count, max(len(chunk), 1))
            if run.position != len(chunk):
                raise DecodeError(
                    f"a chunk must consist of whole messages with offsets from {first + count} on, got"
                    f" {run.messages} such messages in {run.position} of {len(chunk)} bytes",
                    position=run.position,
                    offset=first + count,
                )
            file.write(chunk)
            crc = crc32c(chunk, crc)
            count += run.messages
        file.sync()
    except BaseException:
        count = 0
        raise
    finally:
        file.close()
        if not count:
            disk.unlink(path)
    return count, crc


def _digest(data: bytes, count: int) -> int:
    crc = 0
    for message in decode_many(data, 0, len(data), 0, count)[0] if count else ():
        sizes = len(message.key).to_bytes(1, "big") + len(message.value).to_bytes(4, "big")
        crc = crc32c(message.value, crc32c(message.key, crc32c(sizes + bytes([message.type]), crc)))
    return crc
