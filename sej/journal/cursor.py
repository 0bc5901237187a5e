"""A position in a journal that moves forward over segments: shared by scanners, merges and Spark readers.

It does not wait. :meth:`Cursor.read` returns existing messages, and an empty list at the end. It returns no message
twice and leaves none out without an error or a recorded gap, whatever writers and retention do in the meantime.
At the end of a segment it looks for the segment that *contains* the next offset, comparing (device, inode), because a
name may belong to another file by then. That segment usually starts with the next offset, so its name is known. The
directory is listed only if that file is missing: at the end of the journal, at a gap, or inside a segment.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar

from sej.codec import Columns
from sej.codec.format import MAX_OFFSET, OFFSET, OFFSET_SIZE, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError, JournalNotFoundError, OffsetGapError, OffsetTooSmallError, SejError
from sej.journal.directory import Directory, Gap, Incarnation, Segment, containing, gap_at, is_still
from sej.journal.index import BLOCK_BYTES, Block, BlockIndex, IndexFile, error_in, is_content
from sej.journal.recovery import Run, find_damage, frame_end, is_torn, plan_between, what_is_wrong
from sej.journal.retention import why_removed
from sej.journal.segment import CHUNK_BYTES, Place, Room, SegmentReader
from sej.journal.tier import Archived, fetched, readable
from sej.message import Message
from sej.system.checksum import crc32c
from sej.system.disk import Disk

_Found = TypeVar("_Found")

_PASSED_AT_ONCE: Final = 4096
_PIECES: Final = 16
_BLOCKS_AHEAD: Final = 64
_SETTLED_NS: Final = 1_000_000_000
"""For this long the directory's time of change is trusted; some file systems do not update it."""
_TICK_NS: Final = 50_000_000
_COARSE_TICK_NS: Final = 3_000_000_000
"""Changes of a directory within this time may have one timestamp, a whole second on some file systems."""


class _Plan(NamedTuple):
    """The good runs of a damaged segment, for one size of its file and one next segment; last: no other is after it."""

    runs: list[Run]
    size: int
    following: int | None
    last: bool


class Cursor:
    """Reads a journal from an offset on.

    Attributes:
        due: the offset of the next message.
        gaps: recorded gaps that were passed, and with ``on_corruption="skip"`` damage that was skipped.
    """

    _index: IndexFile
    """Of the segment that was opened last."""

    def __init__(
        self,
        directory: Directory,
        offset: int | None,
        *,
        on_corruption: Literal["raise", "skip"] = "raise",
        verify: bool = False,
        place: Place | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        room: Room | None = None,
    ) -> None:
        """Start at an offset (None: the first existing one). Nothing is opened before the first read.

        Args:
            directory: the journal.
            offset: the offset of the first message to read.
            on_corruption: raise, or skip damage.
            verify: check blocks against their checksums.
            place: where that message is, if known; if it is no longer true, the message is searched.
            chunk_bytes: how much is read in one step.
            room: asked with the size of a message that is larger than a chunk before it is read. If it raises, the read
                ends, and the message can be read again. Larger blocks are verified before their messages are read.
        """
        self._directory = directory
        self._disk: Disk = directory.disk
        self._on_corruption = on_corruption
        self._verify = verify
        self._reader: SegmentReader | None = None
        self._segment: Segment | None = None
        self._blocks: list[Block] = []
        self._after = 0
        self._judged: tuple[int, int] | None = None
        self._doubted: tuple[int, int] | None = None
        self._settled: tuple[int, int, int] | None = None
        self._settled_until = 0
        self._plan: _Plan | None = None
        self._provisional: Gap | None = None
        self._is_last = True
        self._indexed_size = 0
        self._parked: Place | None = place
        self._chunk_bytes = chunk_bytes
        self._room = room
        self._incarnation: Incarnation | None = None
        self._asked = offset
        self.due = 0 if offset is None else offset
        self.gaps: list[Gap] = []

    def read(self, limit: int) -> list[Message]:
        """Read up to limit messages with consecutive offsets, over chunks and some small segments; none at the end.

        Raises:
            JournalNotFoundError: the journal was removed, or removed and created again.
            OffsetTooSmallError: the next message was deleted.
            OffsetGapError: messages are missing between two segments.
            CorruptionError: bytes are wrong and not a torn tail.
            TruncatedError: a segment is shorter than what was read from it.
        """
        messages: list[Message] = []
        taken = 0
        for _ in range(_PIECES):
            before = self._reader
            position = before.position if before is not None else 0
            try:
                more = self._next(SegmentReader.read, limit - len(messages)) or []
            except SejError:
                if messages:
                    return messages  # raised again after these are returned
                raise
            except BaseException:
                if messages:  # they were not returned: they are read again
                    self.close()
                    self.due = self._asked = messages[0].offset
                raise
            reader = self._reader
            if messages and more and more[0].offset != messages[-1].offset + 1:
                assert reader is not None
                size = sum(OVERHEAD_SIZE + len(message.key) + len(message.value) for message in more)
                self.due = more[0].offset
                reader.skip(reader.position - size, self.due, reader.end)
                return messages
            messages = messages + more if messages else more
            if not more or len(messages) == limit or self._verify or reader is None:
                return messages
            if self._is_last and reader.position >= reader.seen_size:  # the last look at the file found no more
                return messages
            taken += reader.position - (position if reader is before else 0)
            if taken >= self._chunk_bytes:
                return messages
        return messages

    def read_columns(self, limit: int, *, keys: bool = True, values: bool = True) -> Columns | None:
        """Read up to limit messages as columns, with keys and values or not, from :attr:`due` on; None at the end.

        Raises:
            SejError: as :meth:`read`.
        """
        return self._next(partial(SegmentReader.read_columns, keys=keys, values=values), limit)

    def read_encoded(self, limit_bytes: int) -> tuple[bytes, int]:
        """Read whole encoded messages, from :attr:`due` on; return the bytes and the number of messages, for copying.

        Reads up to the first message that reaches limit_bytes; nothing at the end.

        Raises:
            SejError: as :meth:`read`.
        """

        def take(reader: SegmentReader, limit: int) -> tuple[bytes, int] | None:
            found = reader.read_encoded(limit)
            return found if found[1] else None

        return self._next(take, limit_bytes) or (b"", 0)

    def _next(self, take: Callable[[SegmentReader, int], _Found | None], limit: int) -> _Found | None:
        """Return the result of ``take`` at the next message, in whichever segment that is; None at the end."""
        while True:
            reader = self._reader or self._open()
            if reader is None:
                return None
            if self._verify:
                self._verify_ahead(reader)
            passed, found = False, None
            try:
                if reader.due < self.due:  # the position that was found is before the requested one
                    passed = bool(reader.read(min(_PASSED_AT_ONCE, self.due - reader.due)))
                else:
                    found = take(reader, limit)
            except CorruptionError as error:
                if not self._pass_damage(error):
                    if self._reader is not None:  # what was read of it is read again: a writer may cut a torn tail
                        self._reader.skip(self._reader.position, self._reader.due, self._reader.end)
                    return None
                continue
            if found:
                self.due = reader.due
                return found
            if not passed and not self._advance(reader):
                return None

    def check_available(self) -> None:
        """Check that the next message was not deleted. A recorded gap at the start of the journal is passed.

        Raises:
            OffsetTooSmallError: it was deleted.
        """
        segments = self._segments()
        if segments and self.due < segments[0].first_offset:
            self._begin(segments[0].first_offset)
        self._asked = self.due

    def judge(self) -> bool:
        """Decide whether the bytes at the end are a torn tail or corruption; called after a time without messages.

        An incomplete message may still be in the middle of an append, may be the torn tail of a dead writer, or may
        hide good messages after it.

        Returns:
            Whether there is more to read (with ``on_corruption="skip"``).

        Raises:
            CorruptionError: valid messages follow, or the index has later ones, so this is not a torn tail.
        """
        reader = self._reader
        if reader is None or (rest := reader.rest()) <= 0 or self._judged == (reader.position, rest):
            return False
        if self._disk.status(reader.path) is None:
            return False
        if self._on_corruption == "skip":
            self._judged = (reader.position, rest)
            return self._skip_damage(reader)
        damage = self._index.find_damage(reader.file, reader.position, reader.due)
        if damage is not None and not damage.torn:
            raise damage.error(reader.path)
        self._judged = (reader.position, rest)
        return False

    def park(self) -> None:
        """Close the open segment and remember the position: for callers with more cursors than descriptors.

        The next read reopens the segment there, without a search, if it is still the same file.
        """
        reader = self._reader
        if reader is not None and reader.due == self.due and not self._verify:
            self._parked = Place(reader.status().identity, reader.position)
        self.close()

    def close(self) -> None:
        """Close the open segment."""
        self._settled = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- finding the segment

    def _open(self) -> SegmentReader | None:
        """Open the segment that contains the next offset, at or before it, or None if it is still missing.

        The segment that starts with the next offset, and the one in which the cursor was parked, are opened by name.
        The directory is listed only if neither exists: a scan of n segments must not read n names n times.

        Raises:
            JournalNotFoundError: it belongs to another journal than the segments before it.
        """
        while True:
            incarnation = self._incarnation or Incarnation.look(self._directory)
            reader = self._find()
            if reader is None:
                return None
            if incarnation.is_still(self._directory):  # checked after opening: the segment may be newer than the look
                self._incarnation = incarnation if incarnation.named else Incarnation.look(self._directory)
                return reader
            self.close()
            if self._incarnation is not None:
                raise JournalNotFoundError(
                    f"this journal was removed and re-created while message {self.due} was the next one to read; open"
                    " it again to read the new journal",
                    path=self._directory.path,
                    offset=self.due,
                )

    def _find(self) -> SegmentReader | None:
        parked, self._parked = self._parked, None
        reader = self._try(self._directory.segment(self.due))
        if reader is None and parked is not None and self._segment is not None:
            reader = self._try(self._segment, parked, contains=False)
        if reader is not None:
            self._is_last = False  # unknown: checked at the end of the segment
            return reader
        for _ in range(100):  # a segment that is removed between listing and opening is searched again
            segments = self._segments()
            if not segments:
                return None
            at = containing(segments, self.due)
            if at < 0:
                if self._asked is not None and self._segments() != segments:
                    continue
                self._begin(segments[0].first_offset)
                at = 0
            if (reader := self._try(segments[at], parked)) is not None:
                self._is_last = at == len(segments) - 1
                return reader
        raise CorruptionError(
            "segments keep disappearing while they are opened: find the program that removes them, then open again",
            path=self._directory.jnl,
        )

    def _segments(self) -> list[Segment]:
        """Return the segments; with those of the cold tier if the next message is before all others."""
        return readable(self._directory, self.due)

    def _try(self, segment: Segment, parked: Place | None = None, *, contains: bool = True) -> SegmentReader | None:
        """Open a segment, where the cursor was parked or else, if it contains the next offset, there.

        None if the segment is missing, or neither is in this file.
        """
        try:
            reader = SegmentReader(
                self._disk, fetched(segment), 0, segment.first_offset, chunk_bytes=self._chunk_bytes, room=self._room
            )
        except FileNotFoundError:
            return None
        self._segment, self._reader = segment, reader
        self._index = IndexFile(self._directory, segment)
        self._asked = self.due
        self._blocks = []
        self._after = 0
        self._indexed_size = -BLOCK_BYTES  # no entries were loaded
        self._judged = self._doubted = None
        try:
            if parked is not None and self._is_parked(reader, *parked):
                reader.skip(parked.position, self.due)
                self._stop_at_run(reader)
                return reader
            if not contains:
                self.close()
                return None
            self._plan = None
            if self.due > segment.first_offset:
                self._skip_to_due(segment, reader)
        except BaseException:
            self.close()
            raise
        return reader

    def _is_parked(self, reader: SegmentReader, identity: tuple[int, int], position: int) -> bool:
        """Return whether the cursor was parked in this file, and the next message or the end is there."""
        status = reader.status()
        if status.identity != identity or status.size < position:
            return False
        head = reader.file.read(OFFSET_SIZE, position)
        # Else the inode number was reused for a new file.
        return len(head) < OFFSET_SIZE or OFFSET.unpack(head)[0] == self.due

    def _skip_to_due(self, segment: Segment, reader: SegmentReader) -> None:
        """Move to the next message, or at most a block before it."""
        found = self._index.find(reader.file, "next_offset", self.due + 1)
        if found is not None and self.due < found.next_offset:
            reader.skip(found.position, found.first_offset)
            return
        index = BlockIndex(segment.first_offset, [found] if found else [])
        index.extend(reader.file)
        reader.skip(*index.before_offset(self.due))

    def _begin(self, first: int) -> None:
        """Move to the first existing message, over recorded gaps only; if no offset was requested, from any offset."""
        if self._asked is None:
            self.due = first
            while self.due > 0 and (before := gap_at(self._directory, self.due - 1)) is not None:
                self.due = before.start
        while self.due < first:
            gap = gap_at(self._directory, self.due)
            if gap is None:
                self._too_small(first)
            stop = min(gap.stop, first)
            self._report(gap._replace(start=self.due, stop=stop))
            self.due = stop

    def _too_small(self, first_available: int) -> NoReturn:
        why = why_removed(self._directory, self.due) or "; retention waits only for readers with a kept offset"
        raise OffsetTooSmallError(
            f"message {self.due} was deleted; the first existing one is {first_available}: continue there (`sej reset"
            f" DIR NAME first` moves a reader){why}",
            first_available=first_available,
            path=self._directory.path,
            offset=self.due,
        )

    def _advance(self, reader: SegmentReader) -> bool:
        """Return, at the end of a segment, whether there is more to read here or in another one.

        Raises:
            CorruptionError: a segment that is not the last ends inside a message.
            OffsetGapError: the next segment starts after the next offset.
        """
        due = reader.due
        if self._plan is not None and reader.position == reader.end and self._next_run(reader, self._plan):
            return True
        changed = self._changed()
        if changed is not None and changed == self._settled and time.monotonic_ns() < self._settled_until:
            return False  # no segment was added, removed or replaced since this one was found to be the last
        self._settled = None
        named = self._disk.status(self._directory.segment(due).path)
        if named is not None and named.identity != reader.status().identity:
            return self._reopen()  # the next segment: it starts where this one ends, except after a gap
        age = time.time_ns() - changed[2] if changed is not None else 0
        segments = self._segments()
        at = containing(segments, due)
        if at >= 0 and not is_still(self._disk, segments[at], reader.file):
            return self._reopen()  # another file has the next offset: the next segment, or one that was put in place
        if at + 1 >= len(segments):
            if at < 0 and segments:
                self._too_small(segments[0].first_offset)
            self._is_last = True
            if changed is not None and age > (_TICK_NS if changed[2] % 1_000_000_000 else _COARSE_TICK_NS):
                self._settled, self._settled_until = changed, time.monotonic_ns() + _SETTLED_NS
            return False  # the tail of the journal; see judge()
        if self._doubted != (reader.position, due):
            # Again: a message may have been appended between the last read and the listing, and a name added during the
            # listing.
            self._doubted = (reader.position, due)
            return True
        return self._between(reader, segments[at + 1].first_offset, at >= 0)

    def _changed(self) -> tuple[int, int, int] | None:
        """Return the segments' directory and when it last changed; None if the system does not report it."""
        jnl = self._disk.status(self._directory.jnl)
        return (jnl.device, jnl.inode, jnl.mtime_ns) if jnl is not None and jnl.mtime_ns else None

    def _is_elsewhere(self, segments: list[Segment], at: int, reader: SegmentReader) -> bool:
        """Return whether another file has the next offset, which a segment should contain."""
        there = self._disk.status(segments[at].path) if at >= 0 else None
        return there is not None and there.identity != reader.status().identity

    def _reopen(self) -> bool:
        self.close()
        return True

    def _between(self, reader: SegmentReader, following: int, contained: bool) -> bool:
        """The next offset is neither in this segment nor in the next one."""
        due = max(reader.due, self.due)  # a recorded gap that was passed may end before the next segment
        gap = gap_at(self._directory, due)
        if gap is not None:
            return self._pass_gap(gap._replace(start=due, stop=min(gap.stop, following)))
        if not contained:
            self._too_small(following)
        if self._on_corruption == "skip" and reader.rest() > 0:
            return self._skip_damage(reader)
        if reader.rest() > 0:
            damage = find_damage(reader.file, reader.position, reader.due)
            error = self._damage_at(
                reader,
                f"{damage.reason if damage else 'no message'}, and this is not the last segment: the next one starts"
                f" with {following}; nothing was cut, see `sej verify` and `sej repair`",
            )
        else:
            recording = "archive move --accept-gaps" if isinstance(self._segment, Archived) else "repair"
            error = OffsetGapError(
                f"messages {due} to {following - 1} are missing: this segment ends with {reader.due - 1}, the next"
                f" one starts with {following}; `sej {recording}` records the gap",
                path=reader.path,
                position=reader.position,
                offset=due,
            )
        if self._on_corruption == "raise":
            raise error
        return self._pass_gap(Gap(due, following, str(error)))

    def _pass_gap(self, gap: Gap) -> bool:
        if gap.missing >= 0:  # else it is before the requested offset
            self._report(gap)
        self.due = max(self.due, gap.stop)
        return self._reopen()

    # --- damage inside a segment

    def _pass_damage(self, error: CorruptionError) -> bool:
        """Decide about bytes that are not a message.

        A torn tail ends reading (False); corruption raises or is skipped.
        """
        reader = self._reader
        assert reader is not None
        if self._on_corruption == "skip":
            return self._skip_damage(reader)
        if isinstance(error.__cause__, DecodeError) and error.__cause__.found is not None:
            raise error
        segments = self._segments()  # first: a writer completes the message before it starts another segment
        damage = self._index.find_damage(reader.file, reader.position, reader.due)
        if damage is None:
            return False
        if not damage.torn:
            raise damage.error(reader.path) from error
        at = containing(segments, reader.due)
        if self._is_elsewhere(segments, at, reader):
            return self._reopen()  # the next segment has the next offset: no message is missing
        if at + 1 >= len(segments):
            return False
        raise CorruptionError(error.reason, path=error.path, position=error.position, offset=error.offset)

    def _skip_damage(self, reader: SegmentReader) -> bool:
        """Continue at the next run of good messages, those that a repair would keep; return whether there is one.

        The segment is planned once. Skipped messages are in :attr:`gaps`. If the last bytes of the journal are neither
        good nor a torn tail, they are reported too, but the position stays before them: a repair cuts them, and the
        next appended message then has the expected offset.
        """
        if self._is_completed(reader):
            return False
        segments = self._segments()
        at = containing(segments, reader.due)
        if self._is_elsewhere(segments, at, reader):
            return self._reopen()  # a segment that overlaps this one has these messages
        following = segments[at + 1].first_offset if at + 1 < len(segments) else None
        indexed, _ = self._index.end(reader.file)
        unplanned = following is None and self._plan is None and indexed <= reader.position
        if unplanned and is_torn(reader.file, reader.position, reader.due):
            return False
        size = reader.file.size()
        plan = self._plan
        if plan is None or (plan.size, plan.following) != (size, following):
            found, ceiling = plan_between(self._directory, segments, at, reader.file, indexed=indexed)
            plan = _Plan(found.runs, size, following, ceiling == MAX_OFFSET)
        if self._is_completed(reader):  # after all these looks: they may have seen the message before and after that
            return False
        self._plan = plan
        if self._next_run(reader, plan):
            return True
        error = self._damage_at(reader, what_is_wrong(reader.file, reader.position, reader.due))
        due = max(self.due, reader.due)
        if following is not None:
            return self._pass_gap(Gap(due, max(due, following), str(error)))
        lost, position = 0, reader.position
        while (end := frame_end(reader.file, position)) is not None:
            lost, position = lost + 1, end
        damage = find_damage(reader.file, reader.position, reader.due)
        if damage is not None and (lost or damage.follower is not None):
            self._report(Gap(due, due + max(lost, 1), str(error)))
            self._provisional = self.gaps[-1]  # what is lost there is known after more was appended
        return False

    def _is_completed(self, reader: SegmentReader) -> bool:
        """Return whether a writer has completed the next message in the meantime."""
        return what_is_wrong(reader.file, reader.position, reader.due) is None and reader.position != reader.end

    def _next_run(self, reader: SegmentReader, plan: _Plan) -> bool:
        """Continue at the next run of the plan with messages from the next offset on; return whether there is one."""
        due = max(self.due, reader.due)
        at = bisect_left(plan.runs, reader.position, key=lambda run: run.start)
        run = next((run for run in islice(plan.runs, at, None) if run.stop > due), None)
        if run is None:
            return False
        passed = run.start > reader.position and reader.due >= self.due  # else it is before the requested offset
        if run.first > due or passed:
            reason = what_is_wrong(reader.file, reader.position, reader.due)
            self._report(Gap(due, max(run.first, due), str(self._damage_at(reader, reason))))
        reader.skip(run.start, run.first)
        self._stop_at_run(reader)
        self.due = max(due, run.first)
        return True

    def _stop_at_run(self, reader: SegmentReader) -> None:
        """Let reading stop at the end of the current run; after the last run of a journal it continues."""
        if self._plan is not None:
            runs = self._plan.runs
            at = bisect_right(runs, reader.position, key=lambda run: run.start) - 1
            inside = at >= 0 and reader.position < runs[at].end
            last = at == len(runs) - 1 and self._plan.last
            reader.end = runs[at].end if inside and not last else None

    def _report(self, gap: Gap) -> None:
        """Add a gap once; a report about the journal's end is replaced after more was appended."""
        last = self.gaps[-1] if self.gaps else None
        if last is not None and (last[:2] == gap[:2] or (last is self._provisional and last.start == gap.start)):
            self.gaps[-1] = gap
        else:
            self.gaps.append(gap)

    def _damage_at(self, reader: SegmentReader, reason: str | None) -> CorruptionError:
        return CorruptionError(
            reason or "bytes between good messages", path=reader.path, position=reader.position, offset=reader.due
        )

    # --- checksums

    def _load_more(self, reader: SegmentReader) -> None:
        """Load the next entries, if there may be more than those before, or the index may have grown with the segment.

        Not all of them: a reader of a part needs few of those of a large segment.
        """
        if self._blocks:
            return
        size = reader.status().size
        if not self._after and size - self._indexed_size < BLOCK_BYTES:
            return
        blocks = self._index.blocks_after(reader.file, max(reader.position, self._after), _BLOCKS_AHEAD)
        self._after = blocks[-1].end if len(blocks) == _BLOCKS_AHEAD else 0
        self._indexed_size = size
        self._blocks = blocks[::-1]

    def _verify_ahead(self, reader: SegmentReader) -> None:
        """Check the blocks that reading is about to enter; messages are decoded from the bytes that were checked.

        Entries that do not match the segment are stale, and are dropped.
        """
        while True:
            self._load_more(reader)
            reader.until = self._blocks[-1].position if self._blocks else 0
            if reader.until > reader.position or not self._blocks:
                return
            block = self._blocks[-1]
            if block.end <= reader.position or not self._is_likely(reader, block):
                self._blocks.pop()
                continue
            error = self._check_run(reader, self._adjacent(reader))
            if not self._blocks or self._blocks[-1] is not block:
                return  # it is good, and perhaps some after it
            if error is not None and self._on_corruption == "raise":
                raise error
            self._blocks.pop()
            if error is not None:
                # It is unknown which of its messages changed: none of them is returned.
                self.gaps.append(Gap(max(self.due, reader.due), block.next_offset, str(error)))
                reader.skip(block.end, block.next_offset)
                self._stop_at_run(reader)
                self.due = max(self.due, block.next_offset)

    def _check_run(self, reader: SegmentReader, run: list[Block]) -> CorruptionError | None:
        """Load adjacent blocks and drop the entries of those that are good, up to the first that is not.

        Returns:
            The error of that block; None if its entry is stale.
        """
        if self._room is not None and run[0].end - run[0].position > self._chunk_bytes:
            return self._check_large(reader, run[0])
        start = run[0].position
        data = memoryview(reader.load(start, run[-1].end))
        for block in run:
            content = data[block.position - start : block.end - start]
            error = block.error(crc32c(content), reader.path)
            if error is not None:
                reader.unload(block.position)  # it is checked again when the reader is there
                return error if is_content(block, content) or self._index.is_followed(reader.file, block) else None
            self._blocks.pop()  # not earlier: a read that fails is repeated
        return None

    def _check_large(self, reader: SegmentReader, block: Block) -> CorruptionError | None:
        """Check a block without loading it, for a caller that limits memory; otherwise like :meth:`_check_run`."""
        if not self._index.belongs(reader.file, block):
            return None
        error = error_in(reader.file, block)
        if error is None:
            self._blocks.pop()
        return error

    def _is_likely(self, reader: SegmentReader, block: Block) -> bool:
        """Return False if an entry is stale although it is of a normal size: a stale one must not take much memory."""
        is_small = block.end - block.position <= self._chunk_bytes + BLOCK_BYTES
        return is_small or self._index.belongs(reader.file, block)

    def _adjacent(self, reader: SegmentReader) -> list[Block]:
        """Return the next block, and those directly after it that are in the same chunk."""
        run = [self._blocks[-1]]
        for block in reversed(self._blocks[:-1]):
            fits = block.end - run[0].position <= self._chunk_bytes + BLOCK_BYTES // 2
            if block.position != run[-1].end or not fits or reader.end is not None or self._room is not None:
                break
            run.append(block)
        return run
