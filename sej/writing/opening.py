"""Opening the end of a journal for writing: find the last whole message, and cut a torn tail.

The last segment, and what an opening knows about its parts::

    0             kept position        end of the index        position              size of the file
    |   durable   |           maybe not durable                |                            |
    |           covered by the index   |   walked              |   torn tail: kept and cut  |

The cost is that of the part that is walked, plus a sync of at most :data:`_SYNC_BYTES`. The caller holds the writer's
lock.

Crash states: a torn tail is first copied to ``kept/`` and then cut, so a crash in between may leave two copies. If the
index has fewer blocks than the segment, more is walked. If the kept position is old or missing, more is synced.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Final, NamedTuple

from sej.errors import CorruptionError, NetworkFileSystemError, NotAJournalError
from sej.journal.directory import Directory, Segment, is_still
from sej.journal.identity import ID_SIZE, journal_id
from sej.journal.index import IndexFile
from sej.journal.recovery import Recovery, find_damage, good_end, keep
from sej.journal.writer_lock import WriterLock
from sej.system.disk import File, network_file_system
from sej.system.durable import Kept, KeptPosition, renew
from sej.writing.last_segment import Blocks, LastSegment

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


class JournalEnd(NamedTuple):
    """The end of a journal as it is on the disk, ready for appending.

    Attributes:
        last: the last segment, open for appending. It consists of whole messages.
        position: its size.
        offset: the offset of the next message.
        synced_offset: the messages below this offset are durable. The writer syncs the others.
        recovery: what was cut, or None.
        promised: whether ``txn/`` has batches that the writer completes before its first append.
    """

    last: LastSegment
    position: int
    offset: int
    synced_offset: int
    recovery: Recovery | None = None
    promised: bool = False


def find_end(
    directory: Directory,
    kept: KeptPosition,
    lock: WriterLock,
    first_offset: int = 0,
    *,
    has_id: bool = False,
    before: LastSegment | None = None,
) -> JournalEnd:
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
        end = open_end(directory, kept, lock, first_offset=first_offset, before=before, segments=segments)
        recovery = end.recovery or recovery
        if not has_id:
            journal_id(directory, create=True)
        if lock.original is None or lock.is_current():
            promised = bool(pending) and any(name.endswith(".intent") for name in pending)
            return end._replace(recovery=recovery, promised=promised)
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
) -> JournalEnd:
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
        blocks = Blocks(IndexFile(directory, segment), segment.first_offset)
        end, recovery = Kept(*blocks.load(file, status.size)), None
        if status.size > end.position:
            recovery = _cut(directory, kept, segment, file, end)
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
        if recovery is not None:
            file.sync()  # the cut must be durable too
    except BaseException:
        if before is None:
            file.unlock()
            file.close()
        raise
    in_doubt = end.position if before is None else before.in_doubt
    last = LastSegment(directory.disk, lock, kept, segment, file, blocks, synced.position, in_doubt)
    return JournalEnd(last, end.position, end.offset, synced.offset, recovery)


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
    _warn("%s: cut %d torn bytes at %d, kept in %s", segment.path, damage.size, end.position, copy)
    if gone is not None:
        _warn_of_loss(segment, gone, end)
    return Recovery(segment.path, end.position, end.offset, damage.size, copy, damage.reason)


def _warn_of_loss(segment: Segment, gone: Kept, end: Kept) -> None:
    text = (
        "%s: %d bytes of it were on the disk, but its good messages end at %d: messages %d to %d are gone, and new"
        " ones get their offsets"
    )
    _warn(text, segment.path, gone.position, end.position, end.offset, gone.offset - 1)


def _warn(text: str, *values: object) -> None:
    from sej.system.logs import WARNING, record  # here, because most openings find nothing

    record(__name__, WARNING, text, *values)


def refuse_surplus(directory: Directory) -> None:
    """Refuse a journal in which an original appended to a segment that was no longer the last one.

    Raises:
        CorruptionError: one of the newest segments has offsets of its successor; nothing was changed.
    """
    from sej.journal.retention import readers_lock

    with readers_lock(directory):  # retention waits
        for segment, following in pairwise(directory.segments()[-_NEWEST:]):
            with directory.disk.open(segment.path, "read") as file:
                _, index = IndexFile(directory, segment).load_end(file, segment.first_offset)
                position, due = good_end(file, index.position, index.due)
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


def start_segment(directory: Directory, kept: KeptPosition, offset: int, lock: WriterLock) -> JournalEnd:
    """Create the segment that starts at an offset, and lock it. The caller has synced the segment before it."""
    segment = directory.segment(offset)
    file = directory.disk.open(segment.path, "new")
    lock.lock_segment(file)
    last = LastSegment(directory.disk, lock, kept, segment, file, Blocks(IndexFile(directory, segment), offset))
    return JournalEnd(last, 0, offset, offset)
