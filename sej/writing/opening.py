"""Opening the end of a journal for writing: find it, judge it, cut a torn tail.

Everything here runs under the writer's lock. The cost is that of the unindexed tail of the last segment.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from sej.codec.format import NO_TIMESTAMP
from sej.errors import JournalNotFoundError, NetworkFileSystemError, NotAJournalError
from sej.journal.directory import Directory, Segment, is_still
from sej.journal.identity import ID_SIZES
from sej.journal.index import Block, IndexFile, read_blocks
from sej.journal.index_format import BLOCK_BYTES
from sej.journal.medium import durable_position
from sej.journal.recovery import Recovery, find_damage, keep
from sej.journal.writer_lock import lock_segment
from sej.system.disk import File, network_file_system
from sej.system.durable import Kept, KeptPosition, renew

__all__ = [
    "End",
    "open_end",
    "prepare",
    "start_segment",
    "sweep",
]

_OURS: Final = frozenset({"jnl.lck", "ofs", "kept", "tmp", "idx", "gaps", "txn", "dead", "id", "lost+found"})
"""What a directory without jnl/ may hold and still become a journal."""
_SYNC_BYTES: Final = 1 << 20
"""So much is synced while a writer opens; more in the background, so that opening does not wait for the disk."""


class End(NamedTuple):
    """The end of a journal, ready for appending.

    Attributes:
        segment: the last one.
        file: open for appending.
        position: its size; every byte of it is good.
        offset: what the next message gets.
        synced_position: the bytes before it are durable; more than a little left to sync is left to the writer.
        synced_offset: the messages below it are durable.
        newest_timestamp: the newest in its full blocks, ns.
        index_file: the sidecar.
        known: how many blocks the sidecar has before them.
        blocks: full blocks that it lacks.
        partial: the messages behind the last full block, or None.
        partial_known: whether the sidecar has the partial block, behind the known ones.
        recovery: what was cut, or None.
    """

    segment: Segment
    file: File
    position: int
    offset: int
    synced_position: int
    synced_offset: int
    newest_timestamp: int
    index_file: IndexFile
    known: int
    blocks: list[Block]
    partial: Block | None
    partial_known: bool
    recovery: Recovery | None


def prepare(directory: Directory, *, allow_network_fs: bool, create: bool = True) -> None:
    """Make the directories of a journal; nothing else is touched.

    Raises:
        NotAJournalError: the path is a file, or a directory that holds something else, or an ``id`` that is not ours.
        JournalNotFoundError: it is missing and create is False.
        NetworkFileSystemError: locks and syncs cannot be trusted there.
    """
    disk = directory.disk
    there = disk.status(directory.path)
    if there is not None and not there.is_dir:
        raise NotAJournalError("this is a file; expected a directory", path=directory.path)
    if there is None and not create:
        raise JournalNotFoundError("there is no journal here", path=directory.path)
    if not allow_network_fs:
        kind = network_file_system(directory.path)
        if kind is not None:
            raise NetworkFileSystemError(
                f"this is on {kind}: locks and syncs cannot be trusted there; use a local disk,"
                " or pass allow_network_fs=True and take the risk",
                path=directory.path,
            )
    if there is not None:
        _refuse_foreign(directory)
    for name in ("jnl", "ofs"):
        if disk.status(directory.at(name)) is None:
            disk.mkdir(directory.at(name))


def _refuse_foreign(directory: Directory) -> None:
    """Make sure that a directory is a journal or may become one: nothing of another program is touched."""
    disk = directory.disk
    if disk.status(directory.jnl) is None:
        foreign = [name for name in disk.list(directory.path) if name not in _OURS]
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise NotAJournalError(
                f"this directory holds {foreign[0]!r}{more} and has no jnl/: it is not a journal; give a new"
                " or an empty directory",
                path=directory.path,
            )
    found = disk.status(directory.at("id"))
    if found is not None and (found.is_dir or found.size not in ID_SIZES):
        what = "a directory" if found.is_dir else f"a file of {found.size} bytes"
        raise NotAJournalError(
            f"a journal's id is a file of {ID_SIZES[1]} bytes, and this is {what}: if the journal is yours, move it"
            " away, and the next writer makes another",
            path=directory.at("id"),
        )


def open_end(
    directory: Directory,
    kept: KeptPosition,
    *,
    first_offset: int = 0,
    alone: bool = False,
    known: File | None = None,
    published: Segment | None = None,
) -> End:
    """Open the last segment for appending; a torn tail is kept aside and cut.

    What is not known to be on the medium is renewed, see :mod:`sej.system.durable`, unless it is much: then the caller
    does so before its first sync.

    Args:
        directory: the journal, locked by the caller.
        kept: its kept position.
        first_offset: where a journal without segments starts.
        alone: keep the segment's own lock for as long as the file is open, see :func:`lock_segment`.
        known: the segment that the caller has open already, maybe the last one still: it is used again, because a sync
            through it reports what went wrong since it was opened.
        published: the last segment, if the caller has synced it whole and just given it its name.

    Raises:
        LockedError: an exclusive writer is at work whose lock file was removed.
        CorruptionError: there is damage that is no torn tail; nothing was cut.
    """
    segment, fresh = published, published is not None
    if segment is None:
        segments = directory.segments()
        segment, fresh = (segments[-1], False) if segments else (directory.segment(first_offset), True)
    if known is not None and is_still(directory.disk, segment, known):
        file = known
    else:
        file = directory.disk.open(segment.path, "append")
    unlock = file.unlocker()
    try:
        try:
            lock_segment(file)
        finally:
            if not alone:
                unlock()  # in C, and the first call here: no handler comes before it
        return _open_end(directory, kept, segment, file, durable=fresh, renewed=file is known)
    except BaseException:
        if file is not known:
            file.close()
        raise


def _open_end(
    directory: Directory, kept: KeptPosition, segment: Segment, file: File, *, durable: bool, renewed: bool
) -> End:
    index_file = IndexFile(directory, segment)
    entries, index = index_file.load_end(file, segment.first_offset)
    fresh: list[Block] = []
    partial = index.open_block(file.status().size)
    partial_known = partial is not None
    entries -= partial_known
    position, due = index.position, index.due
    for block in read_blocks(file, position, due):
        position, due = block.end, block.next_offset
        if block.end - block.position >= BLOCK_BYTES:
            fresh.append(index.add(block))
        else:
            partial = block
    damage = find_damage(file, position, due)
    recovery = None
    if damage is not None:
        if damage.follower is not None:
            raise damage.error(segment.path)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        copy = keep(directory, file, position, damage.size, f"{segment.name}.{position:012x}.torn.{stamp}")
        file.truncate(position)
        recovery = Recovery(segment.path, position, due, damage.size, copy, damage.reason)
    end = Kept(position, due)
    synced = end if durable else min(end, durable_position(directory, kept, segment, file))
    if position - synced.position <= _SYNC_BYTES:
        if position > synced.position:  # what an earlier writer left to the kernel is durable from here on
            if renewed:
                file.sync()
            else:
                renew(directory.disk, file, synced.position, position)
            kept.store(file, segment.first_offset, position, due)
        synced = end
    if recovery is not None:
        file.sync()  # and so is the cut
    newest, there = index.newest_timestamp, partial_known
    return End(segment, file, position, due, *synced, newest, index_file, entries, fresh, partial, there, recovery)


def sweep(directory: Directory) -> None:
    """Remove what a writer that died had staged and not promised; what an intent names stays."""
    disk = directory.disk
    if disk.status(directory.at("tmp")) is None:
        return
    for name in disk.list(directory.at("tmp")):
        stem, _, end = name.rpartition(".")
        staged = end == "publish" or (end == "rows" and disk.status(directory.at("txn", f"{stem}.intent")) is None)
        if staged or (stem == "repair" and disk.status(directory.at("txn", "repair")) is None):
            disk.unlink(directory.at("tmp", name))


def start_segment(directory: Directory, offset: int, *, alone: bool = False) -> End:
    """Make the next segment; its predecessor was synced by the caller."""
    segment = directory.segment(offset)
    file = directory.disk.open(segment.path, "new")
    try:
        if alone:
            lock_segment(file)
        index_file = IndexFile(directory, segment)
        return End(segment, file, 0, offset, 0, offset, NO_TIMESTAMP, index_file, 0, [], None, False, None)
    except BaseException:
        file.close()  # its lock must not live as long as the traceback
        raise
