"""What a client sends, and may send: a batch, and the limits of a hub.

The store checks a whole batch before it appends anything: whether it is sound, and which part is already stored, which
is compared.

Both are checked before a batch is written, so that a refused batch leaves nothing and the disk never fills up. A
client's bytes, in its segments and in the rows of its jobs, are counted once and then updated by addition. Before a
refusal they are counted again, because retention may have removed some, once the bytes that were admitted are written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress

from hub.errors import ConflictError, DiskLowError, QuotaError
from hub.naming import STAGING, Source, find_sources, source_path
from sej.codec import decode_many, encode, measure, renumber
from sej.codec.format import MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import DecodeError, InvalidMessageError, OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import Disk
from sej.writing.writer import Writer


def encoded(messages: Sequence[Message]) -> bytes:
    """Return messages as stored in a journal.

    Raises:
        InvalidMessageError: one does not fit the format.
        TypeError: one has a wrong type.
    """
    for message in messages:
        if not isinstance(message.offset, int):
            raise TypeError(f"an offset must be an int, got {message.offset!r} ({type(message.offset).__name__})")
        if not 0 <= message.offset < MAX_OFFSET:
            raise _beyond(message.offset)
    return b"".join([encode(*message) for message in messages])


class Batch:
    """Encoded messages with consecutive offsets, which are decoded only to compare them.

    Attributes:
        first: the first offset.
        known: after :meth:`look`, the messages below the expected offset.
        size: after :meth:`look`, the bytes of the other messages.
        sync: whether they must be durable.
        create: whether they may begin a journal.
        lost_from: if this offset is expected, the messages before these are lost.
        at_end: whether they get the next offsets instead of their own.
    """

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        *,
        sync: bool = True,
        create: bool = True,
        lost_from: int | None = None,
        at_end: bool = False,
    ) -> None:
        """Take whole messages, at least one, and how to store them: see :class:`hub.Store`.

        Raises:
            DecodeError: the bytes are too few for one message.
            InvalidMessageError: the first offset is beyond the largest one.
        """
        self.sync, self.create, self.lost_from, self.at_end = sync, create, lost_from, at_end
        self.known: Sequence[Message] = ()
        if len(data) < OVERHEAD_SIZE:
            raise DecodeError(f"{len(data)} bytes are too few for a message", position=0)
        self.first = OFFSET.unpack_from(data)[0]
        if self.first >= MAX_OFFSET:
            raise _beyond(self.first)
        self.size = len(data)
        self._data = data

    def look(self, due: int | None) -> None:
        """Check the batch, and divide it at the expected offset. If it begins there, the writer's own check is enough.

        Args:
            due: the offset that the hub expects; None if it has no such journal, and none is created for an invalid
                batch.

        Raises:
            DecodeError: the bytes are not whole messages, or (``found``) their offsets are not consecutive.
            InvalidMessageError: their offsets exceed the largest one.
        """
        first = self.first
        if due == first <= MAX_OFFSET - self.size // OVERHEAD_SIZE:
            return
        data, size = self._data, len(self._data)
        run = measure(data, 0, size, first, size)
        if run.position != size:
            if first + run.messages == MAX_OFFSET:
                raise _beyond(first)
            measure(data, run.position, size, first + run.messages, 1)  # raises DecodeError for wrong bytes
            raise DecodeError(f"the last {size - run.position} bytes are not a whole message", position=run.position)
        if due is not None and due > first:
            self.known, at = decode_many(data, 0, size, first, due - first)
            self._data = memoryview(data)[at:]
            self.size = size - at

    def move(self, first: int) -> None:
        """Give the messages the offsets from ``first`` on.

        Raises:
            InvalidMessageError: the last offset would be beyond the largest one.
        """
        if first > MAX_OFFSET - self.size // OVERHEAD_SIZE:
            raise _beyond(first)
        self._data = data = bytearray(self._data)
        renumber(data, 0, self.size, self.first, first)
        self.first = first

    def append(self, writer: Writer) -> None:
        """Append the messages that are not stored yet; the writer is at the expected offset."""
        if self.size:
            writer.end.append_encoded(self._data)


def _beyond(first: int) -> InvalidMessageError:
    return InvalidMessageError(f"offset must be 0 to {MAX_OFFSET - 1}, got a batch from {first} on", offset=first)


def compare(directory: Directory, source: Source, messages: Sequence[Message]) -> tuple[int, int]:
    """Compare messages that were sent again with the stored ones.

    Returns:
        How many are the same, and how many the hub has deleted and therefore accepts unchecked.

    Raises:
        ConflictError: a message differs.
    """
    first, index, same = messages[0].offset, 0, 0
    with closing(Cursor(directory, first)) as cursor:
        while index < len(messages):
            try:
                stored = cursor.read(len(messages) - index)
            except OffsetTooSmallError as error:
                kept = messages[error.first_available - first :]
                same += compare(directory, source, kept)[0] if kept else 0
                break
            if not stored:
                break
            index = stored[0].offset - first  # a recorded gap may lie between
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
    return same, len(messages) - same


class _Count:
    """The bytes of a client that were admitted; None: they were not counted yet."""

    def __init__(self) -> None:
        self.used: int | None = None
        self.lock = threading.Lock()


class Limits:
    """Decides whether a batch may be written."""

    def __init__(
        self, root: str, max_client_bytes: int | Mapping[str, int] | None, min_free_bytes: int, disk: Disk
    ) -> None:
        """Set the limits.

        Args:
            root: the hub's root.
            max_client_bytes: one number for all clients, or one by client id (``"*"``: the others); None: no quota.
            min_free_bytes: bytes that must stay free on the disk.
            disk: the disk.
        """
        self._root = root
        self._quota = max_client_bytes
        self._min_free_bytes = min_free_bytes
        self._disk = disk
        self._counts: dict[str, _Count] = {}

    def admit(self, client: str, size: int) -> None:
        """Admit ``size`` bytes of a client, and count them, before the caller writes them.

        Raises:
            DiskLowError: too little disk space would stay free.
            QuotaError: the client would exceed its quota.
        """
        if self._min_free_bytes:
            free = self._disk.free_bytes(self._root)
            if free - size < self._min_free_bytes:
                raise DiskLowError(
                    f"the hub's disk has {free} bytes free, {size} were sent, and {self._min_free_bytes} must stay"
                    " free; make room on the hub (`sej hub clean`) or lower its --min-free, and try again later",
                    path=self._root,
                )
        quota = self.quota(client)
        if quota is None:
            return
        count = self._counts.setdefault(client, _Count())
        with count.lock:
            if count.used is None or count.used + size > quota:
                count.used = self.count(client)
            if count.used + size > quota:
                raise QuotaError(
                    f"client {client!r} would exceed its quota: {count.used} of {quota} bytes used, {size} more sent;"
                    " raise the quota, or let readers catch up so that retention can remove segments",
                    path=self._root,
                )
            count.used += size

    def quota(self, client: str) -> int | None:
        """Return how many bytes a client may have; None: no quota."""
        if isinstance(self._quota, Mapping):
            return self._quota.get(client, self._quota.get("*"))
        return self._quota

    def count(self, client: str) -> int:
        """Return how many bytes a client's segments and the rows that its jobs have staged hold."""
        return sum(self._staged(client)) + sum(
            segment.size
            for source in find_sources(self._root, client=client, disk=self._disk)
            for segment in Journal(source_path(self._root, source), disk=self._disk).segments
        )

    def _staged(self, client: str) -> Iterator[int]:
        """Yield the size of each file that a task has staged; a job may be removed meanwhile."""
        staging, tasks = os.path.join(self._root, STAGING), f"task-{Source(client, '')}"
        if self._disk.status(staging) is None:
            return
        for task in self._disk.list(staging):
            if task.startswith(tasks):
                with suppress(FileNotFoundError):
                    for name in self._disk.list(os.path.join(staging, task)):
                        if not name.endswith(".rows"):
                            continue
                        status = self._disk.status(os.path.join(staging, task, name))
                        yield 0 if status is None else status.size
