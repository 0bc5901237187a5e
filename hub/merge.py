"""Many clients' journals as one stream: by timestamp, then client, then offset.

Built on one slot for each directory, a heap of the next message of each slot, a vector of kept
offsets and watches for new messages.

It returns every message once and leaves none out without an error. Messages of one directory are ordered by offset,
whatever its clocks say; existing messages of different directories are ordered by time. When it follows, a silent
directory delays the others for at most ``lateness_s``; messages that it gets after that are late, and are returned
anyway. A directory that cannot be read is named (:class:`~hub.SourceError`) and can be skipped; the others continue.

Memory is bounded by ``memory_bytes`` and one message for each directory: once decoded and, if the segment is open, once
as read. Descriptors are bounded by ``max_open``: further cursors are parked and reopened at their position.

What is committed, the next offset of every directory, is in one file that is replaced atomically.
``.merge/NAME.json`` in the root is JSON preceded by a checksum (:mod:`sej.system.sealed`). It holds the offsets by
directory name, and the identity of the journal of each offset, if the journal has one: a directory that was re-created
under the old name is refused, not read from the middle. ``.merge/NAME.lck`` allows one merge at a time under that name.
The file is authoritative. Each directory's own ``ofs/NAME.ofs`` is updated after it, for retention, which reads only
there: after a crash it may be behind the file, never ahead. It is moved back if the file was removed or restored.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from hub.errors import HubError, SourceError
from hub.naming import Source, find_sources, require_root, source_path
from sej.checks import CALLABLE, Seconds, one_of, require, seconds
from sej.codec.format import MAX_OFFSET
from sej.errors import ClosedError, JournalNotFoundError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Incarnation, check_name, journal_id
from sej.journal.segment import CHUNK_BYTES
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.message import Message
from sej.reading.offset import Offset, read_offset
from sej.system.disk import OS, Disk, absolute_path, is_scarce, spare_files
from sej.system.lifecycle import Closing
from sej.system.locks import Lock
from sej.system.sealed import SealedFile, whole
from sej.system.watch import Watch, wait_any

_FOLDER: Final = ".merge"
_FORMAT: Final = 1
_VECTOR_BYTES: Final = 1 << 28
"""About a million directories with the longest names."""
_ALONE: Final = 16
"""Up to this many directories are committed one after the other, more concurrently, as most of the time is waiting."""
_THREADS: Final = 16
_FIRST_BATCH: Final = 16
_MAX_BATCH: Final = 512
"""Larger chunks would not be faster: the waiting messages would no longer fit the processor's cache."""
_SAMPLES: Final = 16
_OBJECT_BYTES: Final = 250
"""Approximate memory of a message in addition to its bytes."""
_LEAST_CHUNK_BYTES: Final = 4096
_CHUNKS: Final = 4
"""Chunks of a directory that may be in memory: the one that was read and up to two decoded, with a reserve."""
_OF_THE_DIRECTORY: Final = (SejError, FileNotFoundError, NotADirectoryError)
"""Errors that may be skipped. Any other one of the system (descriptors, memory, permission) says nothing about it."""
_OTHERS: Final = "skip(source) continues without it"
_RECREATED: Final = (
    "this directory was removed or re-created since the merge began; read it with a merge of another name"
)
_SCARCE: Final = "no directory is at fault: open the merge again when the system has more (ulimit -n for files)"


class _Kept(NamedTuple):
    """The state that a merge has committed.

    Attributes:
        offsets: the next offset by directory name.
        journals: the identity of each journal, in hex; missing if the journal had none.
    """

    offsets: dict[str, int]
    journals: dict[str, str]


def read_vector(root: str, reader: str, disk: Disk) -> _Kept:
    """Read what a merge has committed, without its lock; empty if it never committed.

    Raises:
        HubError: the file is not a vector.
    """
    file = _vector(os.path.join(root, _FOLDER), check_name(reader, "a reader name"), disk)
    content = file.load()
    if content is None:
        return _Kept({}, {})
    with file.checking():
        whole(content["format"], _FORMAT, _FORMAT)
        return _Kept(
            {name: whole(offset, 0, MAX_OFFSET) for name, offset in content["offsets"].items()},
            {name: bytes.fromhex(i).hex() for name, i in content["journals"].items()},
        )


def _vector(folder: str, reader: str, disk: Disk) -> SealedFile:
    return SealedFile(
        disk,
        os.path.join(folder, f"{reader}.json"),
        f"a vector of offsets of format {_FORMAT}",
        "restore a copy, or remove the file to start the merge at the first messages",
        max_bytes=_VECTOR_BYTES,
        error=HubError,
    )


class _Vector:
    """The kept offsets of one merge, held by one process at a time."""

    def __init__(self, root: str, reader: str, disk: Disk) -> None:
        """Take the reader's lock and read its offsets.

        Raises:
            LockedError: another merge has this reader name.
            HubError: the file is not a vector.
            InvalidNameError: the name has characters that are not allowed.
        """
        self._root = root
        self._reader = check_name(reader, "a reader's name")
        self._disk = disk
        self._folder = os.path.join(root, _FOLDER)
        disk.mkdir(self._folder)
        self._lock = Lock(os.path.join(self._folder, f"{reader}.lck"), what=f"merge {reader!r}", disk=disk).acquire()
        try:
            self._offsets, self._journals = read_vector(root, reader, disk)
            disk.sync_dir(self._folder)  # an earlier merge may have renamed the file and failed before this
        except BaseException:
            self._lock.release()
            raise

    def __getitem__(self, source: Source) -> int | None:
        """Return the next offset of a directory; None if nothing of it was committed."""
        return self._offsets.get(source.name)

    def register(self, source: Source) -> None:
        """Register this reader in a directory for retention, and update its mirror.

        Raises:
            LockedError: another process reads that directory under this name.
            OffsetBeyondEndError: the directory ends before the committed offset.
            OffsetTooSmallError: the directory does not have its message any more, and the mirror was ahead of it.
            SejError: the directory cannot be read, or was re-created.
        """
        self._recognise(source)
        path, kept = source_path(self._root, source), self[source]
        if self._disk.status(os.path.join(path, "ofs", f"{self._reader}.ofs")) is not None:
            there = read_offset(path, self._reader, disk=self._disk)
            if there == kept and (kept is None or kept <= Tail(Directory(path, self._disk)).end_offset()):
                return
        with Offset(path, self._reader, disk=self._disk) as mirror:
            due = Journal(path, disk=self._disk).first_offset if kept is None else kept
            if due < mirror.value:  # the file was removed, or replaced by an older copy
                mirror.reset(due)
            elif kept is not None:
                mirror.commit(kept)

    def commit(self, offsets: dict[Source, int]) -> None:
        """Commit offsets durably: first the messages below them, then the file, then the mirrors.

        Raises:
            SejError: a directory ends before its offset or was re-created, or a mirror is in use.
        """
        changed = {source: offset for source, offset in offsets.items() if offset != self[source]}
        if not changed:
            return
        self._lock.check()
        with ExitStack() as stack:
            each: Any = map
            if len(changed) > _ALONE:  # concurrently: the disk gets their syncs together
                from concurrent.futures import ThreadPoolExecutor  # too slow to import for a short command

                each = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="hub-commit")).map
            list(each(self._sync, changed, changed.values()))
            self._replace(changed)
            list(each(self.register, changed))

    def _replace(self, changed: dict[Source, int]) -> None:
        merged = self._offsets | {source.name: offset for source, offset in changed.items()}
        journals = {name: self._journals[name] for name in merged if name in self._journals}
        content = {"format": _FORMAT, "offsets": merged, "journals": journals}
        _vector(self._folder, self._reader, self._disk).store(content)
        self._offsets = merged

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _recognise(self, source: Source) -> None:
        """Check that the directory is the journal of the offset; the first check stores its identity."""
        directory = Directory(source_path(self._root, source), self._disk)
        directory.require()
        found = journal_id(directory)
        if found is not None and source.name not in self._journals:
            self._journals[source.name] = found.hex()
        elif self._journals.get(source.name) != (found and found.hex()):
            raise SejError(
                "this directory was re-created since the merge committed its offset; read it with a merge of"
                " another name"
            )

    def _sync(self, source: Source, offset: int) -> None:
        self._recognise(source)
        sync_up_to(Directory(source_path(self._root, source), self._disk), offset)


class _Slot:
    """One directory: its cursor, the messages that were read ahead, and the check that it is still the same journal.

    Attributes:
        entries: the messages that were read ahead, after ``head``, as entries of the heap.
        head: the next message, which is in the heap; None: there is none.
        due: the offset after the messages that were read.
        committed: the committed offset; None: not read yet.
        left_at: the offset after the last returned message, if the directory was skipped.
        error: why it cannot be read.
        watch: wakes when messages are appended; None if nothing waits for it.
        silent_since: when it reached its end; None: it has messages.
        is_excused: it was silent for so long that no other slot waits for it.
    """

    def __init__(self, root: str, source: Source, offset: int | None, chunk_bytes: int, disk: Disk) -> None:
        self.source = source
        self.entries: Iterator[_Entry] = iter(())
        self.head: _Entry | None = None
        self.committed: int | None = None
        self.left_at: int | None = None
        self.error: SejError | None = None
        self.watch: Watch | None = None
        self.silent_since: float | None = None
        self.is_excused = False
        self.directory = Directory(source_path(root, source), disk)
        self._incarnation = Incarnation.look(self.directory)
        self.cursor = Cursor(self.directory, offset, chunk_bytes=chunk_bytes)
        self._limit = _FIRST_BATCH
        self.due = self.cursor.due

    @property
    def next(self) -> int:
        """The offset of the next message that the heap returns."""
        if self.left_at is not None:
            return self.left_at
        return self.due if self.head is None else self.head[2]

    def read(self, share_bytes: int, *, judge: bool) -> bool:
        """Read the next messages, of about so much memory; return False at the end of the journal.

        Args:
            share_bytes: about how much memory they may take; a single message may take more.
            judge: at the end, check that a torn tail hides no messages.

        Raises:
            SejError: the directory cannot be read, or was re-created.
            OSError: the disk failed.
        """
        try:
            batch = self.cursor.read(self._limit)
            if not batch and judge and self.cursor.judge():
                batch = self.cursor.read(self._limit)
        except JournalNotFoundError:
            if not self._incarnation.is_still(self.directory):
                raise SejError(_RECREATED) from None
            raise
        if not self._incarnation.is_still(self.directory):
            raise SejError(_RECREATED)
        self.due = self.cursor.due
        client, journal_dir = self.source
        self.entries = ((one.timestamp, client, one.offset, journal_dir, self, one) for one in batch)
        self.head = next(self.entries, None)
        if batch:
            seen = batch[:: max(len(batch) // _SAMPLES, 1)]
            each = _OBJECT_BYTES + sum(len(one.key) + len(one.value) for one in seen) // len(seen)
            self._limit = min(max(share_bytes // each, 1), _MAX_BATCH, 4 * self._limit)
        return bool(batch)

    def close(self) -> None:
        """Close everything; a second call does nothing."""
        self.entries, self.head = iter(()), None
        self.silent_since, self.is_excused = None, False
        self.cursor.close()
        if self.watch is not None:
            self.watch.close()
            self.watch = None


_Entry = tuple[int, str, int, str, _Slot, Message]
"""An entry of the heap: the order, then the slot and its message. No two entries are equal in their order."""


class Merge(Closing):
    """Reads all client directories of a hub as one stream, and commits how far it has read.

    Use it from one thread. After :meth:`close` every call raises :class:`~sej.ClosedError`.

    Attributes:
        root: the hub's root.
        reader: the name under which the offsets are kept.
        skipped: the directories that were skipped, with their errors.
        timeout: seconds to wait for a message; None follows without a limit.

    Example:
        >>> import tempfile, hub, sej
        >>> with hub.Store(tempfile.mkdtemp()) as store:
        ...     _ = store.put("a", "x", [sej.Message(0, 1, 0, b"", b"first"), sej.Message(1, 3, 0, b"", b"third")])
        ...     _ = store.put("b", "x", [sej.Message(0, 2, 0, b"", b"second")])
        >>> with Merge(store.root, "reader") as m:
        ...     [(source.client, message.value) for source, message in m]
        ...     m.commit()
        [('a', b'first'), ('b', b'second'), ('a', b'third')]
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        reader: str,
        timeout: Seconds | None = 0.0,
        *,
        lateness_s: Seconds = 1.0,
        on_error: Literal["raise", "skip"] = "raise",
        max_open: int = 256,
        memory_bytes: int = 1 << 26,
        clock: Callable[[], float] = time.monotonic,
        disk: Disk = OS,
    ) -> None:
        """Open a hub's root for reading, at the reader's kept offsets.

        Args:
            root: the hub's root, marked or not.
            reader: letters, digits, ``_``, ``-`` and ``.`` (not first); one process at a time.
            timeout: seconds without a message after which iterating ends; 0 reads the existing messages, None follows
                without a limit.
            lateness_s: seconds that a silent directory may delay the others, when following.
            on_error: ``"skip"`` skips a directory that is damaged or gone, and stores the error in :attr:`skipped`. An
                error of the system (too few descriptors, no permission) is always raised.
            max_open: segments that are open at one time; fewer if the limit of open files is lower.
            memory_bytes: about how much memory waiting messages may take.
            clock: a clock in seconds that never goes back.
            disk: the disk.

        Raises:
            JournalNotFoundError: the root does not exist.
            NotAJournalError: the root is a file or a SEJ directory.
            LockedError: another merge has this reader name.
        """
        timeout, lateness_s = seconds("timeout", timeout), seconds("lateness_s", lateness_s)
        check_name(reader, "a reader's name")
        require(root=root, timeout=timeout, lateness_s=lateness_s, max_open=max_open, memory_bytes=memory_bytes)
        require(disk=disk)
        require(on_error=(on_error, one_of(("raise", "skip"))))
        CALLABLE("clock", clock)
        self.root = absolute_path(root)
        self.reader = reader
        self.timeout = timeout
        self.skipped: dict[Source, SejError] = {}
        self._lateness_s = lateness_s
        self._on_error = on_error
        self._max_open = min(max_open, spare_files())
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._disk = disk
        require_root(self.root, disk=disk)
        self._vector = _Vector(self.root, reader, disk)
        self._heap: list[_Entry] = []  # the next message of each slot that has one
        self._slots: dict[Source, _Slot] = {}
        self._open: OrderedDict[_Slot, None] = OrderedDict()  # with an open segment, the least recently used first
        self._broken: list[_Slot] = []
        self._root_watch: Watch | None = None
        self._closed = False

    # --- reading

    def __iter__(self) -> Iterator[tuple[Source, Message]]:
        """Yield source and message, in order, until the timeout passes. A second iteration continues there.

        Raises:
            SourceError: a directory cannot be read; after :meth:`skip` of its source, iterate again.
        """
        while self._find_next(self.timeout):
            yield from self._merged()

    def read(self, max_messages: int = 1024, timeout: Seconds | None = -1.0) -> list[tuple[Source, Message]]:
        """Read a batch; returns as soon as there is one message.

        Args:
            max_messages: the most messages to return.
            timeout: seconds to wait for the first message, None: without a limit; default: the merge's own.

        Returns:
            The messages with their sources; an empty list after the timeout.

        Raises:
            SourceError: a directory cannot be read.
        """
        timeout = seconds("timeout", timeout)
        if max_messages < 1:
            raise ValueError(f"max_messages must be at least 1, got {max_messages}")
        found = self._find_next(self.timeout if timeout == -1.0 else timeout)
        return list(islice(self._merged(), max_messages)) if found else []

    @property
    def sources(self) -> list[Source]:
        """The directories that the merge reads, sorted."""
        return sorted(source for source in self._slots if source not in self.skipped)

    def skip(self, source: Source) -> None:
        """Skip a directory from now on; a commit keeps its offset after the last returned message.

        Raises:
            KeyError: the merge does not read this source.
        """
        slot = self._slots[source]
        self.skipped[source] = slot.error or SourceError("skipped by the caller", source=source)
        if slot in self._broken:
            self._broken.remove(slot)
        self._drop(slot)

    # --- commits

    def commit(self) -> None:
        """Commit the offsets after all messages that were returned, durably.

        If the offset of a skipped directory cannot be written either, its messages are returned again next time.
        """
        self._require_open()
        places = [(slot, slot.next) for slot in self._slots.values()]  # another thread may read on
        changed = [(slot, offset) for slot, offset in places if offset != slot.committed]
        self._vector.commit({slot.source: offset for slot, offset in changed if slot.left_at is None})
        for slot, offset in changed:
            if slot.left_at is not None:
                with suppress(SejError, OSError):
                    self._vector.commit({slot.source: offset})
            slot.committed = offset

    def offsets(self) -> dict[Source, int]:
        """Return the next offset of every directory, after all messages that were returned."""
        return {source: slot.next for source, slot in self._slots.items() if source not in self.skipped}

    def close(self) -> None:
        """Close everything and release the reader's lock; uncommitted messages are returned again next time."""
        if self._closed:
            return
        self._closed = True
        self._heap.clear()
        for slot in self._slots.values():
            slot.close()
        if self._root_watch is not None:
            self._root_watch.close()
        self._vector.close()

    def __repr__(self) -> str:
        """Show root and reader."""
        return f"<hub.Merge {self.root!r} {self.reader!r}>"

    # --- the loop

    def _find_next(self, timeout: float | None) -> bool:
        """Make sure that the first message of the heap is the next one; return False after the timeout."""
        self._require_open()
        if timeout != 0.0:
            self._follow(timeout)
        elif not self._heap:
            self._discover()
            for slot in self._ended():
                self._read(slot, judge=True)
        self._raise_broken()
        return bool(self._heap)

    def _merged(self) -> Iterator[tuple[Source, Message]]:
        """Yield messages until a slot has no more: its next one may be the first. May be left after any message."""
        heap = self._heap
        while heap:
            _, _, _, _, slot, message = heap[0]
            slot.head = following = next(slot.entries, None)
            if following is not None:
                heapreplace(heap, following)
                yield slot.source, message
                continue
            heappop(heap)
            found = self._read(slot)
            yield slot.source, message
            if not found:
                return

    def _follow(self, timeout: float | None) -> None:
        """Wait for messages, and for directories that may still get older ones."""
        if self._root_watch is None:
            self._root_watch = Watch(self.root)
            self._discover()
        start = self._clock()
        while True:
            now, oldest = self._clock(), float("inf")
            for slot in self._ended():
                assert slot.silent_since is not None
                slot.is_excused = slot.is_excused or now - slot.silent_since >= self._lateness_s
                if not slot.is_excused:
                    oldest = min(oldest, slot.silent_since)
            if self._heap and oldest == float("inf"):
                return
            self._raise_broken()
            # These slots were read before their watches were set, or at the same time: read them once more.
            if self._watch_ended():
                continue
            left = None if timeout is None else start + timeout - now
            if self._heap:
                left = oldest + self._lateness_s - now
            elif left is not None and left <= 0:
                return
            self._wait(left)

    def _wait(self, timeout: float | None) -> None:
        assert self._root_watch is not None
        by_watch = {slot.watch: slot for slot in self._ended() if slot.watch is not None}
        watches = [self._root_watch, *by_watch]
        changed = wait_any(watches, None if timeout is None else max(timeout, 0.0))
        for watch in changed:
            if watch is self._root_watch:
                self._discover()
            else:
                self._read(by_watch[watch], judge=len(changed) == len(watches))

    def _ended(self) -> list[_Slot]:
        """Return the slots that have no message."""
        return [slot for slot in self._slots.values() if slot.silent_since is not None]

    def _watch_ended(self) -> bool:
        """Watch the directories that wait for messages; return whether one of them got some in the meantime."""
        found = False
        for slot in self._ended():
            if slot.watch is None:
                slot.watch = Watch(slot.directory.jnl)
                found = self._read(slot) or found
        return found

    # --- directories

    def _discover(self) -> None:
        """Add directories that are new."""
        fresh = [s for s in find_sources(self.root, disk=self._disk) if s not in self._slots]
        share = self._memory_bytes // (_CHUNKS * max(len(self._slots) + len(fresh), 1))
        chunk_bytes = max(min(share, CHUNK_BYTES), _LEAST_CHUNK_BYTES)
        added = [_Slot(self.root, source, self._vector[source], chunk_bytes, self._disk) for source in fresh]
        self._slots.update(zip(fresh, added, strict=True))
        for slot in added:
            try:
                self._vector.register(slot.source)
            except (SejError, OSError) as error:
                self._fail(slot, error)
            else:
                self._read(slot)
            slot.committed = slot.next

    def _read(self, slot: _Slot, *, judge: bool = False) -> bool:
        """Read a slot's next batch; return whether there was one."""
        try:
            found = slot.read(self._memory_bytes // len(self._slots), judge=judge)
        except (SejError, OSError) as error:
            self._fail(slot, error)
            return False
        self._open[slot] = None
        self._open.move_to_end(slot)
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)[0].cursor.park()
        if slot.head is not None:
            heappush(self._heap, slot.head)
            slot.silent_since, slot.is_excused = None, False
        elif slot.silent_since is None:
            slot.silent_since = self._clock()
        return found

    def _fail(self, slot: _Slot, error: SejError | OSError) -> None:
        reason = error if isinstance(error, SejError) else SejError(error.strerror or str(error), path=error.filename)
        failure = SourceError(
            f"{slot.source}: {reason.reason}; {_SCARCE if is_scarce(error) else _OTHERS}",
            source=slot.source,
            path=reason.path or slot.directory.path,
            offset=reason.offset,
        )
        failure.__cause__ = error
        slot.error = failure
        if self._on_error == "skip" and isinstance(error, _OF_THE_DIRECTORY):
            self.skipped[slot.source] = failure
        else:
            self._broken.append(slot)
        self._drop(slot)

    def _drop(self, slot: _Slot) -> None:
        slot.left_at = slot.next
        slot.close()
        self._heap[:] = [entry for entry in self._heap if entry[-2] is not slot]  # which an iterator has, too
        heapify(self._heap)
        self._open.pop(slot, None)

    def _raise_broken(self) -> None:
        if self._broken:
            error = self._broken[0].error
            assert error is not None
            raise error

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the merge is closed", path=self.root)
