"""Removing segments by age and size, under a lock over ``ofs/``.

The lock (``ofs/.lock``) decides races with readers: it is held while a reader is created or moves backwards, so either
retention sees its kept offset, or the reader sees what is left. Segments are removed from the oldest on, so the
remaining ones are always the journal's end without a gap.

A segment is renamed to ``tmp/`` and deleted there. A reader of the original watches ``jnl/`` and ends if a name is
deleted there, or renamed into it, but not if one is renamed out of it. After a crash between the two steps, the
next retention deletes the file.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self

from sej.checks import COUNT, POSITIVE, SECONDS, optional, require
from sej.durations import Seconds, seconds
from sej.errors import InvalidNameError
from sej.journal.directory import Directory, Segment
from sej.journal.index import IndexFile
from sej.journal.reader_limits import KeptReader, ReaderLimits, kept_readers
from sej.system.disk import File, is_full, of_system, open_existing
from sej.system.logs import INFO, record

_REMOVED: Final = ".removed"


class _Limits(NamedTuple):
    max_age_s: float | None
    max_bytes: int | None
    keep_segments: int
    reader_max_age: float | None
    reader_max_lag_bytes: int | None


class Retention(_Limits):
    """What a journal keeps. A segment that exceeds any limit is removed.

    Attributes:
        max_age_s: seconds since a segment's last append.
        max_bytes: size of all segments together.
        keep_segments: at least this many of the newest are kept, whatever the limits; at least 1.
        reader_max_age: seconds without a commit after which a reader does not hold the segments that it needs any more.
        reader_max_lag_bytes: bytes of the segments after the one that a reader needs next, beyond which it holds none.
    """

    __slots__ = ()

    def __new__(
        cls,
        max_age_s: Seconds | None = None,
        max_bytes: int | None = None,
        keep_segments: int = 1,
        *,
        reader_max_age: Seconds | None = None,
        reader_max_lag_bytes: int | None = None,
    ) -> Self:
        """Set the limits; None: no limit.

        Raises:
            TypeError: a limit is not a number.
            ValueError: a limit is below 0, or keep_segments is below 1: the last segment is always kept.
        """
        max_age_s, reader_max_age = seconds("max_age_s", max_age_s), seconds("reader_max_age", reader_max_age)
        require(
            max_age_s=(max_age_s, optional(SECONDS)),
            max_bytes=(max_bytes, optional(COUNT)),
            keep_segments=(keep_segments, POSITIVE),
            reader_max_age=(reader_max_age, optional(SECONDS)),
            reader_max_lag_bytes=(reader_max_lag_bytes, optional(COUNT)),
        )
        return super().__new__(cls, max_age_s, max_bytes, keep_segments, reader_max_age, reader_max_lag_bytes)


def readers_lock(directory: Directory) -> AbstractContextManager[object]:
    """Hold a lock under which no other process or thread creates a reader, moves one backwards or removes a segment.

    The lock is taken when this returns, and released by the ``with`` block, see :meth:`sej.system.disk.File.closing`.
    """
    lock = _readers_lock(directory, wait=True)
    assert lock is not None
    return lock


def _readers_lock(directory: Directory, *, wait: bool) -> AbstractContextManager[object] | None:
    """Take the same lock; None if another process has it and wait is False.

    The lock file is created under a lock of ``id``, which stays the lock if the disk has no inode for another file:
    removing segments must be possible then.
    """
    disk, path = directory.disk, directory.at("ofs", ".lock")
    disk.mkdir(directory.at("ofs"))
    if disk.status(path) is None and (identity := open_existing(disk, directory.at("id"), "read")) is not None:
        full = False
        try:
            if not identity.lock(wait=wait):
                return None
            disk.open(path, "append").close()
        except OSError as error:
            full = is_full(error)
            if not full:
                raise
            return identity.closing()
        finally:
            if not full:
                identity.close()
    return _locked(disk.open(path, "append"), wait=wait)


def _locked(file: File, *, wait: bool) -> AbstractContextManager[object] | None:
    try:
        if file.lock(wait=wait):
            return file.closing()
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def clean(
    directory: Directory,
    policy: Retention,
    *,
    dry_run: bool = False,
    ignore_readers: Collection[str] = (),
    now_ns: int | None = None,
    wait: bool = True,
) -> list[str]:
    """Remove the oldest segments that the policy does not keep and no reader needs.

    Args:
        directory: the journal.
        policy: what it keeps.
        dry_run: only return what would be removed.
        ignore_readers: readers, by name, whose kept offsets do not count.
        now_ns: the current time for ages; None: the clock's.
        wait: False removes nothing if another process removes segments at this moment: for a writer, which must not
            wait.

    Returns:
        The paths that were removed, or with dry_run would be.

    Raises:
        InvalidNameError: a reader to ignore does not exist.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    going: list[Segment] = []
    lock = _readers_lock(directory, wait=wait)
    if lock is None:
        return []
    with lock:
        readers = directory.reader_names()
        for name in ignore_readers:
            if name not in readers:
                raise InvalidNameError(
                    f"ignore_readers must name existing readers, got {name!r}; this journal has"
                    f" {', '.join(map(repr, readers)) or 'none'}",
                    path=directory.at("ofs"),
                )
        kept = kept_readers(directory, ignore_readers)
        limits = ReaderLimits(directory, policy.reader_max_age, policy.reader_max_lag_bytes)
        segments = directory.segments()
        status = [directory.disk.status(segment.path) for segment in segments]
        left = sum(there.size for there in status if there is not None)
        for at, segment in enumerate(segments[: max(len(segments) - policy.keep_segments, 0)]):
            there = status[at]
            if there is None:
                continue
            old = policy.max_age_s is not None and now_ns - there.mtime_ns > policy.max_age_s * 1e9
            much = policy.max_bytes is not None and left > policy.max_bytes
            if not (old or much) or limits.hold(kept, at, segments, status, now_ns):
                break
            left -= there.size
            going.append(segment)
        if not dry_run:
            for name in directory.names("tmp"):
                if name.endswith(_REMOVED):
                    directory.disk.unlink(directory.at("tmp", name))
            stored = _stored(limits, kept)
            if going:
                directory.disk.sync_dir(directory.at("ofs"))  # a reader's kept offset must not go back after this
            for segment in going:
                _remove(directory, segment)
            if not stored:
                limits.store(kept)
    removed = [segment.path for segment in going]
    if removed and not dry_run:
        record(__name__, INFO, "%s: removed %d segments, up to %s", directory.path, len(removed), removed[-1])
    return removed


def _stored(limits: ReaderLimits, kept: list[KeptReader]) -> bool:
    """Store what was decided about readers; return False if the disk is full, which removing segments may end."""
    try:
        limits.store(kept)
    except OSError as error:
        if not is_full(error):
            raise
        return False
    return True


def _remove(directory: Directory, segment: Segment) -> None:
    """Remove a segment and its index."""
    disk = directory.disk
    away = directory.at("tmp", f"{segment.first_offset:016x}{_REMOVED}")
    try:
        disk.mkdir(directory.at("tmp"))
        disk.rename(segment.path, away)
    except OSError as error:
        if not of_system(error):
            raise
        disk.unlink(segment.path)  # it is gone, the disk is full, or jnl/ is on another file system than tmp/
    disk.unlink(away)
    disk.unlink(IndexFile(directory, segment).path)
