"""The store: stores the messages of many clients, each journal in a SEJ directory of its own, under their own offsets.

Built on :class:`sej.Writer` for the journals and :mod:`hub.batch` for what is accepted. It has no network code.

:meth:`Store.put` is idempotent by offset, and once it has returned, the messages are on the disk. A batch is stored or
refused as a whole; only a failing disk may keep a prefix, which the resend finds. Each directory has its own lock, so
one client never waits for another one's disk, and concurrent batches of one directory share a sync. A gap is refused,
and so is a stored offset that is sent again with other bytes. Offsets that the hub has deleted cannot be compared: they
are accepted unchecked, and counted.

A limited number of writers is open, shared by threads, the least recently used closed first. A borrowed entry keeps its
writer open. Lock order: an entry's lock, then the pool's condition; never the reverse, and nothing slow under the
condition. The thread that opens a writer holds its entry's lock, so that other threads wait for that directory alone.
Entries in use are never closed, so a thread that waits for room only waits for users that need no room themselves.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from hub.batch import Batch, Limits, compare, encoded
from hub.errors import DiskLowError, GapError, UnavailableError
from hub.naming import Source, check_client, check_journal, find_sources, make_root, no_such_journal, source_path
from sej.checks import COUNT, instance_of, optional, require, require_messages
from sej.codec.format import MAX_OFFSET, OVERHEAD_SIZE
from sej.errors import (
    ClosedError,
    DecodeError,
    InvalidMessageError,
    JournalNotFoundError,
    LockedError,
    NotAJournalError,
    SejError,
    WriterFailedError,
)
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import OS, Disk, absolute_path, spare_files
from sej.system.lifecycle import Closing
from sej.system.locks import Lock
from sej.writing.writer import Writer

_log = logging.getLogger(__name__)
_BytesLike = bytes | bytearray | memoryview
MIN_FREE_BYTES: Final = 1 << 24
"""Bytes that stay free on the disk by default: room for recovery, kept offsets and lock files."""
_FILES_A_WRITER: Final = 4
LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency buckets; the last bucket has none."""
_OTHER_FILES: Final = 1024
"""Files of a server for connections and readers."""


@dataclass
class Counters:
    """Counts batches, messages and refusals; threads may share it.

    Attributes:
        puts: accepted batches.
        messages: new messages in them.
        bytes: the bytes of new messages, as stored in the journals.
        resent: messages that were sent again and were the same.
        unseen: messages below the hub's first offset, accepted unchecked.
        refusals: refused batches by the error's name.
        latency_buckets: batches by duration; the bounds are LATENCY_BOUNDS_S.
        latency_s: the sum of these durations, in seconds.
    """

    puts: int = 0
    messages: int = 0
    bytes: int = 0
    resent: int = 0
    unseen: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    latency_buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Make the lock of all fields."""
        self._lock = threading.Lock()

    def count_batch(self, messages: int, size: int, seconds: float) -> None:
        """Count an accepted batch."""
        bucket = bisect_left(LATENCY_BOUNDS_S, seconds)
        with self._lock:
            self.puts += 1
            self.messages += messages
            self.bytes += size
            self.latency_buckets[bucket] += 1
            self.latency_s += seconds

    def count_resent(self, same: int, unseen: int) -> None:
        """Count messages that were sent again."""
        with self._lock:
            self.resent += same
            self.unseen += unseen

    def refused(self, error: BaseException) -> None:
        """Count a refused batch."""
        name = type(error).__name__
        with self._lock:
            self.refusals[name] = self.refusals.get(name, 0) + 1


@dataclass
class Counts(Counters):
    """What a server has counted since it was started, and what it does at the moment.

    Attributes:
        stalled: readers that were disconnected because others waited.
        refusals: refused calls by reason.
        open_writers: open writers.
        streams: reads in progress.
        streams_waiting: reads that wait for their turn.
        followers: readers that follow a journal.
        copiers: copying clients.
        reader_leases: journals whose named reader a program elsewhere has.
        answer_bytes: memory used by the answers to readers.
        answer_peak_bytes: the most memory that answers used.
        answers_waiting: readers that wait for memory.
    """

    stalled: int = 0
    open_writers: int = 0
    streams: int = 0
    streams_waiting: int = 0
    followers: int = 0
    copiers: int = 0
    reader_leases: int = 0
    answer_bytes: int = 0
    answer_peak_bytes: int = 0
    answers_waiting: int = 0


class Store(Closing):
    """A hub's root, open for writing; shared by any number of threads.

    Attributes:
        root: the directory.
        counters: counts since it was opened.

    Example:
        >>> import tempfile, sej
        >>> with Store(tempfile.mkdtemp()) as store:
        ...     store.put("client-1", "orders", [sej.Message(0, 1, 0, b"key", b"value")])
        ...     store.get("client-1", "orders", 0)
        1
        [Message(offset=0, timestamp=1, type=0, key=b'key', value=b'value')]
    """

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
        """Open a root for writing; it is created and marked if it is missing.

        Args:
            root: the directory that holds ``[client-id].[journal-dir]/``.
            max_open: the most writers open at one time; the least recently used is closed for the next. Fewer if the
                process cannot open four files for each, and some for connections and readers.
            max_client_bytes: the most bytes of each client on the hub, or a number by client id (``"*"``: the others);
                None: no quota.
            min_free_bytes: a batch is refused if less would stay free on the disk.
            segment_bytes: as for :class:`sej.Writer`.
            allow_network_fs: as for :class:`sej.Writer`.
            disk: the disk.

        Raises:
            NotAJournalError: the path is a file, a SEJ directory itself, or a directory of journals that are not of
                clients.
        """
        require(root=root, max_open=max_open, min_free_bytes=min_free_bytes, segment_bytes=segment_bytes)
        require(allow_network_fs=allow_network_fs, disk=disk)
        require(max_client_bytes=(max_client_bytes, optional(instance_of(int, Mapping))))
        quotas = max_client_bytes.values() if isinstance(max_client_bytes, Mapping) else (max_client_bytes,)
        for quota in quotas:
            optional(COUNT)("max_client_bytes", quota)
        self.root = absolute_path(root)
        self.counters = Counters()
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._allow_network_fs = allow_network_fs
        make_root(self.root, disk=disk)
        path = os.path.join(os.path.realpath(self.root), ".serving.lck")
        self._root_lock = Lock(path, what="this hub's root", disk=disk)
        self._counting = threading.Lock()
        self._servers = 0
        self._limits = Limits(self.root, max_client_bytes, min_free_bytes, disk)
        room = spare_files()
        most = max(room - _OTHER_FILES, room // 2) // _FILES_A_WRITER
        self._pool = _Pool(self, max(min(max_open, most), 1))

    # --- writing

    def put(self, client_id: str, journal_dir: str, messages: Iterable[Message]) -> int:
        """Store messages with consecutive offsets; they are durable when it returns.

        Messages with stored offsets are compared and not stored again, so a batch may be sent again after any failure.
        A journal that the hub does not have yet starts at the first message's offset.

        Args:
            client_id: letters, digits, ``_`` and ``-``.
            journal_dir: letters, digits, ``_``, ``-`` and ``.``.
            messages: type, key, timestamp and offset are kept.

        Returns:
            The offset that is expected next.

        Raises:
            GapError: messages before these, or among them, are missing; ``.expected`` is the next offset. Nothing was
                stored.
            ConflictError: the hub has other bytes under one of these offsets.
            QuotaError: the client has used up its bytes.
            DiskLowError: the disk is nearly full: try again later.
            UnavailableError: another process writes this directory, or the disk failed: try again later.
            InvalidNameError: a name has characters that are not allowed.
            InvalidMessageError: a message does not fit the format.
            TypeError: messages is not an iterable of :class:`sej.Message`.
        """
        batch = require_messages(messages)
        if not batch:
            return self.end_offset(client_id, journal_dir)
        return self._take(check_journal(client_id, journal_dir), Batch(encoded(batch)))

    def put_encoded(
        self,
        client_id: str,
        journal_dir: str,
        data: _BytesLike,
        *,
        sync: bool = True,
        create: bool = True,
        lost_from: int | None = None,
    ) -> int:
        """Store encoded messages without decoding them; otherwise like :meth:`put`.

        Args:
            client_id: as for :meth:`put`.
            journal_dir: as for :meth:`put`.
            data: whole messages with consecutive offsets, one after the other.
            sync: False: the messages reach the kernel; :meth:`sync` makes them durable.
            create: False: refuse the batch if the hub does not have the journal yet, because it is not the beginning.
            lost_from: if this offset is expected, record the messages before these as a gap instead of refusing them.

        Returns:
            The offset that is expected next.

        Raises:
            DecodeError: the bytes are not whole messages; nothing was stored.
            GapError: as :meth:`put`, or the journal does not exist and ``create`` is False.
            SejError: as :meth:`put`.
        """
        if not len(data):
            return self.end_offset(client_id, journal_dir)
        batch = Batch(data, sync=sync, create=create, lost_from=lost_from)
        return self._take(check_journal(client_id, journal_dir), batch)

    def append(self, client_id: str, journal_dir: str, messages: Iterable[Message]) -> range:
        """Store messages under the next offsets instead of their own; they are durable when it returns.

        Unlike :meth:`put`, a repeat stores them again.

        Returns:
            Their offsets.

        Raises:
            SejError: as :meth:`put`, without GapError and ConflictError.
        """
        found = [message._replace(offset=offset) for offset, message in enumerate(require_messages(messages))]
        if not found:
            end = self.end_offset(client_id, journal_dir)
            return range(end, end)
        end = self._take(check_journal(client_id, journal_dir), Batch(encoded(found), at_end=True))
        return range(end - len(found), end)

    def sync(self, client_id: str, journal_dir: str) -> int:
        """Make everything that was stored in a directory durable.

        Returns:
            The offset that is expected next; every message below it is on the disk.
        """
        return self.end_offset(client_id, journal_dir)

    def admit(self, client_id: str, size: int) -> None:
        """Admit ``size`` bytes of a client that are stored outside of its journals first, and count them.

        Raises:
            QuotaError: the client has used up its bytes.
            DiskLowError: the disk is nearly full.
        """
        self._limits.admit(client_id, size)

    @contextmanager
    def writing(self, source: Source) -> Iterator[Writer]:
        """Yield the writer of a journal, which no other thread uses until the block ends.

        Raises:
            UnavailableError: another process writes this directory, or the disk failed: try again later.
        """
        with self._pool.borrow(source) as entry, entry.lock:
            yield self._pool.writer(source, entry, 0)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Return a context for a server of this store: until the last one ends, no other store may serve the root.

        With two hubs on one root, each would refuse what the other one has open. Programs that read the root, or write
        to it without a server, do not need this.

        Raises:
            LockedError: one does.
        """
        with self._counting:
            if not self._root_lock.held:  # also if this is a forked child
                self._root_lock.acquire()
            self._servers += 1
        try:
            yield
        finally:
            with self._counting:
                self._servers -= 1
                if not self._servers:
                    self._root_lock.release()

    # --- reading

    def get(
        self,
        client_id: str,
        journal_dir: str,
        offset: int,
        max_messages: int = 1000,
        *,
        max_bytes: int | None = None,
    ) -> list[Message]:
        """Return messages from an offset on; an empty list at the end.

        Args:
            client_id: the client.
            journal_dir: one of the client's journals.
            offset: the first offset.
            max_messages: the most messages to return.
            max_bytes: stop before the message that would exceed this many bytes of keys and values; the first message
                is always returned.

        Raises:
            JournalNotFoundError: the hub has no such journal.
            OffsetTooSmallError: the message was deleted.
            CorruptionError: the hub's copy is damaged there.
        """
        require(offset=offset, max_messages=max_messages, max_bytes=max_bytes)
        source = check_journal(client_id, journal_dir)
        found: list[Message] = []
        size = 0
        with closing(Cursor(self.existing(source), offset)) as cursor:
            cursor.check_available()
            while len(found) < max_messages and (batch := cursor.read(max_messages - len(found))):
                for message in batch:
                    size += OVERHEAD_SIZE + len(message.key) + len(message.value)
                    if max_bytes is not None and size > max_bytes and found:
                        return found
                    found.append(message)
        return found

    def end_offset(self, client_id: str, journal_dir: str) -> int:
        """Return the offset that :meth:`put` expects next; everything below is durable. 0 for an unknown journal."""
        source = check_journal(client_id, journal_dir)
        with self._pool.borrow(source) as entry:
            with entry.lock:
                writer = entry.writer
                end = writer.offset if writer is not None else -1
            if writer is not None:
                writer.end.require_in_place()
                writer.sync()
                return end
            if not self._has(source):
                return 0
            directory = self.directory(source)
            end = Tail(directory).end_offset()
            sync_up_to(directory, end)
            return end

    def first_offset(self, client_id: str, journal_dir: str) -> int | None:
        """Return the first offset that the hub still has; None for an unknown journal."""
        source = check_journal(client_id, journal_dir)
        if not self._has(source):
            return None
        return Journal(source_path(self.root, source), disk=self._disk).first_offset

    def directory(self, source: Source) -> Directory:
        """Return the directory of a journal, whether or not it exists."""
        return Directory(source_path(self.root, source), self._disk)

    def existing(self, source: Source) -> Directory:
        """Return the directory of a journal.

        Raises:
            JournalNotFoundError: the hub has no such journal.
        """
        directory = self.directory(source)
        try:
            directory.require()
        except JournalNotFoundError:
            raise no_such_journal(source, directory.path) from None
        return directory

    def clients(self) -> list[str]:
        """Return the client ids that have journals here, sorted."""
        return sorted({source.client for source in self.sources()})

    def journals(self, client_id: str) -> list[str]:
        """Return a client's journals, sorted."""
        check_client(client_id)
        return [source.journal_dir for source in find_sources(self.root, client=client_id, disk=self._disk)]

    def sources(self) -> list[Source]:
        """Return every client and journal, sorted."""
        return find_sources(self.root, disk=self._disk)

    @property
    def open_writers(self) -> int:
        """The number of open writers."""
        return self._pool.open_writers

    def close(self) -> None:
        """Wait for the batches in progress, then close every writer; a second call does nothing.

        Raises:
            WriterFailedError: a last sync failed. Acknowledged messages had been synced before.
        """
        self._pool.close()

    def __repr__(self) -> str:
        """Show the root."""
        return f"<hub.Store {self.root!r}>"

    # --- internals

    def _take(self, source: Source, batch: Batch) -> int:
        start = time.perf_counter()
        try:
            with self._pool.borrow(source) as entry:
                due, end = self._append(source, entry, batch)
        except (SejError, OSError) as error:
            self.counters.refused(error)
            raise
        self.counters.count_batch(end - due, batch.size, time.perf_counter() - start)
        return end

    def _append(self, source: Source, entry: _Entry, batch: Batch) -> tuple[int, int]:
        """Append what is new in a batch; return the next offset as it was before, and as it is now."""
        due = batch.first
        try:
            with entry.lock:
                new = entry.writer is None and not self._has(source)
                if new and not batch.create:
                    raise GapError(
                        f"{source}: the hub does not have this journal, and this batch is not its beginning;"
                        " send the journal's first messages before this batch",
                        expected=0,
                        offset=batch.first,
                    )
                if new:
                    batch.look(None)
                    self._limits.admit(source.client, batch.size)
                writer = self._pool.writer(source, entry, batch.first if new else 0)
                due = writer.offset
                if batch.at_end:
                    batch.move(due)
                if due == batch.lost_from and due < batch.first:
                    writer.end.leave_out(batch.first, "the client lost them before they were copied")
                    _log.warning("%s: messages %d to %d are recorded as lost", source, due, batch.first - 1)
                    due = batch.first
                if not new or due != batch.first:  # another process has just created it
                    if batch.first != due:  # otherwise an append finds this out
                        writer.end.require_in_place()
                    self._check(source, batch, due)
                    if batch.size:
                        self._limits.admit(source.client, batch.size)
                batch.append(writer)
                end = writer.offset
        except DecodeError as error:
            if error.found is None:
                raise
            raise GapError(
                f"{source}: a message in the batch must have offset {error.offset}, got {error.found}",
                expected=due,
                offset=error.found,
            ) from error
        if batch.sync:
            writer.sync()
        return due, end

    def _check(self, source: Source, batch: Batch, due: int) -> None:
        """Check a batch for a directory that expects the offset ``due``."""
        batch.look(due)
        if batch.first > due:
            raise GapError(
                f"{source}: messages {due} to {batch.first - 1} are missing; send from offset {due} on",
                expected=due,
                offset=batch.first,
            )
        if batch.known:
            self.counters.count_resent(*compare(self.directory(source), source, batch.known))

    def _has(self, source: Source) -> bool:
        """Return whether there is a segment; a directory whose creation was interrupted has none."""
        try:
            return bool(self.directory(source).segments())
        except NotAJournalError:
            return False

    def open_writer(self, source: Source, first_offset: int) -> Writer:
        """Open the writer of a source, whose first offset is used if the journal is new."""
        if not 0 <= first_offset <= MAX_OFFSET:
            raise InvalidMessageError(f"offset must be 0 to {MAX_OFFSET}, got {first_offset}", offset=first_offset)
        return Writer(
            source_path(self.root, source),
            segment_bytes=self._segment_bytes,
            first_offset=first_offset,
            allow_network_fs=self._allow_network_fs,
            disk=self._disk,
        )


def _unavailable(error: LockedError | WriterFailedError) -> UnavailableError:
    """Turn the error into the hub's own, which tells the caller to try again.

    What the disk said is logged: the caller of a hub is elsewhere, and has no use for its paths.
    """
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return UnavailableError(f"try again later: {error.reason}", path=error.path, offset=error.offset)
    _log.error("%s", error)
    kind = DiskLowError if cause.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
    reason = f"try again later: the hub's disk failed: {cause.strerror or type(cause).__name__}"
    return kind(reason, path=error.path, offset=error.offset)


class _Entry:
    """One directory: its lock, and its writer while it is open."""

    __slots__ = ("lock", "users", "writer")

    def __init__(self) -> None:
        """Create an entry without a writer."""
        self.lock = threading.Lock()
        self.writer: Writer | None = None
        self.users = 0


class _Pool:
    """Opens writers at their first use, and closes the least recently used one to make room."""

    def __init__(self, store: Store, max_open: int) -> None:
        """Create a pool without writers.

        Args:
            store: opens the writers.
            max_open: the most writers open at one time.
        """
        self._store = store
        self._max_open = max_open
        self._entries: OrderedDict[Source, _Entry] = OrderedDict()
        self._condition = threading.Condition(threading.Lock())
        self._open = 0
        self._closed = False

    @property
    def open_writers(self) -> int:
        """The number of open writers."""
        return self._open

    @contextmanager
    def borrow(self, source: Source) -> Iterator[_Entry]:
        """Borrow the entry of a source until the block ends; its writer may not be open yet.

        Raises:
            ClosedError: the pool was closed; raised when the block begins.
            UnavailableError: another process writes this directory, or the disk failed. A writer that failed is closed:
                the next caller opens another one, which finds what is on disk.
        """
        with self._condition:
            if self._closed:
                raise ClosedError("the store is closed; open another one", path=self._store.root)
            entry = self._entries.setdefault(source, _Entry())
            self._entries.move_to_end(source)
            entry.users += 1
        try:
            yield entry
        except LockedError as error:
            raise _unavailable(error) from error
        except WriterFailedError as error:
            self._close_failed(entry)
            raise _unavailable(error) from error
        finally:
            self._give_back(source, entry)

    def writer(self, source: Source, entry: _Entry, first_offset: int) -> Writer:
        """Return the writer of a borrowed entry whose lock the caller holds."""
        if entry.writer is not None:
            return entry.writer
        self._make_room()
        try:
            entry.writer = self._store.open_writer(source, first_offset)
        except BaseException:
            self._made_room()
            raise
        return entry.writer

    def close(self) -> None:
        """Refuse new users, wait for current ones, and close every writer.

        Raises:
            SejError: a last write or sync failed; the others were closed anyway.
        """
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: not any(entry.users for entry in self._entries.values()))
            entries = list(self._entries.values())
            self._entries.clear()
        with ExitStack() as stack:  # the others are closed if one fails
            for entry in entries:
                stack.callback(self._close_entry, entry)

    def _close_failed(self, entry: _Entry) -> None:
        """Close the writer of an entry, unless another thread has replaced it by one that works."""
        with entry.lock, suppress(WriterFailedError):
            try:
                if entry.writer is not None:
                    entry.writer.end.require_in_place()
            except WriterFailedError:
                self._close_entry(entry)

    def _give_back(self, source: Source, entry: _Entry) -> None:
        """End the use of an entry."""
        with self._condition:
            entry.users -= 1
            if not entry.users and entry.writer is None and self._entries.get(source) is entry:
                del self._entries[source]
            self._condition.notify_all()

    def _made_room(self) -> None:
        with self._condition:
            self._open -= 1
            self._condition.notify_all()

    def _make_room(self) -> None:
        """Reserve room for one more, by closing the least recently used writer or by waiting for one that is in use."""
        while True:
            with self._condition:
                if self._open < self._max_open:
                    self._open += 1
                    return
                idle = next(
                    ((s, e) for s, e in self._entries.items() if not e.users and e.writer is not None),
                    None,
                )
                if idle is None:
                    self._condition.wait()
                    continue
                source, entry = idle
                entry.users += 1
            try:
                with entry.lock, suppress(WriterFailedError):  # what was acknowledged is durable already
                    self._close_entry(entry)
            finally:
                self._give_back(source, entry)

    def _close_entry(self, entry: _Entry) -> None:
        writer, entry.writer = entry.writer, None
        if writer is not None:
            try:
                writer.close()
            finally:
                self._made_room()
