"""Repairing a segment to which two writers appended at the same time.

This happens only if the original is one of them (see :mod:`sej.system.original`), so an opening looks for it only after
a trace of the original. Each writer counts its offsets from the end that it has read. So the segment consists of runs.
A run is a sequence of messages with consecutive offsets:

    ... 6 7 8 | 9 10 11 | 9 10 | 12 13        both appended: every byte is there, some offsets occur twice
    ... 6 7 8 | 9 10 ~~~ 12 13                one overwrote the other: ~~~ is the rest of a message without its start

Damaged bytes look different, and remain corruption:

====================  ===============================================  =============================================
                      two writers                                      damage
====================  ===============================================  =============================================
offsets               a run starts at or below the highest offset      offsets are missing
                      so far plus one, so none is missing
bytes without         the size at their end leads to a start *before*  the size at the end of a changed message leads
a message             them, inside the messages of the other writer    to the start of this message
====================  ===============================================  =============================================

The run that continues the good messages keeps its offsets. The messages of the other runs are appended after it, writer
by writer, with new offsets. The messages that a writer of this library has acknowledged are always in the first run
(:mod:`sej.system.original`).

Each step is durable before the next:

1. The bytes from the first conflict to the end are copied to ``kept/``.
2. The messages are staged in ``tmp/`` with their final offsets. An intent in ``txn/`` names them and the bytes to be
   cut. It is an intent of ``append_once``: the next writer rolls it forward before its first append.
3. The segment is cut at the first conflict, if it still ends with the bytes that were copied.

Messages that an original appended to a segment that was no longer the last one are moved in the same way.

Crash points: after step 1 there is a copy that nothing refers to. After step 2 the next writer takes step 3, or starts
again if an original has appended more since (:func:`_finish_cut`). After step 3 it rolls the intent forward.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sej.codec import decode_many, encode, message_size
from sej.codec.format import HEAD_SIZE, INT32_SIZE, MAX_KEY_SIZE, MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError, SejError
from sej.journal.directory import Directory, Segment
from sej.journal.index import IndexFile
from sej.journal.recovery import ANY_REACH, Recovery, good_end, keep, next_candidate, size_before
from sej.journal.retention import readers_lock
from sej.journal.writer_lock import WriterLock
from sej.system.disk import File
from sej.system.durable import KeptPosition
from sej.system.locks import end_lease, lease
from sej.writing.end import End
from sej.writing.exactly_once import Batches
from sej.writing.opening import open_end

KEPT: Final = ".overlap."
"""Part of the name of each file in ``kept/`` with the bytes that two writers left."""
_COMPARE_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 1 << 16
_NEWEST: Final = 8
"""An opening examines the ends of this many segments. `sej verify` examines all of them."""
_ALONE_S: Final = 0.02
_LOOK_S: Final = 0.001
_HEAD_BYTES: Final = HEAD_SIZE + MAX_KEY_SIZE + INT32_SIZE


class _Run(NamedTuple):
    """Messages with consecutive offsets: bytes [start, end) of a segment, offsets [first, stop)."""

    start: int
    end: int
    first: int
    stop: int


class _Writer:
    """One of the writers that appended concurrently: its runs, and the offset of its next message."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.runs: list[_Run] = []

    def add(self, run: _Run) -> None:
        self.runs.append(run)
        self.next_offset = run.stop


def open_mended_end(
    directory: Directory,
    kept: KeptPosition,
    lock: WriterLock,
    segments: list[Segment],
    *,
    first_offset: int,
    ours: bool,
) -> End:
    """Repair what two writers left, then open the last segment as :func:`sej.writing.opening.open_end` does.

    Args:
        directory: the journal, locked by the caller.
        kept: its kept position.
        lock: the caller's.
        segments: the segments, listed with the lock held.
        first_offset: where a journal without segments starts.
        ours: whether a writer of this library has opened the journal before. If not, a missing lock file does not prove
            that an original was here, and nothing is repaired.

    Raises:
        CorruptionError: the segment is damaged. The damage is neither a torn tail nor left by two writers; nothing was
            cut.
    """
    _finish_cut(directory, kept, lock)
    if lock.original is None or not (ours or lock.original.certain):
        segments = segments if lock.original is None else directory.segments()  # an original may just have added one
        return open_end(directory, kept, first_offset=first_offset, lock=lock, segments=segments)
    found, end = _mend_last(directory, kept, lock), None
    while end is None:
        try:
            end = open_end(directory, kept, first_offset=first_offset, lock=lock)
        except CorruptionError:
            again = _mend_last(directory, kept, lock)  # an original may still append
            if again is None:
                raise
            found = again
    mended, next_offset = (None, end.offset) if found is None else found
    with readers_lock(directory):
        mended = _mend_previous(directory, kept, lock, next_offset) or mended
    return end if mended is None else end._replace(recovery=mended)


def _finish_cut(directory: Directory, kept: KeptPosition, lock: WriterLock) -> None:
    """Take step 3 of each interrupted repair; the caller holds the lock."""
    batches = Batches(directory)
    for name, first, cut in list(batches.promised_cuts()):
        segment, position = directory.segment(int(cut["segment"])), int(cut["position"])
        if directory.disk.status(segment.path) is None:
            continue  # the segment was deleted
        file = directory.disk.open(segment.path, "edit")
        try:
            lock.lock_segment(file)
            size = file.size() - position
            copy = directory.at("kept", str(cut["kept"]))
            if directory.disk.status(copy) is None:
                rows = batches.staged_rows(name)
                if rows.startswith(file.read(size, position)):
                    continue  # the segment was already cut, and some of the messages were appended again
                if not _is_uncut(file, segment, rows, position, first, cut):
                    raise _without_copy(directory, name, copy)
            elif not _begins_with(directory, file, position, copy):
                continue  # the segment was already cut
            elif size == int(cut["size"]):
                known = (
                    (position, int(cut["offset"])) if "offset" in cut else (0, segment.first_offset)
                )  # older intents
                kept.lower(file, segment.first_offset, *known)
                file.truncate(position)
                file.sync()
                continue
            batches.take_back(name)  # an original has appended more since, or the copy was removed: start again
        finally:
            file.unlock()
            file.close()


def _is_uncut(file: File, segment: Segment, rows: bytes, position: int, first: int, cut: dict[str, Any]) -> bool:
    """Return whether a segment still has the messages that were staged to be appended again, and no others."""
    writers = None
    if "offset" in cut:  # older intents have none
        writers = _writers(file, segment.first_offset, position, int(cut["offset"]), file.size())
    return writers is not None and b"".join(_chunks(file, writers, first)) == rows


def _without_copy(directory: Directory, name: str, copy: str) -> SejError:
    return SejError(
        "a repair of what two writers left was interrupted, and this copy of its bytes was removed before a writer"
        " could finish it. Restore the file. If you cannot, copy the journal, then move"
        f" {directory.at('txn', f'{name}.intent')} away: the messages that are missing then are in"
        f" {directory.at('tmp', f'{name}.rows')}",
        path=copy,
    )


def _begins_with(directory: Directory, file: File, position: int, path: str) -> bool:
    """Return whether the segment still has the copied bytes at a position."""
    copy = directory.disk.open(path, "read")
    try:
        at = 0
        while data := copy.read(_COMPARE_BYTES, at):
            if file.read(len(data), position + at) != data:
                return False
            at += len(data)
        return True
    finally:
        copy.close()


def _mend_last(directory: Directory, kept: KeptPosition, lock: WriterLock) -> tuple[Recovery, int] | None:
    """Repair the end of the last segment.

    Returns:
        What was done, and the offset of the next message; or None if there is nothing that two writers left.
    """
    segments = directory.segments()
    if not segments:
        return None
    segment = segments[-1]
    file = directory.disk.open(segment.path, "edit")
    try:
        lock.lock_segment(file)
        index = IndexFile(directory, segment).load(file, segment.first_offset)
        position, offset = good_end(file, index.position, index.due)
        if position == file.size():
            return None
        return _move(directory, kept, lock, segment, file, position, offset, offset)
    finally:
        file.unlock()
        file.close()


def _mend_previous(directory: Directory, kept: KeptPosition, lock: WriterLock, next_offset: int) -> Recovery | None:
    """Move messages that a segment has from its successor's first offset on to the journal's end, next_offset."""
    done = None
    for segment, following in _surplus(directory):
        file = directory.disk.open(segment.path, "edit")
        try:
            lock.lock_segment(file)
            index = IndexFile(directory, segment).load(file, segment.first_offset)
            position, at = index.before_offset(following)
            while at < following:
                position, at = _message_end(file, position, at)
            found = _move(directory, kept, lock, segment, file, position, following, next_offset)
            if found is not None:
                done, next_offset = found
        finally:
            file.unlock()
            file.close()
    return done


def has_surplus(directory: Directory) -> bool:
    """Return whether an original appended to a segment that was no longer the last one."""
    with readers_lock(directory):
        return any(True for _ in _surplus(directory))


def _surplus(directory: Directory) -> Iterator[tuple[Segment, int]]:
    """Yield each of the newest segments that has offsets of its successor, and the successor's first offset.

    The caller holds the readers' lock.
    """
    segments = directory.segments()[-_NEWEST:]
    for segment, following in pairwise(segments):
        file = directory.disk.open(segment.path, "read")
        try:
            index = IndexFile(directory, segment).load(file, segment.first_offset)
            if good_end(file, index.position, index.due)[1] > following.first_offset:
                yield segment, following.first_offset
        finally:
            file.close()


def _message_end(file: File, position: int, offset: int) -> tuple[int, int]:
    """Return the position and the offset after one message."""
    head = file.read(_HEAD_BYTES, position)
    size = message_size(head, 0, len(head))
    assert size is not None
    return position + size, offset + 1


def _move(
    directory: Directory,
    kept: KeptPosition,
    lock: WriterLock,
    segment: Segment,
    file: File,
    position: int,
    offset: int,
    first: int,
) -> tuple[Recovery, int] | None:
    """Take steps 1 to 3 for a segment: cut it at the first conflict, and leave an intent with the messages after it.

    Args:
        directory: the journal.
        kept: its kept position.
        lock: the caller's.
        segment: the segment.
        file: the segment, open for writing.
        position: the end of the good messages.
        offset: the offset after the good messages.
        first: the new offset of the first message that is moved.

    Returns:
        What was done, and the offset of the next message; or None if there is nothing that two writers left.
    """
    leased = _is_alone(file)
    try:
        while True:
            size = file.size()
            writers = _writers(file, segment.first_offset, position, offset, size)
            if writers is None:
                return None
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            copy = keep(directory, file, position, size - position, f"{segment.name}.{position:012x}{KEPT}{stamp}")
            batches = Batches(directory)
            name = f"overlap~{first:016x}.{time.time_ns():016x}"  # unique, because another intent may be pending
            cut = {
                "segment": segment.first_offset,
                "position": position,
                "size": size - position,
                "kept": os.path.basename(copy),
                "offset": offset,
            }
            count = batches.promise(name, first, _chunks(file, writers, first), cut)
            if file.size() == size and lock.is_current():
                break
            batches.take_back(name)  # an original has appended more, or has removed the lock file
            lock.check()
        kept.lower(file, segment.first_offset, position, offset)
        file.truncate(position)
        file.sync()
    finally:
        if leased:
            end_lease(file)
    reason = (
        f"{len(writers)} writers appended at the same time: {count} messages from here on were appended again with"
        f" offsets {first} to {first + count - 1}"
    )
    return Recovery(segment.path, position, offset, size - position, copy, reason), first + count


def _is_alone(file: File) -> bool:
    """Take a lease on the segment, so that an original that opens it has to wait until it is cut.

    Returns:
        Whether the caller has the lease. Without one it checks the size again before it cuts.
    """
    deadline = time.monotonic() + _ALONE_S
    while not lease(file):
        if time.monotonic() >= deadline:
            return False  # another process has the file open, or the file system has no leases
        time.sleep(_LOOK_S)
    return True


def _writers(file: File, lowest: int, position: int, offset: int, size: int) -> list[_Writer] | None:
    """Assign the messages from a position on to the writers that appended them. A torn tail is left out.

    Args:
        file: the segment.
        lowest: its first offset.
        position: the end of the good messages.
        offset: the offset after the good messages.
        size: the size of the segment.

    Returns:
        The writers, first the one that continues the good messages; or None if concurrent writers do not leave such
        bytes.
    """
    highest = offset - 1
    writers = [_Writer(offset)]
    recent = [writers[0]]  # in the order of their last appends
    gap = position
    while position < size:
        head = file.read(_HEAD_BYTES, position)
        first = OFFSET.unpack_from(head)[0] if len(head) >= OFFSET.size else -1
        if 0 <= first < MAX_OFFSET:
            end, stop = good_end(file, position, first)
            if stop > first:
                if not lowest <= first <= highest + 1:
                    return None  # no writer appends this offset here
                run = _Run(position, end, first, stop)
                writer = next((writer for writer in reversed(recent) if writer.next_offset == first), None)
                if writer is None:
                    writers.append(writer := _Writer(first))
                else:
                    recent.remove(writer)
                recent.append(writer)
                writer.add(run)
                highest = max(highest, stop - 1)
                position = end
                continue
        found = next_candidate(file, position + 1, size, lowest - 1, position - ANY_REACH)
        if found is None:
            break  # a torn tail: the opening that follows judges and cuts it
        if lowest <= first <= highest + 1 or not _is_overwritten(file, position, found.position):
            return None  # the head has an offset that fits, so its message is torn or was changed
        if found.offset > highest + 1 + (found.position - gap) // OVERHEAD_SIZE:
            return None
        highest = max(highest, found.offset - 1)
        gap = position = found.position
    return writers if any(writer.runs for writer in writers) else None


def _is_overwritten(file: File, position: int, end: int) -> bool:
    """Return whether the bytes from position to end are the rest of a message that began before position.

    A changed message keeps its length, so the size at its end leads to position, not to a place before it. If only this
    size was changed, the head at position is intact.
    """
    if end - position < HEAD_SIZE + INT32_SIZE:
        return True  # shorter than any message, so this is not a message that was changed in its place
    size = size_before(file, end)
    if size < OVERHEAD_SIZE or not end - size < position:
        return False
    try:
        head = file.read(_HEAD_BYTES, position)
        return message_size(head, 0, len(head)) != end - position
    except DecodeError:
        return True


def _chunks(file: File, writers: list[_Writer], next_offset: int) -> Iterator[bytes]:
    """Yield the messages of one writer after the other, encoded with offsets from next_offset on."""
    for writer in writers:
        for run in writer.runs:
            position, offset, size = run.start, run.first, _STEP_BYTES
            while offset < run.stop:
                data = file.read(min(size, run.end - position), position)
                messages, end = decode_many(data, 0, len(data), offset, run.stop - offset)
                if not messages:
                    size *= 2  # the message is larger than the step
                    continue
                yield b"".join(encode(next_offset + at, *message[1:]) for at, message in enumerate(messages))
                position, offset = position + end, offset + len(messages)
                next_offset += len(messages)
