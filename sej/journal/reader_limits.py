"""Which readers hold segments, and how long: a reader that no program uses must not fill the disk.

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
from typing import Any, Final, NamedTuple

from sej.errors import BadOffsetFileError, CorruptionError, SejError
from sej.journal.directory import Directory, Segment, containing
from sej.journal.offset_check import read_kept
from sej.system.disk import Status
from sej.system.sealed import SealedFile, whole

_WARN_AT: Final = 0.8
"""A reader is reported when it has used this much of a limit."""


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
    except (
        SejError,
        OSError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # the error is about the messages, not this file
        return ""


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
