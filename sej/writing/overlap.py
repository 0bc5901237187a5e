"""Mending what two writers left that appended to one segment at the same time.

It happens only beside an original (see :mod:`sej.system.original`), so only an opening that found its trace looks for
it. Each of the two counted on from the end that it had read. The segment then consists of runs, messages
with consecutive offsets:

    ... 6 7 8 | 9 10 11 | 9 10 | 12 13        appended: every byte is there, offsets come twice
    ... 6 7 8 | 9 10 ~~~ 12 13                written over: the end of a message whose start is gone

This is told from damaged bytes by what damage cannot make. Offsets that come twice: each run starts at or below the
highest offset so far plus one, so no offset is missing. Written over: the size at the end of the bytes that are no
message says that a message ends there which began *before* them, inside the messages of the other writer. A changed
message ends where it began plus its size, and is corruption as ever.

The run that goes on from the good messages keeps its offsets. The messages of the other runs follow it, in the order of
their writers, with new offsets. What a writer of ours has acknowledged is always in the first
(:mod:`sej.system.original`).

Each step is durable before the next:

1. The bytes from the first conflict on are copied to ``kept/``.
2. The messages are staged in ``tmp/`` with their final offsets; an intent in ``txn/`` names them, and the bytes that
   are to be cut. It is an intent of ``append_once``: the next writer rolls it forward before its first append.
3. The segment is cut at the first conflict, if it still ends with the bytes that were copied.

The same is done for messages that an original appended to a segment that was no longer the last one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from sej.codec import decode_many, encode, message_size
from sej.codec.format import HEAD_SIZE, INT32_SIZE, MAX_KEY_SIZE, MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError
from sej.journal.directory import Directory, Segment
from sej.journal.index import IndexFile
from sej.journal.recovery import ANY_REACH, Recovery, good_end, keep, next_candidate, size_before
from sej.journal.retention import merged_away, readers_lock
from sej.journal.writer_lock import lock_segment
from sej.system.disk import File
from sej.system.durable import KeptPosition
from sej.system.locks import Lock, end_lease, lease
from sej.writing.exactly_once import Batches
from sej.writing.opening import End, open_end

__all__ = ["KEPT", "has_surplus", "open_mended_end"]

KEPT: Final = ".overlap."
"""What is in the name of a file in ``kept/`` that holds what two writers left."""
_COMPARE_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 1 << 16
_NEWEST: Final = 8
"""Of so many segments the ends are looked at; `sej verify` looks at all of them."""
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
    """One of the writers that appended at once: its runs, and the offset that it would go on with."""

    def __init__(self, due: int) -> None:
        self.due = due
        self.runs: list[_Run] = []

    def add(self, run: _Run) -> None:
        self.runs.append(run)
        self.due = run.stop


def open_mended_end(directory: Directory, kept: KeptPosition, lock: Lock, *, first_offset: int, ours: bool) -> End:
    """Open the last segment for appending, as :func:`sej.writing.opening.open_end`; mend what two writers left in it.

    Args:
        directory: the journal, locked by the caller.
        kept: its kept position.
        lock: the caller's.
        first_offset: where a journal without segments starts.
        ours: whether a writer of this library has had the journal before. Else a missing lock file does not prove that
            an original was here, and nothing is mended.

    Raises:
        CorruptionError: there is damage that is neither a torn tail nor the work of two writers; nothing was cut.
    """
    _finish_cut(directory)
    if lock.original is None or not (ours or lock.original.certain):
        return open_end(directory, kept, first_offset=first_offset, alone=True)
    found, end = _mend_last(directory, lock), None
    while end is None:
        try:
            end = open_end(directory, kept, first_offset=first_offset, alone=True)
        except CorruptionError:
            again = _mend_last(directory, lock)  # originals may be at it still
            if again is None:
                raise
            found = again
    mended, due = (None, end.offset) if found is None else found
    try:
        with readers_lock(directory):
            mended = _mend_previous(directory, lock, due) or mended
    except BaseException:
        end.file.close()  # its lock must not live as long as the traceback
        raise
    return end if mended is None else end._replace(recovery=mended)


def _finish_cut(directory: Directory) -> None:
    """Take the last step of a mending that was interrupted, under the lock."""
    batches = Batches(directory)
    for name, cut in list(batches.promised_cuts()):
        path, position = directory.segment(int(cut["segment"])).path, int(cut["position"])
        if directory.disk.status(path) is None:
            continue  # the segment is gone, and so is what was to be cut
        file = directory.disk.open(path, "edit")
        try:
            lock_segment(file)
            size = file.size() - position
            if not _begins_with(directory, file, position, str(cut["kept"])):
                continue  # it was cut
            if size == int(cut["size"]):
                file.truncate(position)
                file.sync()
            else:  # an original has appended more since: begin again
                batches.take_back(name)
        finally:
            file.close()


def _begins_with(directory: Directory, file: File, position: int, kept: str) -> bool:
    """Whether the copied bytes are in the segment still."""
    copy = directory.disk.open(directory.at("kept", kept), "read")
    try:
        at = 0
        while data := copy.read(_COMPARE_BYTES, at):
            if file.read(len(data), position + at) != data:
                return False
            at += len(data)
        return True
    finally:
        copy.close()


def _mend_last(directory: Directory, lock: Lock) -> tuple[Recovery, int] | None:
    """Mend the end of the last segment: what was done, and the offset behind it; None: this is damage."""
    segments = directory.segments()
    if not segments:
        return None
    segment = segments[-1]
    file = directory.disk.open(segment.path, "edit")
    try:
        lock_segment(file)
        index = IndexFile(directory, segment).load(file, segment.first_offset)
        position, due = good_end(file, index.position, index.due)
        if position == file.size():
            return None
        return _move(directory, lock, segment, file, position, due, due)
    finally:
        file.close()


def _mend_previous(directory: Directory, lock: Lock, due: int) -> Recovery | None:
    """Move what segments have behind their successors' first offsets to the journal's end."""
    done = None
    for segment, following in _surplus(directory):
        file = directory.disk.open(segment.path, "edit")
        try:
            lock_segment(file)
            index = IndexFile(directory, segment).load(file, segment.first_offset)
            position, at = index.before_offset(following)
            while at < following:
                position, at = _message_end(file, position, at)
            found = _move(directory, lock, segment, file, position, following, due)
            if found is not None:
                done, due = found
        finally:
            file.close()
    return done


def has_surplus(directory: Directory) -> bool:
    """Whether an original appended to a segment that was no longer the last one."""
    with readers_lock(directory):
        return any(True for _ in _surplus(directory))


def _surplus(directory: Directory) -> Iterator[tuple[Segment, int]]:
    """Of the newest segments those that have messages of their successor, and its first offset.

    A segment that a merge has just joined has them too. So the caller holds the lock under which merging and retention
    work: the marker of a merge and the segments are then of one moment.
    """
    gone = set(merged_away(directory))
    segments = [segment for segment in directory.segments() if segment not in gone][-_NEWEST:]
    for segment, following in pairwise(segments):
        file = directory.disk.open(segment.path, "read")
        try:
            index = IndexFile(directory, segment).load(file, segment.first_offset)
            if good_end(file, index.position, index.due)[1] > following.first_offset:
                yield segment, following.first_offset
        finally:
            file.close()


def _message_end(file: File, position: int, offset: int) -> tuple[int, int]:
    """Behind one message: (position, offset)."""
    head = file.read(_HEAD_BYTES, position)
    size = message_size(head, 0, len(head))
    assert size is not None
    return position + size, offset + 1


def _move(
    directory: Directory, lock: Lock, segment: Segment, file: File, position: int, due: int, first: int
) -> tuple[Recovery, int] | None:
    """Cut a segment where the first of its bytes are in conflict, and promise their messages with offsets from first.

    Args:
        directory: the journal.
        lock: the caller's.
        segment: the segment.
        file: open for writing.
        position: where the good messages end.
        due: the offset that is due there.
        first: what the first of the moved messages gets.
    """
    leased = _is_alone(file)
    try:
        while True:
            size = file.size()
            writers = _writers(file, segment.first_offset, position, due, size)
            if writers is None:
                return None
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            kept = keep(directory, file, position, size - position, f"{segment.name}.{position:012x}{KEPT}{stamp}")
            batches, name = Batches(directory), f"overlap~{first:016x}.{time.time_ns():016x}"  # one may be pending
            cut = {
                "segment": segment.first_offset,
                "position": position,
                "size": size - position,
                "kept": os.path.basename(kept),
            }
            count = batches.promise(name, first, _chunks(file, writers, first), cut)
            if file.size() == size and lock.is_current():
                break
            batches.take_back(name)  # an original has appended more meanwhile, or has unlinked the lock file
            lock.check()
        file.truncate(position)
        file.sync()
    finally:
        if leased:
            end_lease(file)
    reason = (
        f"{len(writers)} writers appended at the same time: {count} messages from here on were appended again with"
        f" offsets {first} to {first + count - 1}"
    )
    return Recovery(segment.path, position, due, size - position, kept, reason), first + count


def _is_alone(file: File) -> bool:
    """Wait a moment for an original that has the segment open, so that nothing is appended while it is cut."""
    deadline = time.monotonic() + _ALONE_S
    while not lease(file):
        if time.monotonic() >= deadline:
            return False  # a reader, maybe, or no leases here: the size is looked at once more instead
        time.sleep(_LOOK_S)
    return True


def _writers(file: File, lowest: int, position: int, due: int, size: int) -> list[_Writer] | None:
    """Whose messages stand from position on, a torn tail left out; None: no writers at once make such bytes."""
    highest = due - 1
    writers = [_Writer(due)]
    recent = [writers[0]]  # the last of them appended last
    gap = position
    while position < size:
        head = file.read(_HEAD_BYTES, position)
        first = OFFSET.unpack_from(head)[0] if len(head) >= OFFSET.size else -1
        if 0 <= first < MAX_OFFSET:
            end, stop = good_end(file, position, first)
            if stop > first:
                if not lowest <= first <= highest + 1:
                    return None  # a message that no writer would have written here
                run = _Run(position, end, first, stop)
                writer = next((writer for writer in reversed(recent) if writer.due == first), None)
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
            break  # a torn tail: recovery has its own rules for what it may be
        if lowest <= first <= highest + 1 or not _is_written_over(file, position, found.position):
            return None  # the head of a message that belongs here: it is torn, or was changed
        if found.offset > highest + 1 + (found.position - gap) // OVERHEAD_SIZE:
            return None
        highest = max(highest, found.offset - 1)
        gap = position = found.position
    return writers if any(writer.runs for writer in writers) else None


def _is_written_over(file: File, position: int, end: int) -> bool:
    """Whether the bytes from position to end are the end of a message that began before them.

    A message that was changed ends where it began plus its size: the size in front of end leads to position, not before
    it. Where only that size was changed, the head at position is sound.
    """
    if end - position < HEAD_SIZE + INT32_SIZE:
        return True  # no message is so short: bytes that were changed in their place leave whole ones
    size = size_before(file, end)
    if size < OVERHEAD_SIZE or not end - size < position:
        return False
    try:
        head = file.read(_HEAD_BYTES, position)
        return message_size(head, 0, len(head)) != end - position
    except DecodeError:
        return True


def _chunks(file: File, writers: list[_Writer], due: int) -> Iterator[bytes]:
    """The messages of one writer after those of the other, with offsets from due on."""
    for writer in writers:
        for run in writer.runs:
            position, offset, size = run.start, run.first, _STEP_BYTES
            while offset < run.stop:
                data = file.read(min(size, run.end - position), position)
                messages, end = decode_many(data, 0, len(data), offset, run.stop - offset)
                if not messages:
                    size *= 2  # one message that is larger than the step
                    continue
                yield b"".join(encode(due + at, *message[1:]) for at, message in enumerate(messages))
                position, offset, due = position + end, offset + len(messages), due + len(messages)
