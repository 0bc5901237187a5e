"""The last segment of a journal: its end, which an opening finds, and what a writer does with it.

**Opening** finds the last whole message, and cuts a torn tail. What it knows about the parts of the segment::

    0             kept position        end of the index        position              size of the file
    |   durable   |           maybe not durable                |                            |
    |           covered by the index   |   walked              |   torn tail: kept and cut  |

The cost is that of the part that is walked, plus a sync of at most :data:`_SYNC_BYTES`. The caller holds the writer's
lock.

Crash states: a torn tail is first copied to ``kept/`` and then cut, so a crash in between may leave two copies. If the
index has fewer blocks than the segment, more is walked. If the kept position is old or missing, more is synced.

**While it is written** the caller holds the writer's mutex, except for :meth:`LastSegment.sync`, which waits for the
disk while the writer continues. Before :meth:`LastSegment.keep`, with the mutex again, the caller checks that it is
still the last segment.

**The blocks** are collected while the segment is written, and added to the index after their bytes are synced. A block
has at least 256 KiB, unless it is the last one of its segment or of its writer. The bytes of the current block are
still in the writer's buffer, so its checksum costs no read::

    segment    | block | block | block | block | current block |
    its entry  |  in the file  |   unindexed   | in the buffer |

The invariant: every entry in the index file describes synced bytes.
"""

from __future__ import annotations

import errno
import time
from itertools import pairwise
from typing import Final

from sej.codec import Buffer, measure
from sej.codec.format import NO_TIMESTAMP, OFFSET
from sej.errors import CorruptionError, LockLostError, NetworkFileSystemError, NotAJournalError, SejError
from sej.journal.directory import ID_SIZE, Directory, Segment, is_still, journal_id
from sej.journal.index import BLOCK_BYTES, Block, IndexFile, read_blocks
from sej.journal.recovery import Recovery, find_damage, good_end, keep
from sej.journal.writer_lock import WriterLock
from sej.system.checksum import crc32c
from sej.system.disk import File, network_file_system
from sej.system.durable import Kept, KeptPosition, renew
from sej.system.group_commit import is_failure
from sej.system.logs import WARNING, record

_OURS: Final = frozenset({"jnl.lck", "ofs", "kept", "tmp", "idx", "gaps", "txn", "dead", "id", "lost+found"})
"""A directory without jnl/ can become a journal if it holds nothing but these names."""
_NEWEST: Final = 8
"""After a trace of the original, an opening examines the ends of this many segments. `sej verify` examines them all."""
_SYNC_BYTES: Final = 1 << 20
"""Up to this many bytes are synced while a writer opens. More is synced later, so that opening does not wait for it."""


def prepare(directory: Directory, *, allow_network_fs: bool) -> bool:
    """Create the directories of a journal if they are missing, and nothing else. Return whether it has an ``id``.

    Raises:
        NotAJournalError: the path is a file, or a directory that holds something else, or its ``id`` is not a
            journal's.
        NetworkFileSystemError: the path is on a file system that is not known to be local.
    """
    disk = directory.disk
    there = disk.status(directory.jnl)
    if is_new := there is None:
        there = disk.status(directory.path)
        if there is not None and not there.is_dir:
            raise NotAJournalError(
                "this is a file; expected a SEJ directory, or a path that does not exist yet", path=directory.path
            )
    if not allow_network_fs:
        kind = network_file_system(directory.jnl, there)
        if kind is not None:
            raise NetworkFileSystemError(
                f"the file system {kind} is not known as a local one, so its locks and syncs cannot be trusted: use a"
                f" local disk, or accept the risk with allow_network_fs=True or SEJ_LOCAL_FS={kind}",
                path=directory.path,
            )
    if is_new and there is not None:
        _refuse_foreign(directory)
    if is_new:
        disk.mkdir(directory.prefix + "ofs", parents=True)
        disk.mkdir(directory.jnl)  # the last one: if it exists, both do
    return there is not None and _has_id(directory)


def _refuse_foreign(directory: Directory) -> None:
    """Raise NotAJournalError if a directory without ``jnl/`` holds files of another program."""
    names = directory.disk.list(directory.path)
    foreign = [name for name in names if name not in _OURS]
    if foreign and "jnl" not in names:  # which another process may have created meanwhile
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise NotAJournalError(
            f"this directory is not a journal: it holds {foreign[0]!r}{more} and has no jnl/; pass a new"
            " or an empty directory",
            path=directory.path,
        )


def _has_id(directory: Directory) -> bool:
    """Return whether there is an ``id``, of the right size. Its readers compare its checksum."""
    path = directory.prefix + "id"
    found = directory.disk.status(path)
    if found is not None and (found.is_dir or found.size != ID_SIZE):
        what = "a directory" if found.is_dir else f"a file of {found.size} bytes"
        raise NotAJournalError(
            f"expected a journal's id, a file of {ID_SIZE} bytes, but this is {what}: if the journal is yours,"
            " move this path away, and the next writer creates an id",
            path=path,
        )
    return found is not None


class LastSegment:
    """One segment, from the moment when it becomes the last one until the next one does, and its index.

    Attributes:
        segment: the path and the first offset.
        file: open for appending, with the segment's lock.
        end: where it ended when it was opened or started, and the offset of the next message there.
        synced: the bytes before this position, and the messages below this offset, are on the medium.
        in_doubt: unsynced bytes before this position were written before the file was opened (sej.system.durable).
        recovery: the torn tail that was cut, or None.
        unindexed: the full blocks that the index lacks.
    """

    recovery: Recovery | None = None
    _indexed = 0
    _newest = NO_TIMESTAMP
    _partial: Block | None = None
    """The block of the messages after the last full block, if there are any."""
    _partial_known = False
    """Whether the index has that block too."""

    def __init__(
        self, directory: Directory, lock: WriterLock, kept: KeptPosition, segment: Segment, file: File
    ) -> None:
        """Begin with an empty segment. This object closes the file."""
        self._disk = directory.disk
        self._lock = lock
        self._kept = kept
        self._index = IndexFile(directory, segment)
        self.segment = segment
        self.file = file
        self.end = self.synced = self._block_start = Kept(0, segment.first_offset)
        self.in_doubt = 0
        self.unindexed: list[Block] = []

    def load(self, size: int) -> Kept:
        """Continue after the good messages of a segment of this size; return where they end."""
        self._indexed, index = self._index.load_end(self.file, to_write=True)
        self._partial = index.open_block(size)
        self._partial_known = self._partial is not None
        self._indexed -= self._partial_known
        position, offset = index.position, index.due
        for block in read_blocks(self.file, position, offset) if size > position else ():
            position, offset = block.end, block.next_offset
            if block.end - block.position >= BLOCK_BYTES:
                self.unindexed.append(index.add(block))
            else:
                self._partial = block
        self.end = self._block_start = Kept(position, offset)
        self._newest = index.newest_timestamp
        return self.end

    def end_block(self, buffer: Buffer) -> None:
        """Make a block of the messages in the buffer, and clear it. They are all written.

        If an earlier writer left a partial block, it is extended by them.
        """
        part, first, last = self._partial, buffer.first_timestamp, buffer.last_timestamp
        if part is None:
            if not len(buffer):
                return
            start, offset = self._block_start
            part = Block(start, start, offset, 0, 0, first, last, NO_TIMESTAMP)
        elif not len(buffer):
            last = part.last_timestamp
        self._newest = max(self._newest, part.newest_timestamp, buffer.newest_timestamp)
        messages, crc = buffer.offset - part.first_offset, crc32c(buffer.block(), part.crc32c)
        times = part.first_timestamp, last, self._newest
        self.unindexed.append(Block(part.position, buffer.position, part.first_offset, messages, crc, *times))
        self._partial = None
        self._block_start = Kept(buffer.position, buffer.offset)
        buffer.clear()

    def write_index(self) -> None:
        """Write the entries whose bytes are synced.

        A failure is only logged, because an index can be rebuilt. The entries are not tried again.
        """
        ready = [block for block in self.unindexed if block.end <= self.synced.position]
        if not ready:
            return
        count = len(ready)
        try:
            self._index.write(ready, self._indexed)
        except OSError as error:
            if not is_failure(error):
                raise
            if not isinstance(error, FileNotFoundError):  # else the directory was moved or removed
                record(__name__, WARNING, "the index %s could not be written: %s", self._index.path, error)
            self.unindexed = self.unindexed[count:]
            return
        # No call between these: a signal handler sees both old values or both new ones.
        self._indexed, self.unindexed = self._indexed + count, self.unindexed[count:]

    def finish_index(self, buffer: Buffer) -> None:
        """Add the last messages to the index too, when the writer closes."""
        if len(buffer) or (self._partial is not None and not self._partial_known):
            self.end_block(buffer)
            self.write_index()

    def close_index(self) -> None:
        """Close the index file, if it is open."""
        self._index.close()

    def write(self, view: memoryview, position: int) -> None:
        """Append whole messages at the end of the segment.

        After a trace of the original, each message is written between two checks, which :mod:`sej.journal.writer_lock`
        explains.

        Raises:
            LockLostError: a check failed. The message before the failed check may be in the segment, unacknowledged.
        """
        if self._lock.original is None:
            self.file.write(view)
            return
        at = 0
        self._require_end(position)
        while at < len(view):
            end = measure(view, at, len(view), int.from_bytes(view[at : at + OFFSET.size], "big"), 1).position
            self.file.write(view[at:end])
            at = end
            self._require_end(position + at)

    def _require_end(self, position: int) -> None:
        self._lock.check()
        size = self.file.size()
        if size != position:
            raise LockLostError(
                f"the segment has {size} bytes, but this writer left it at {position}: another process is writing it"
                " too; close that process, then open this writer again",
                path=self.file.path,
                position=position,
            )

    def require_name(self) -> None:
        """Check that the segment is still in its directory.

        Raises:
            OSError: ESTALE: it was removed, and what was appended after that is lost.
        """
        if not self.file.extent()[1]:
            raise OSError(
                errno.ESTALE,
                "this segment was removed while a writer appended to it, and its messages with it: find the program"
                " that removes it, then open a new writer",
                self.file.path,
            )

    def cut_partial_write(self, view: memoryview, position: int) -> None:
        """Cut a partial message after a failed write. Whole messages stay, because a reader may have seen them.

        Args:
            view: the bytes of the failed write.
            position: the end of the segment before the write.
        """
        try:
            there = min(max(self.file.size() - position, 0), len(view))
            first = int.from_bytes(view[: OFFSET.size], "big")
            good = measure(view, 0, there, first, there).position if there else 0
            if self._lock.is_current():
                self.file.truncate(position + good)
        except (OSError, SejError):
            return  # the next opening cuts the torn tail

    def sync(self) -> None:
        """Sync the segment, including the bytes in doubt.

        Raises:
            OSError: the system refused; nothing may be written or synced after that.
        """
        if self.in_doubt > self.synced.position:
            renew(self._disk, self.file, self.synced.position, self.in_doubt)
        self.file.sync()

    def keep(self, position: int, offset: int) -> None:
        """Store how much was synced, in this object and for the process that opens the journal next.

        Args:
            position: every byte before this position is on the medium.
            offset: the offset of the message at the position.
        """
        if position > self.synced.position:
            self.synced = Kept(position, offset)
            self._kept.store(self.file, self.segment.first_offset, position, offset)

    def close(self) -> None:
        """Close the files. A second call does nothing, or finishes an interrupted one."""
        self.close_index()
        self.file.close()


def find_end(
    directory: Directory,
    kept: KeptPosition,
    lock: WriterLock,
    first_offset: int = 0,
    *,
    has_id: bool = False,
    before: LastSegment | None = None,
) -> tuple[LastSegment, bool]:
    """Take the lock, finish what an earlier process left unfinished, and open the end.

    If an original removes the lock file in the meantime, start again. If this raises, the lock may be held, and the
    caller releases it.

    Args:
        directory: the journal.
        kept: its kept position.
        lock: its lock.
        first_offset: where a journal without segments starts.
        has_id: the caller has seen the journal's ``id``.
        before: as for :func:`open_end`.

    Returns:
        The last segment, and whether ``txn/`` has batches that the writer completes before its first append.
    """
    recovery = None
    while True:
        lock.hold()
        has_id = has_id or _has_id(directory)
        pending = directory.names("txn")
        if "repair" in pending:
            from sej.journal.repair import finish_repair  # here, because it is rarely needed

            finish_repair(directory)
        segments = directory.segments()
        if lock.original is not None:
            refuse_surplus(directory)
            segments = directory.segments()  # an original may just have added one
        last = open_end(directory, kept, lock, first_offset=first_offset, before=before, segments=segments)
        last.recovery = recovery = last.recovery or recovery
        if not has_id:
            journal_id(directory, create=True)
        if lock.original is None or lock.is_current():
            return last, bool(pending) and any(name.endswith(".intent") for name in pending)
        lock.keep(None)
        lock.renew()


def open_end(
    directory: Directory,
    kept: KeptPosition,
    lock: WriterLock,
    *,
    first_offset: int = 0,
    before: LastSegment | None = None,
    segments: list[Segment] | None = None,
) -> LastSegment:
    """Open the last segment for appending. A torn tail is copied to ``kept/`` and cut.

    Up to :data:`_SYNC_BYTES` that may not be on the medium are renewed, see :mod:`sej.system.durable`. If there are
    more, the caller renews them before its first sync.

    Args:
        directory: the journal.
        kept: its kept position.
        lock: its lock, which the caller has taken.
        first_offset: where a journal without segments starts.
        before: the last segment that the caller has open. If it is still the last one, its file is used, because a sync
            through it reports every failed write since it was opened.
        segments: the segments of the journal; None: they are listed.

    Raises:
        LockedError: an exclusive writer is at work whose lock file was removed.
        CorruptionError: the segment is damaged, and the damage is not a torn tail; nothing was cut.
    """
    segments = directory.segments() if segments is None else segments
    if not segments:
        return start_segment(directory, kept, first_offset, lock)
    segment = segments[-1]
    if before is not None and not is_still(directory.disk, segment, before.file):
        before = None
    file = directory.disk.open(segment.path, "append") if before is None else before.file
    try:
        lock.lock_segment(file)
        status = file.status()
        known = kept.load(file, segment.first_offset, alone=lock.keeps, status=status)
        if not known.position:
            directory.sync_names()
        last = LastSegment(directory, lock, kept, segment, file)
        end = last.load(status.size) if status.size else last.end
        if status.size > end.position:
            last.recovery = _cut(directory, kept, segment, file, end)
        synced = min(end, known)
        if kept.lost is not None:
            kept.store(file, segment.first_offset, *synced)
            _warn_of_loss(segment, kept.lost, end)
        if end.position - synced.position <= _SYNC_BYTES:
            if end.position > synced.position:  # earlier writers may have left these bytes to the kernel
                if before is None:
                    renew(directory.disk, file, synced.position, end.position)
                else:
                    file.sync()
                kept.store(file, segment.first_offset, *end)
            synced = end
        if last.recovery is not None:
            file.sync()  # the cut must be durable too
    except BaseException:
        if before is None:
            file.unlock()
            file.close()
        raise
    last.synced, last.in_doubt = synced, end.position if before is None else before.in_doubt
    return last


def _cut(directory: Directory, kept: KeptPosition, segment: Segment, file: File, end: Kept) -> Recovery | None:
    """Copy what follows the good messages to ``kept/`` and cut it, if it is a torn tail."""
    damage = find_damage(file, *end)
    if damage is None:
        return None
    if damage.follower is not None:
        raise damage.error(segment.path)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{segment.name}.{end.position:012x}.torn.{stamp}"
    copy = keep(directory, file, end.position, damage.size, name)
    gone = kept.lower(file, segment.first_offset, *end)  # if synced bytes were changed
    file.truncate(end.position)
    record(__name__, WARNING, "%s: cut %d torn bytes at %d, kept in %s", segment.path, damage.size, end.position, copy)
    if gone is not None:
        _warn_of_loss(segment, gone, end)
    return Recovery(segment.path, end.position, end.offset, damage.size, copy, damage.reason)


def _warn_of_loss(segment: Segment, gone: Kept, end: Kept) -> None:
    text = (
        "%s: %d bytes of it were on the disk, but its good messages end at %d: messages %d to %d are gone, and new"
        " ones get their offsets"
    )
    record(__name__, WARNING, text, segment.path, gone.position, end.position, end.offset, gone.offset - 1)


def refuse_surplus(directory: Directory) -> None:
    """Refuse a journal in which an original appended to a segment that was no longer the last one.

    Raises:
        CorruptionError: one of the newest segments has offsets of its successor; nothing was changed.
    """
    from sej.journal.retention import readers_lock

    with readers_lock(directory):  # retention waits
        for segment, following in pairwise(directory.segments()[-_NEWEST:]):
            with directory.disk.open(segment.path, "read") as file:
                position, due = good_end(file, *IndexFile(directory, segment).end(file))
            if due > following.first_offset:
                raise CorruptionError(
                    f"two writers appended at the same time: this segment has messages up to {due - 1}, and the next"
                    f" one starts with {following.first_offset}; close both, then run `sej repair {directory.path}`",
                    path=segment.path,
                    position=position,
                    offset=due,
                )


def sweep(directory: Directory) -> None:
    """Remove the files in ``tmp/`` that a writer or a repair staged before it died, unless an intent names them.

    They do no harm, so only a writer that starts a segment looks for them.
    """
    import re  # here, because most writers start no segment

    for name in directory.names("tmp"):
        # A batch, a reader or a queue may have the name "repair".
        found = re.fullmatch(r"(.*)\.rows|(repair)\.[0-9a-f]{16}", name)
        intent = found and (found[2] or f"{found[1]}.intent")
        if intent and directory.disk.status(directory.at("txn", intent)) is None:
            directory.disk.unlink(directory.at("tmp", name))


def start_segment(directory: Directory, kept: KeptPosition, offset: int, lock: WriterLock) -> LastSegment:
    """Create the segment that starts at an offset, and lock it. The caller has synced the segment before it."""
    segment = directory.segment(offset)
    file = directory.disk.open(segment.path, "new")
    lock.lock_segment(file)
    return LastSegment(directory, lock, kept, segment, file)
