"""Removing segments by age and size, under a lock over ``ofs/``.

The lock (``ofs/.lock``) decides races with readers: it is held while a reader is created or moves backwards, so either
retention sees its kept offset, or the reader sees what is left. Segments are removed from the oldest on, so the
remaining ones are always the journal's end without a gap.

A segment is renamed to ``tmp/`` and deleted there. A reader of the original watches ``jnl/`` and ends if a name is
deleted there, or renamed into it, but not if one is renamed out of it. After a crash between the two steps, the
next retention deletes the file.

**How long a reader holds segments**: one that no program uses must not fill the disk.

Retention keeps a segment that a reader with a kept offset needs. With a limit for readers, it does so only while the
reader is within it::

    reader_max_age          the time since the reader's last commit, or since the last append to the segment that it
                            needs next, whichever is shorter: a reader that has read everything may rest
    reader_max_lag_bytes    the bytes in the segments after that one

What was decided is stored in ``ofs/.limits`` before a segment is removed: the limits, for those who warn before it
happens, and each reader that was passed, with its offset, so that its error can say why. While its offset stays the
same it holds nothing any more. A work queue is never passed: an item may be delayed for longer than any limit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Self

from sej.checks import Seconds, require, seconds
from sej.errors import BadOffsetFileError, CorruptionError, InvalidNameError, SejError
from sej.journal.directory import Directory, Segment, containing
from sej.journal.index import IndexFile
from sej.journal.offset_check import read_kept
from sej.system.disk import File, Status, is_full, of_system, open_existing
from sej.system.logs import INFO, record
from sej.system.sealed import SealedFile, whole

_REMOVED: Final = ".removed"
_WARN_AT: Final = 0.8
"""A reader is reported when it has used this much of a limit."""


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
        require(max_age_s=max_age_s, max_bytes=max_bytes, keep_segments=keep_segments, reader_max_age=reader_max_age)
        require(reader_max_lag_bytes=reader_max_lag_bytes)
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


class KeptReader(NamedTuple):
    """A reader with a kept offset.

    Attributes:
        name: its name.
        offset: the next message that it reads; 0 if it never committed or its file cannot be read.
        commit_ns: the time of its last commit.
        has_limits: whether the limits apply: it is not a work queue, and its file can be read.
    """

    name: str
    offset: int
    commit_ns: int
    has_limits: bool


def kept_readers(directory: Directory, ignore_readers: Collection[str] = ()) -> list[KeptReader]:
    """Return the readers of a journal, the slowest first."""
    found = []
    queues = directory.queue_names()
    for name in directory.reader_names():
        there = directory.disk.status(directory.at("ofs", f"{name}.ofs"))
        if there is None or name in ignore_readers:
            continue
        has_limits = name not in queues
        try:
            offset = read_kept(directory, name)
        except BadOffsetFileError:  # its reader's offset is unknown: it protects everything
            offset, has_limits = None, False
        found.append(KeptReader(name, offset or 0, there.mtime_ns, has_limits))
    return sorted(found, key=lambda reader: reader.offset)


class ReaderLimits:
    """The limits for the readers of one journal, and the readers that were passed. The caller has the readers' lock."""

    def __init__(self, directory: Directory, max_age_s: float | None = None, max_lag_bytes: int | None = None) -> None:
        """Read what is stored. If it is damaged, each reader is judged again."""
        self._directory = directory
        self._file = _file(directory)
        try:
            self._stored = self._file.load() or {}
        except CorruptionError:  # a writer that ends a segment must not fail for it
            self._stored = {}
        self._passed: dict[str, dict[str, Any]] = dict(self._stored.get("passed", {}))
        self._limits = {"reader_max_age": max_age_s, "reader_max_lag_bytes": max_lag_bytes}

    def hold(
        self, readers: list[KeptReader], segment: int, segments: list[Segment], status: list[Status | None], now_ns: int
    ) -> bool:
        """Return whether a reader needs a segment, and is within its limits; note the readers that are not."""
        for reader in readers:
            if reader.offset >= segments[segment + 1].first_offset:
                return False
            passed = self._passed.get(reader.name)
            if passed is not None and passed["offset"] == reader.offset:
                continue
            share, why = _used(self._limits, reader, segment, status, now_ns)
            if share <= 1 or not reader.has_limits:
                return True
            self._passed[reader.name] = {"offset": reader.offset, "rule": why, "at": now_ns // 10**9, "by": _program()}
        return False

    def store(self, readers: list[KeptReader]) -> None:
        """Store the limits, and those passed readers that exist and have not moved."""
        offsets = {reader.name: reader.offset for reader in readers}
        passed = {name: each for name, each in self._passed.items() if offsets.get(name) == each["offset"]}
        is_limited = any(limit is not None for limit in self._limits.values())
        limits = self._limits if is_limited else self._stored.get("limits", self._limits)
        content = {"limits": limits, "passed": passed}
        if content != self._stored and (is_limited or self._stored):
            self._directory.disk.mkdir(self._directory.at("tmp"))
            self._file.store(content)


def at_risk(directory: Directory, now_ns: int) -> dict[str, str]:
    """Return what is wrong with each reader that was passed, or will be soon, by the limits of the newest retention.

    Raises:
        CorruptionError: what is stored is damaged.
    """
    stored = _file(directory).load()
    if stored is None:
        return {}
    found, segments = {}, directory.segments()
    status = [directory.disk.status(segment.path) for segment in segments]
    with _file(directory).checking():
        for reader in kept_readers(directory):
            segment = max(containing(segments, reader.offset), 0)
            passed = stored["passed"].get(reader.name)
            if passed is not None and passed["offset"] == reader.offset:
                found[reader.name] = _text("it", passed)
            elif reader.has_limits and segment < len(segments) - 1:
                share, why = _used(stored["limits"], reader, segment, status, now_ns)
                if share >= _WARN_AT:
                    found[reader.name] = f"retention will soon remove messages that it has not read: {why}"
    return found


def why_removed(directory: Directory, offset: int) -> str:
    """Return which readers were passed at an offset, and why, as the end of an error; nothing if none was."""
    try:
        passed = (_file(directory).load() or {"passed": {}})["passed"]
        return "".join(
            f"; {_text(f'reader {name!r}', each)}" for name, each in passed.items() if each["offset"] == offset
        )
    except (SejError, OSError, LookupError, TypeError, AttributeError):
        return ""  # the error is about the messages, not this file


def _text(whom: str, passed: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(whole(passed["at"])))
    return f"retention does not wait for {whom} any more: {passed['rule']} (decided by {passed['by']} at {at})"


def _used(
    limits: dict[str, Any], reader: KeptReader, segment: int, status: list[Status | None], now_ns: int
) -> tuple[float, str]:
    """Return how much of its nearest limit a reader has used that needs this segment next (1: all), and a text."""
    there = status[segment]
    idle_s = (now_ns - max(reader.commit_ns, 0 if there is None else there.mtime_ns)) / 1e9
    behind = sum(each.size for each in status[segment + 1 :] if each is not None)
    age, size = limits["reader_max_age"], limits["reader_max_lag_bytes"]
    shares = [(0.0, "")]
    if age is not None:
        shares.append((idle_s / max(age, 1e-9), f"no commit for {idle_s:.0f} s, and reader_max_age is {age:g} s"))
    if size is not None:
        shares.append((behind / max(size, 0.5), f"{behind} bytes behind, and reader_max_lag_bytes is {size}"))
    return max(shares)


def _file(directory: Directory) -> SealedFile:
    return directory.sealed("a record of limits for readers", "remove it, and clean again", "ofs", ".limits")


def _program() -> str:
    """Return the name of this program, with the command of our own."""
    name = os.path.basename(sys.argv[0] or "python") if sys.argv else "python"
    return " ".join([name, *(sys.argv[1:2] if name == "sej" else ())])[:80]
