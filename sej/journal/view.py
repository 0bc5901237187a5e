"""A journal: its segments, offsets and times. Reads only, and creates nothing.

The cursor reads forwards; this module answers questions that do not need all messages: where the journal begins and
ends, where a time is, what the last messages are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

from sej.checks import COUNT, DISK, TIMESTAMP, Seconds, instance_of, require
from sej.codec import decode
from sej.codec.format import INT32, INT32_SIZE, OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError, OffsetGapError
from sej.journal.directory import Directory, Segment, containing, is_recorded, is_still, journal_id, read_gaps
from sej.journal.index import BlockIndex, IndexFile
from sej.journal.offset_check import kept_offsets
from sej.journal.recovery import corruption_at, good_end, last_message
from sej.journal.repair import Problem, Repair, reindex, repair, verify
from sej.journal.retention import Retention, clean
from sej.journal.segment import SegmentReader
from sej.journal.tail import Tail
from sej.journal.tier import Archived, fetched, readable
from sej.message import Message
from sej.system.disk import OS, Disk, File, open_existing

_BACK_BYTES: Final = 1 << 16
_SCAN_MESSAGES: Final = 4096


class SegmentInfo(NamedTuple):
    """One segment.

    Attributes:
        first_offset: the offset of its first message, by its name.
        path: the file.
        size: in bytes.
        mtime_ns: the time of its last change, ns since the epoch.
    """

    first_offset: int
    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)


class Journal:
    """Reads the state of a SEJ directory.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> j = Journal(path)
        >>> j.first_offset, j.end_offset, [m.value for m in j.tail(2)]
        (0, 3, [b'b', b'c'])
    """

    def __init__(self, path: str | os.PathLike[str], *, disk: Disk = OS) -> None:
        """Check that there is a journal.

        Raises:
            JournalNotFoundError: the path does not exist.
            NotAJournalError: the path is not a SEJ directory.
        """
        DISK("disk", disk)
        self._directory = Directory(path, disk)
        self._directory.require()
        self._disk = disk
        self.path = self._directory.path

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments by first offset."""
        return [
            SegmentInfo(segment.first_offset, segment.path, status.size, status.mtime_ns)
            for segment in self._directory.segments()
            if (status := self._disk.status(segment.path)) is not None
        ]

    @property
    def first_offset(self) -> int:
        """The offset of the first existing message; of the next one if none exists."""
        segments = readable(self._directory)
        return segments[0].first_offset if segments else 0

    @property
    def end_offset(self) -> int:
        """The offset that the next message gets, after the last whole message, with or without a torn tail.

        Raises:
            CorruptionError: the bytes after the last good message are not a torn tail: see :meth:`repair`.
        """
        return Tail(self._directory).end_offset(judge=True)

    @property
    def id(self) -> bytes | None:
        """The journal's identity, 16 random bytes; None if the original created it."""
        return journal_id(self._directory)

    def offsets(self) -> dict[str, int | None]:
        """Return the kept offsets by reader's name; None: never committed."""
        return kept_offsets(self._directory)

    def find_time(self, timestamp: int) -> int:
        """Return the first offset from a timestamp (ns since the epoch) on; the end if none exists.

        Timestamps may be unordered: it is the first in the order of offsets.
        """
        TIMESTAMP("timestamp", timestamp)
        segments, at, due = readable(self._directory), 0, 0
        while at < len(segments):
            try:
                found, due = self._find_time(segments[at], timestamp)
            except FileNotFoundError:  # retention removed it
                first_offset = segments[at].first_offset
                segments = readable(self._directory)
                at = max(containing(segments, first_offset), 0)
                continue
            if found:
                return due
            at += 1
            if at == len(segments):  # a writer may have started another one, after more messages in this one
                again = readable(self._directory)
                if again[-1:] != segments[-1:]:
                    segments, at = again, max(containing(again, due), 0)
        return due

    def tail(self, count: int = 10) -> list[Message]:
        """Return the last messages, oldest first. Reads only these, not the segment.

        Raises:
            CorruptionError: as :meth:`reversed`.
            OffsetGapError: as :meth:`reversed`.
        """
        COUNT("count", count)
        return list(islice(self.reversed(), count))[::-1]

    def reversed(self) -> Iterator[Message]:
        """Yield the messages from the last one backwards, by the size at the end of each.

        Raises:
            CorruptionError: a message cannot be found from its end, or bytes after the last good one are not a torn
                tail.
            OffsetGapError: messages are missing between two segments, and no gap is recorded.
        """
        segments = readable(self._directory)
        at, below = len(segments) - 1, None
        while at >= 0:
            file = open_existing(self._disk, fetched(segments[at]), "read")
            if file is None:
                self._directory.require()
                at -= 1  # retention removed it and those before it
                continue
            with file:
                if below is None:
                    end, due = self._good_end(segments[at], file)
                else:
                    end = file.status().size
                    due = _offset_behind(file, end, segments[at].first_offset)
                if below is not None and due < below and not is_recorded(read_gaps(self._directory), due, below):
                    again = readable(self._directory)
                    if again == segments and is_still(self._disk, segments[at], file):
                        raise OffsetGapError(
                            f"messages {due} to {below - 1} are missing after this segment; `sej repair` records the"
                            " gap",
                            path=segments[at].path,
                            position=end,
                            offset=due,
                        )
                    segments, at = again, containing(again, below - 1)
                    continue
                for message in _backwards(file, segments[at], end, due):
                    if below is None or message.offset < below:  # segments may overlap
                        below = message.offset
                        yield message
                below = segments[at].first_offset if below is None else below
            at -= 1

    def verify(self, *, progress: Callable[[int, int], object] | None = None) -> list[Problem]:
        """Check everything against the format, the offsets and the checksums; return the problems, none if it is sound.

        Args:
            progress: called before each segment with the bytes read and the total bytes.
        """
        require(progress=progress)
        return verify(self._directory, progress=progress)

    def clean(
        self,
        max_age_s: Seconds | None = None,
        max_bytes: int | None = None,
        keep_segments: int = 1,
        dry_run: bool = False,
        *,
        ignore_readers: Collection[str] = (),
        reader_max_age: Seconds | None = None,
        reader_max_lag_bytes: int | None = None,
    ) -> list[str]:
        """Remove the oldest segments that exceed a limit, never one that a reader with a kept offset still needs.

        With a limit for readers, a reader that is beyond it holds no segment any more. Its next read raises
        :class:`~sej.OffsetTooSmallError`, which says why. ``sej stat --health`` reports it before. The limits do not
        apply to work queues.

        Args:
            max_age_s: seconds since a segment's last append.
            max_bytes: the most bytes of all segments together.
            keep_segments: at least this many of the newest are kept.
            dry_run: only return what would be removed.
            ignore_readers: readers, by name, whose kept offsets do not count.
            reader_max_age: the most seconds since a reader's last commit, if the segment that it needs next is as old.
            reader_max_lag_bytes: the most bytes of the segments after the one that a reader needs next.

        Returns:
            The paths that were removed, or would be.
        """
        policy = Retention(
            max_age_s,
            max_bytes,
            keep_segments,
            reader_max_age=reader_max_age,
            reader_max_lag_bytes=reader_max_lag_bytes,
        )
        require(dry_run=dry_run, ignore_readers=(ignore_readers, instance_of(list, tuple, set, frozenset)))
        return clean(self._directory, policy, dry_run=dry_run, ignore_readers=ignore_readers)

    def repair(self, dry_run: bool = False, *, progress: Callable[[int, int], object] | None = None) -> Repair:
        """Repair a damaged journal so that it opens, without losing a byte; never done automatically.

        Good runs become segments named by their first offset, damaged bytes are copied to ``kept/``, and gaps are
        recorded so that scanners pass and report them. The original cannot pass a gap.

        Args:
            dry_run: only return what would be done.
            progress: called before each segment with the bytes read and the total bytes.

        Raises:
            LockedError: a writer runs, or another process removed a segment in the meantime.
        """
        require(dry_run=dry_run, progress=progress)
        return repair(self._directory, dry_run=dry_run, progress=progress)

    def reindex(self) -> int:
        """Rebuild the sidecar index of every segment from the journal; return how many blocks it has."""
        return reindex(self._directory)

    def __repr__(self) -> str:
        """Show the path."""
        return f"<sej.Journal {self.path!r}>"

    def _find_time(self, segment: Segment, timestamp: int) -> tuple[bool, int]:
        """Return whether a segment has a message from a timestamp on, and its offset; else the offset at its end."""
        if isinstance(segment, Archived) and segment.listed.newest_timestamp < timestamp:
            return False, segment.listed.next_offset
        with self._disk.open(fetched(segment), "read") as file:
            found = IndexFile(self._directory, segment).find(file, "newest_timestamp", timestamp)
            index = BlockIndex(segment.first_offset, [found] if found else [])
            if found is None or found.newest_timestamp < timestamp:
                index.extend(file)
            start = index.before_time(timestamp)
        with SegmentReader(self._disk, segment.path, *start) as reader:
            # The first block that is new enough holds the message; without one it can only be in the short rest.
            while messages := self._read_good(segment, reader):
                for message in messages:
                    if message.timestamp >= timestamp:
                        return True, message.offset
            return False, reader.due

    def _read_good(self, segment: Segment, reader: SegmentReader) -> list[Message]:
        """Read the next messages of a segment; none at its end, and none at a torn tail."""
        index = IndexFile(self._directory, segment)
        while True:
            try:
                messages = reader.read(_SCAN_MESSAGES)
            except CorruptionError:
                messages = []
            position, due = reader.position, reader.due
            if messages or reader.rest() <= 0:
                return messages
            is_last = self._directory.segments()[-1:] == [segment]  # first: a writer may complete it and rotate
            damage = index.find_damage(reader.file, position, due)
            if damage is not None and not (damage.torn and is_last):
                raise damage.error(reader.path)
            if damage is not None:
                return []
            reader.skip(position, due)  # a writer has completed the message in the meantime

    def _good_end(self, segment: Segment, file: File) -> tuple[int, int]:
        position, due = good_end(file, *IndexFile(self._directory, segment).end(file))
        if (error := corruption_at(file, position, due)) is not None:
            raise error
        return position, due


def _offset_behind(file: File, end: int, first_offset: int) -> int:
    """Return the offset after the message that ends at ``end``."""
    if end == 0:
        return first_offset
    found = last_message(file, end)
    if found is None:
        raise _broken(file, end, first_offset, "no sound message ends here")
    offset: int = OFFSET.unpack_from(found[1])[0]
    return offset + 1


def _backwards(file: File, segment: Segment, end: int, due: int) -> Iterator[Message]:
    """Yield the messages of one segment before ``end``, where ``due`` would be the next, from the last one on."""
    data, start = b"", end
    while end > 0:
        if end < OVERHEAD_SIZE:
            raise _broken(file, end, due, "there are too few bytes for a message before this position")
        if end - start < INT32_SIZE:
            data, start = _before(file, end, INT32_SIZE)
        at = end - start
        size = INT32.unpack_from(data, at - INT32_SIZE)[0]
        if not OVERHEAD_SIZE <= size <= end:
            reason = f"the size field before this position must be the size of a message, got {size}"
            raise _broken(file, end, due, reason)
        if at < size:
            data, start = _before(file, end, size)
            at = end - start
        try:
            found = decode(data, at - size, at)
        except DecodeError as error:
            raise _broken(file, end, due, error.reason) from error
        if found is None or found[1] != at or found[0].offset != due - 1:
            raise _broken(file, end, due, "the message before this position is not the expected one")
        due -= 1
        end -= size
        yield found[0]
    if due != segment.first_offset:
        raise _broken(file, 0, due, f"the segment must start with offset {segment.first_offset}, by its name")


def _before(file: File, end: int, size: int) -> tuple[bytes, int]:
    """Return the bytes before a position, so many or more, and where they start."""
    start = max(end - max(size, _BACK_BYTES), 0)
    return file.read(end - start, start), start


def _broken(file: File, position: int, due: int, reason: str) -> CorruptionError:
    return CorruptionError(
        f"reading backwards from here failed: {reason}; see `sej verify`",
        path=file.path,
        position=position,
        offset=due - 1,
    )
