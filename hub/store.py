"""The store: takes the messages of many clients, each into a SEJ directory of its own, with the offsets they have.

What it relies on: :class:`sej.Writer` for the journals, :mod:`hub.pool` for how many are open, :mod:`hub.limits` for
how much is taken. No network is in here.

What it promises: :meth:`Store.put` is idempotent by offset; what it returned for is on the disk; a batch is taken as a
whole or refused as a whole (a failing disk may keep a prefix, which the resend finds); each directory has its own lock,
so one client never waits for another one's disk; concurrent batches of one directory share a sync. A gap is refused,
and so is a known offset that comes again with other bytes. Offsets below the hub's own retention cannot be compared any
more: they are accepted unseen, and counted.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from typing import Final, Self

from hub.batch import Batch, Encoded, Messages
from hub.compare import compare
from hub.counters import Counters
from hub.errors import DiskLowError, GapError, UnavailableError
from hub.limits import Limits
from hub.naming import Source, check_client, check_journal, find_sources, make_root, source_path
from hub.pool import WriterPool
from sej.checks import COUNT, DISK, FLAG, OFFSET, PATH, POSITIVE, a, optional, refuse_pickling, require
from sej.codec.format import MAX_OFFSET, OVERHEAD_SIZE
from sej.errors import DecodeError, InvalidMessageError, LockedError, NotAJournalError, SejError, WriterFailedError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.medium import sync_up_to
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import OS, Disk
from sej.writing.writer import Writer

__all__ = ["MIN_FREE_BYTES", "Store"]

_BytesLike = bytes | bytearray | memoryview
MIN_FREE_BYTES: Final = 1 << 24
"""What stays free on the disk unless the caller says otherwise: room for recovery, kept offsets and lock files."""


class Store:
    """A hub's root, open for writing; shared by any number of threads.

    Attributes:
        root: the directory.
        counters: what was done since it was opened.

    Example:
        >>> import tempfile, sej
        >>> with Store(tempfile.mkdtemp()) as store:
        ...     store.put("client-1", "orders", [sej.Message(0, 1, 0, b"key", b"value")])
        ...     store.get("client-1", "orders", 0)
        1
        [Message(offset=0, timestamp=1, type=0, key=b'key', value=b'value')]
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        root: str | os.PathLike[str],
        max_open: int = 256,
        *,
        max_client_bytes: int | Mapping[str, int] | None = None,
        min_free_bytes: int = MIN_FREE_BYTES,
        segment_bytes: int = 1 << 30,
        allow_network_fs: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a root for writing; made and marked if missing.

        Args:
            root: the directory that holds ``[client-id].[journal-dir]/``.
            max_open: writers that are open at a time; the longest unused is closed for the next.
            max_client_bytes: how many bytes each client may have on the hub, or a number by client id (``"*"``: the
                others); None: no quota.
            min_free_bytes: batches are refused that would leave less free on the disk.
            segment_bytes: as for :class:`sej.Writer`.
            allow_network_fs: as for :class:`sej.Writer`.
            disk: the seam.

        Raises:
            NotAJournalError: the path is a file, or a SEJ directory itself.
        """
        require(
            root=(root, PATH),
            max_open=(max_open, POSITIVE),
            max_client_bytes=(max_client_bytes, optional(a(int, Mapping))),
            min_free_bytes=(min_free_bytes, COUNT),
            segment_bytes=(segment_bytes, POSITIVE),
            allow_network_fs=(allow_network_fs, FLAG),
            disk=(disk, DISK),
        )
        quotas = max_client_bytes.values() if isinstance(max_client_bytes, Mapping) else (max_client_bytes,)
        for quota in quotas:
            optional(COUNT)("max_client_bytes", quota)
        self.root = os.fspath(root)
        self.counters = Counters()
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._allow_network_fs = allow_network_fs
        make_root(self.root, disk=disk)
        self._limits = Limits(self.root, max_client_bytes, min_free_bytes, disk)
        self._pool = WriterPool(self._open_writer, max_open)

    # --- taking messages

    def put(self, client_id: str, journal_dir: str, messages: Iterable[Message]) -> int:
        """Take messages with consecutive offsets; durable when it returns.

        Offsets that the hub has already are compared and left; so a batch may be sent again whatever became of the
        first try. A journal that the hub does not have yet starts at the first message's offset.

        Args:
            client_id: letters, digits, ``_`` and ``-``.
            journal_dir: letters, digits, ``_``, ``-`` and ``.``.
            messages: type, key, timestamp and offset are kept.

        Returns:
            The offset that is expected next.

        Raises:
            GapError: messages are missing before these, or among them; ``.expected`` is due. Nothing was taken.
            ConflictError: the hub has other bytes under one of these offsets.
            QuotaError: the client has used up its bytes.
            DiskLowError: the disk is nearly full: try later.
            UnavailableError: another process writes this directory, or the disk failed: try later.
            InvalidNameError: a name could leave the root.
            InvalidMessageError: a message does not fit the format.
        """
        batch = list(messages)
        if not batch:
            return self.end_offset(client_id, journal_dir)
        return self._take(check_journal(client_id, journal_dir), Messages(batch), sync=True)

    def put_encoded(
        self, client_id: str, journal_dir: str, data: _BytesLike, *, sync: bool = True, create: bool = True
    ) -> int:
        """Take messages as they stand in a journal, without taking them apart; otherwise as :meth:`put`.

        Args:
            client_id: as for :meth:`put`.
            journal_dir: as for :meth:`put`.
            data: whole messages with consecutive offsets, one after the other.
            sync: False: in the kernel when it returns; :meth:`sync` makes it durable.
            create: False: refuse it where the hub does not have the journal yet; for what is not its beginning.

        Returns:
            The offset that is expected next.

        Raises:
            DecodeError: these are no whole messages; nothing was taken.
            GapError: as :meth:`put`, or the journal is not there and create is False.
            SejError: as :meth:`put`.
        """
        if not len(data):
            return self.end_offset(client_id, journal_dir)
        return self._take(check_journal(client_id, journal_dir), Encoded(data), sync=sync, create=create)

    def sync(self, client_id: str, journal_dir: str) -> int:
        """Make everything that was taken into a directory durable.

        Returns:
            The offset that is expected next; every message below it is on the disk.
        """
        return self.end_offset(client_id, journal_dir)

    # --- looking

    def get(
        self,
        client_id: str,
        journal_dir: str,
        offset: int,
        max_messages: int = 1000,
        *,
        max_bytes: int | None = None,
    ) -> list[Message]:
        """Messages from an offset on; an empty list at the end.

        Args:
            client_id: whose.
            journal_dir: which of the client's journals.
            offset: the first one.
            max_messages: at most so many.
            max_bytes: end before the message that would pass so many bytes of keys and values; the first one always
                comes.

        Raises:
            JournalNotFoundError: the hub has no such journal.
            OffsetTooSmallError: the message was deleted.
            CorruptionError: the hub's copy is damaged there.
        """
        require(
            offset=(offset, OFFSET),
            max_messages=(max_messages, POSITIVE),
            max_bytes=(max_bytes, optional(COUNT)),
        )
        directory = self._directory(check_journal(client_id, journal_dir))
        directory.require()
        cursor = Cursor(directory, offset)
        found: list[Message] = []
        size = 0
        try:
            cursor.check_available()
            while len(found) < max_messages and (batch := cursor.read(max_messages - len(found))):
                for message in batch:
                    size += OVERHEAD_SIZE + len(message.key) + len(message.value)
                    if max_bytes is not None and size > max_bytes and found:
                        return found
                    found.append(message)
        finally:
            cursor.close()
        return found

    def end_offset(self, client_id: str, journal_dir: str) -> int:
        """The offset that :meth:`put` expects next, with everything below it durable; 0 for an unknown journal."""
        source = check_journal(client_id, journal_dir)
        with self._pool.borrow(source) as entry:
            with entry.lock:
                writer = entry.writer
                end = writer.offset if writer is not None else -1
            if writer is not None:
                try:
                    writer.sync()
                    return end
                except WriterFailedError as error:
                    self._pool.drop(entry, writer)
                    raise _unavailable(error) from error
            if not self._has(source):
                return 0
            directory = self._directory(source)
            end = Tail(directory).end_offset()
            sync_up_to(directory, end)
            return end

    def first_offset(self, client_id: str, journal_dir: str) -> int | None:
        """The first offset that the hub still has; None for a journal it does not have."""
        source = check_journal(client_id, journal_dir)
        if not self._has(source):
            return None
        return Journal(source_path(self.root, source), disk=self._disk).first_offset

    def clients(self) -> list[str]:
        """The client ids that have journals here, sorted."""
        return sorted({source.client for source in self.sources()})

    def journals(self, client_id: str) -> list[str]:
        """A client's journals, sorted."""
        check_client(client_id)
        return [source.journal_dir for source in find_sources(self.root, client=client_id, disk=self._disk)]

    def sources(self) -> list[Source]:
        """Every client and journal, sorted."""
        return find_sources(self.root, disk=self._disk)

    @property
    def open_writers(self) -> int:
        """How many writers are open."""
        return self._pool.open_writers

    @property
    def disk_free_bytes(self) -> int:
        """What is free on the root's disk."""
        return self._disk.free_bytes(self.root)

    def close(self) -> None:
        """Let the batches that are being taken end, and close every writer; a second time does nothing.

        Raises:
            WriterFailedError: a last sync failed. What was acknowledged had been synced before.
        """
        self._pool.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The root."""
        return f"<hub.Store {self.root!r}>"

    # --- below

    def _take(self, source: Source, batch: Batch, *, sync: bool, create: bool = True) -> int:
        start = time.perf_counter()
        writer: Writer | None = None
        try:
            with self._pool.borrow(source) as entry:
                try:
                    with entry.lock:
                        new = entry.writer is None and not self._has(source)
                        if new and not create:
                            raise GapError(
                                f"{source}: the hub does not have this journal, and this is not its beginning",
                                expected=0,
                                offset=batch.first,
                            )
                        if new:
                            batch.look(None)
                            self._limits.admit(source.client, batch.size)
                        writer = self._pool.writer(source, entry, batch.first if new else 0)
                        due = writer.offset
                        if not new:
                            self._admit(source, batch, due)
                        batch.append(writer)
                        end = writer.offset
                    if sync:
                        writer.sync()
                except WriterFailedError:
                    if writer is not None:
                        self._pool.drop(entry, writer)
                    raise
        except DecodeError as error:
            refusal: SejError = error
            if error.found is not None:
                refusal = GapError(
                    f"{source}: message {error.found} stands in the batch where {error.offset} is due",
                    expected=self._expected(source, batch.first),
                    offset=error.found,
                )
            self.counters.refused(refusal)
            raise refusal from error
        except (LockedError, WriterFailedError) as error:
            self.counters.refused(error)
            raise _unavailable(error) from error
        except (SejError, OSError) as error:
            self.counters.refused(error)
            raise
        self.counters.took(end - due, batch.size, time.perf_counter() - start)
        return end

    def _admit(self, source: Source, batch: Batch, due: int) -> None:
        """Look at a batch for a directory that expects due."""
        batch.look(due)
        if batch.first > due:
            raise GapError(
                f"{source}: messages {due} to {batch.first - 1} are missing: send from {due} on",
                expected=due,
                offset=batch.first,
            )
        if batch.known:
            self.counters.saw_again(*compare(self._directory(source), source, batch.known))
        if batch.size:
            self._limits.admit(source.client, batch.size)

    def _expected(self, source: Source, first: int) -> int:
        with self._pool.borrow(source) as entry, entry.lock:
            if entry.writer is not None:
                return entry.writer.offset
        return self.end_offset(*source) if self._has(source) else first

    def _has(self, source: Source) -> bool:
        """Whether there is a segment: a directory that is just being made, or was by a hub that died, has none."""
        try:
            return bool(self._directory(source).segments())
        except NotAJournalError:
            return False

    def _directory(self, source: Source) -> Directory:
        return Directory(source_path(self.root, source), self._disk)

    def _open_writer(self, source: Source, first_offset: int) -> Writer:
        if not 0 <= first_offset <= MAX_OFFSET:
            raise InvalidMessageError(f"offset {first_offset}: 0 to {MAX_OFFSET} is due", offset=first_offset)
        return Writer(
            source_path(self.root, source),
            segment_bytes=self._segment_bytes,
            first_offset=first_offset,
            allow_network_fs=self._allow_network_fs,
            disk=self._disk,
        )


def _unavailable(error: LockedError | WriterFailedError) -> UnavailableError:
    """The same trouble in the hub's words: the caller may try again."""
    cause = error.__cause__
    kind = DiskLowError if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return (kind or UnavailableError)(f"try later: {error.reason}", path=error.path, offset=error.offset)
