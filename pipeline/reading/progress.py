"""How far a stream has read: its offset in Spark's checkpoint, and its progress in ``ofs/``.

The offset has for each directory the next message to read, and the journal that the number belongs to::

    {"orders.3.005": {"id": "9f2c11d0a1b2c3d4", "offset": 23}, ...}

Names are sorted, because Spark compares offsets as text. A directory that was removed stays in it. Messages that were
deleted, and a journal that was truncated, removed or re-created between two polls, are data loss: an error, or with
``failOnDataLoss=false`` a line in the log and a new start.

The progress tells retention what the stream still needs. Spark calls ``commit`` for a batch only when the next one is
built, and never for the last batch of a run. But each time it asks how far a stream may read, it names the end of the
last finished batch. That is committed here, immediately, in a thread of its own, because a commit syncs the journal and
Spark's batch must not wait for it. The thread is given offsets and returns which journals were removed: only the
caller's thread changes :class:`Progress`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from pipeline.options import OptionError, Options
from pipeline.reading.discovery import Chosen, Origin, Slice, Way, lost
from pipeline.reading.planning import Extents, Followers, part_of
from sej.errors import (
    ClosedError,
    JournalNotFoundError,
    LockLostError,
    OffsetBeyondEndError,
    OffsetTooSmallError,
    SejError,
)
from sej.reading.offset import Offset

Offsets = dict[str, dict[str, Any]]
_log = logging.getLogger("pipeline")


def entry(follower: Followers, offset: int) -> dict[str, Any]:
    """Return one directory's part of an offset."""
    return {"id": follower.id, "offset": offset}


def start_in(follower: Followers, start: Offsets, *, fail: bool, way_out: str = "set failOnDataLoss=false") -> int:
    """Return where a stream continues in a journal. A journal that is new to it is read from its first message on.

    Args:
        follower: the journal.
        start: where the stream is in each journal.
        fail: raise an error if messages are lost; otherwise log it.
        way_out: what the user of the stream can do to continue, for the error.

    Raises:
        OffsetTooSmallError: messages were deleted before they were read.
        OffsetBeyondEndError: the journal lost messages, or was re-created.
    """
    known = start.get(follower.origin.name)
    if known is None:
        return follower.first
    offset = int(known["offset"])
    where: dict[str, Any] = {"path": follower.origin.path, "offset": offset}
    if known["id"] and follower.id != known["id"]:
        begin = follower.first
        error: SejError = OffsetBeyondEndError(
            f"this journal was re-created since the stream read it, with other messages; {way_out} to continue with"
            f" its first one, {begin}",
            **where,
        )
    elif offset < follower.first:
        begin = follower.first
        error = OffsetTooSmallError(
            f"messages {offset} to {begin - 1} were deleted before the stream read them; set the option"
            f" reader, so that retention waits for the stream, or {way_out} to continue",
            first_available=begin,
            **where,
        )
    elif offset > follower.end:
        begin = follower.end
        error = OffsetBeyondEndError(
            f"the stream has read up to {offset}, but the journal ends at {begin}: it was truncated or"
            f" replaced; {way_out} to continue with new messages",
            **where,
        )
    else:
        return offset
    lost(error, fail=fail)
    return begin


def advance(followers: Mapping[str, Followers], start: Offsets, ends: Mapping[str, int], *, fail: bool) -> Offsets:
    """Return the offset with these ends; directories that were removed keep their offset.

    Raises:
        JournalNotFoundError: a directory was removed.
    """
    found = {name: entry(followers[name], end) for name, end in ends.items()}
    for name in sorted(start.keys() - found.keys()):
        if name not in followers:
            lost(_gone(name), fail=fail)
        found[name] = start[name]
    return dict(sorted(found.items()))


def still_there(follower: Followers | None, name: str, until: Mapping[str, Any], *, fail: bool) -> bool:
    """Return whether a planned batch can be read in a directory: after a crash Spark plans it again, even much later.

    Raises:
        JournalNotFoundError: the directory was removed.
        OffsetBeyondEndError: the journal was re-created.
    """
    if follower is None:
        lost(_gone(name), fail=fail)
        return False
    if until["id"] and follower.id != until["id"]:
        lost(
            OffsetBeyondEndError(
                f"this journal was re-created since a batch up to {until['offset']} of it was planned; set"
                " failOnDataLoss=false to continue without that batch",
                path=follower.origin.path,
                offset=int(until["offset"]),
            ),
            fail=fail,
        )
        return False
    return True


def _gone(name: str) -> JournalNotFoundError:
    return JournalNotFoundError(
        f"the stream reads directory {name!r}, which was removed; set failOnDataLoss=false to continue without it"
    )


EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def by_directory(given: str | dict[str, int], origins: Sequence[Origin], option: str, rest: int) -> dict[str, int]:
    """Return an option's value for each origin, by its name; ``rest`` for those missing in its JSON.

    Raises:
        OptionError: the JSON names a directory that is not read.
    """
    if isinstance(given, str):
        return dict.fromkeys((origin.name for origin in origins), _WORDS[given])
    names = {name: origin.name for origin in origins for name in (origin.name, origin.path)}
    unknown = [name for name in given if name not in names]
    if unknown:
        there = ", ".join(sorted(origin.name for origin in origins)[:10])
        raise OptionError(
            f"option {option} names {unknown[0]!r}, which is not read; the directories are {there or 'none'}"
        )
    found = dict.fromkeys((origin.name for origin in origins), rest)
    found.update({names[name]: offset for name, offset in given.items()})
    return found


def slices(extents: Sequence[Extents], options: Options, way: Way, chosen: Chosen) -> list[Slice]:
    """Return the messages to read, one slice for each origin, without empty ones.

    Args:
        extents: the existing messages.
        options: of a batch read.
        way: how it reads.
        chosen: what filters leave.

    Raises:
        OffsetTooSmallError: the start was deleted, and failOnDataLoss is true.
        OffsetBeyondEndError: start or end are past the last message, and failOnDataLoss is true.
    """
    origins = [extent.origin for extent in extents]
    starts = by_directory(options["startingOffsets"] or "earliest", origins, "startingOffsets", EARLIEST)
    stops = by_directory(options["endingOffsets"], origins, "endingOffsets", LATEST)
    found = []
    for extent in extents:
        start, stop = starts[extent.origin.name], stops[extent.origin.name]
        if options["startingTimestamp"] is not None:
            start = extent.find_time(options["startingTimestamp"])
        if options["endingTimestamp"] is not None:
            stop = extent.find_time(options["endingTimestamp"])
        start = _resolve(extent, start, "startingOffsets", fail=options["failOnDataLoss"])
        stop = _resolve(extent, stop, "endingOffsets", fail=options["failOnDataLoss"])
        part = part_of(extent, way, chosen, start, stop)
        if part.start < part.stop:
            found.append(part)
    return found


def _resolve(extent: Extents, offset: int, option: str, *, fail: bool) -> int:
    if offset == EARLIEST:
        return extent.first
    if offset == LATEST:
        return extent.end
    where: dict[str, Any] = {"path": extent.origin.path, "offset": offset}
    if offset < extent.first and option == "startingOffsets":
        deleted = OffsetTooSmallError(
            f"{option} requests message {offset}, which was deleted; start from {extent.first}, the first"
            " existing message, or set failOnDataLoss=false",
            first_available=extent.first,
            **where,
        )
        lost(deleted, fail=fail)
    if offset > extent.end:
        beyond = OffsetBeyondEndError(
            f"{option} requests offset {offset}, but the journal ends at {extent.end}; use latest, or set"
            " failOnDataLoss=false",
            **where,
        )
        lost(beyond, fail=fail)
    return min(max(offset, extent.first), extent.end)


class Progress:
    """Commits a reader's offsets in many journals; holds the reader's lock in each."""

    def __init__(self, reader: str) -> None:
        """Set the reader; no lock is taken yet."""
        self._reader = reader
        self._kept: dict[str, Offset] = {}
        self._ids: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        self._tried: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, f"progress of {reader}")
        self._running: Future[list[tuple[str, Offset]]] | None = None
        """What commits now; its result are the readers whose journals were removed."""

    def begin(self, places: Mapping[str, tuple[int, str]]) -> list[str]:
        """Register as the reader of journals: from now on retention waits for it.

        If a path has a journal of another identity now, its reader starts from scratch.

        Args:
            places: offset and identity of each journal, by path.

        Returns:
            The paths without those that were removed a moment ago.

        Raises:
            LockedError: another stream or process has this reader name.
        """
        begun = []
        for path, (offset, identity) in places.items():
            with suppress(JournalNotFoundError):
                self._begin(path, offset, identity)
                begun.append(path)
        return begun

    def _begin(self, path: str, offset: int, identity: str) -> None:
        if self._ids.get(path, identity) != identity and path in self._kept:
            self._forget(path)
        if path not in self._kept:
            kept = Offset(path, self._reader, default=offset, beyond_end="rewind")
            self._kept[path], self._ids[path] = kept, identity
            if kept.value < offset:
                self.keep({path: offset})
            elif kept.value > offset:
                kept.reset(offset)  # a new query starts before the old one's end and still needs those messages

    def keep(self, offsets: Mapping[str, int], *, wait: bool = False) -> None:
        """Commit offsets by path, soon; wait: before it returns. Raises the error of a failed commit."""
        self._wanted.update(offsets)
        while True:
            if self._running is not None and (wait or self._running.done()):
                for path, kept in self._running.result():  # a failed one stays, and is raised again
                    if self._kept.get(path) is kept:  # else it was registered again in the meantime
                        self._forget(path)
                self._running = None
            due = {
                path: offset
                for path, offset in self._wanted.items()
                if path in self._kept and self._tried.get(path) != offset
            }
            if self._running is None and due:
                self._tried.update(due)
                self._running = self._thread.submit(_commit, [(path, self._kept[path], due[path]) for path in due])
            if not wait or self._running is None:
                return

    def close(self) -> None:
        """Commit pending offsets, and release the locks."""
        with suppress(SejError, OSError):
            self.keep({}, wait=True)
        self._thread.shutdown()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def _forget(self, path: str) -> None:
        """Unregister from a journal; if it was re-created, it is registered again."""
        self._kept.pop(path).close()
        self._wanted.pop(path, None)
        self._tried.pop(path, None)


def _commit(due: list[tuple[str, Offset, int]]) -> list[tuple[str, Offset]]:
    gone = []
    for path, kept, offset in due:
        try:
            kept.commit(offset)
        except (ClosedError, FileNotFoundError, JournalNotFoundError, LockLostError) as error:
            _log.warning("%s: the journal was removed, with the offset to commit there: %s", path, error)
            gone.append((path, kept))
        except OffsetBeyondEndError as error:  # truncated or re-created: the stream itself decides what to do
            _log.warning("%s", error)
    return gone
