"""The split: moves messages from a queue file into several new files, each message into one of them.

A comment is moved with the messages right below it, if all of them are moved to the same file. Messages that a process
has claimed remain, and so do those of an interrupted drain and everything that is outside of entries.

The steps of a run, under the queue's lock::

    1  write the new files and what remains, under temporary names; sync them
    2  write a note, .jobs.tq.split: the temporary names and the final ones
    3  rename what remains to the queue's name                                the split is decided
    4  rename the new files to their final names
    5  remove the note

**The invariant.** As long as the temporary file of what remains exists under its own name, no message was moved. After
a crash before step 3, the next run removes the temporary files. After a later crash, it completes step 4. So no message
is lost, and none is in two files that a worker reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from sej.system.disk import Disk, File
from sej.system.locks import end_file_lease
from sej.system.paths import absolute_path
from sej.system.sealed import SealedFile, seal
from textqueue.editing.edit_with_retries import Source
from textqueue.editing.proof import Place
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.replace import Part, put_rest, require_outside_journals, runs, write_rest
from textqueue.editing.tq_file import temporary_file
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.format.mutex import holder_of
from textqueue.ledger.sidecar import named, noted, replace_sidecar, sidecar_path

_NOTE_BYTES: Final = 1 << 26


def split(source: Source, choose: Callable[[Part], str | None]) -> dict[str, int]:
    """Move messages into new files.

    Args:
        source: the queue file.
        choose: a function that returns the path of the new file for a message, or None if the message remains. It is
            called once for each message that is not claimed, in order.

    Returns:
        The number of messages in each new file.

    Raises:
        FileInUseError: another program changed the file in every attempt.
        InvalidTextError: a new file exists already, or would be among the files of a journal; or another program
            created one that an interrupted run has to complete.
        TextQueueError: the note of an interrupted run is damaged.
    """
    for session in source.attempts("split"):
        if (counts := _attempt(source, session, choose)) is not None:
            return counts
    return {}


def _attempt(source: Source, session: QueueFile, choose: Callable[[Part], str | None]) -> dict[str, int] | None:
    disk, file = source.file.disk, session.file
    end_file_lease(file)
    rest, note = sidecar_path(source.file.real_path, ".rest"), sidecar_path(source.file.real_path, ".split")
    _complete(disk, rest, note)
    pieces, counts = _pieces(source, file, choose)
    pieces = {absolute_path(target): parts for target, parts in pieces.items()}
    for target in pieces:
        require_outside_journals(disk, target)
        if disk.status(target) is not None:
            raise InvalidTextError("this file exists already; choose another directory, or remove it", path=target)
    if not pieces:
        return {}
    if session.add_line():  # so that a buffer of an editor that is open names its state
        return None
    # The next run may have another current directory.
    temporary = {target: os.path.abspath(sidecar_path(target, ".new")) for target in pieces}
    try:
        _write(disk, file, pieces, temporary)
        moved = sorted(part for parts in pieces.values() for part in parts)
        after = write_rest(session, rest, moved)
        fields = {"files": [[noted(temporary[target], note), noted(target, note)] for target in pieces]}
        replace_sidecar(disk, note, seal(note, fields), source.path)
    except BaseException:  # an interrupt, too, must not leave copies
        if disk.status(note) is None:  # otherwise the next run removes them
            for path in (*temporary.values(), rest):
                with suppress(OSError):
                    disk.unlink(path)
        raise
    done = put_rest(session, rest, after, moved)
    _complete(disk, rest, note)
    return counts if done else None


def _write(disk: Disk, file: File, pieces: Mapping[str, Sequence[Part]], temporary: Mapping[str, str]) -> None:
    """Write the new files under their temporary names, and sync them."""
    for target, parts in pieces.items():
        with temporary_file(disk, temporary[target], file) as new:
            for _, raw in parts:
                new.write(raw if raw.endswith(b"\n") else raw + b"\n")
    for directory in {os.path.dirname(target) or "." for target in pieces}:
        disk.sync_dir(directory)  # after step 3, these files have the only copy of their messages


def _pieces(
    source: Source, file: File, choose: Callable[[Part], str | None]
) -> tuple[dict[str, list[Part]], dict[str, int]]:
    """Return what to move to each new file, and the number of messages in it."""
    pieces: dict[str, list[Part]] = {}
    counts: dict[str, int] = {}
    for run in runs(file):
        chosen: dict[int, str | None] = {}
        for part in run:
            if not part.is_comment:
                target = chosen[part.position] = None if _is_held(source, part) else choose(part)
                if target is not None:
                    counts[target] = counts.get(target, 0) + 1
        targets = set(chosen.values())
        together = targets.pop() if len(targets) == 1 else None
        for part in run:
            target = chosen.get(part.position, together)
            if target is not None:
                pieces.setdefault(target, []).append(part)
    return pieces, counts


def _is_held(source: Source, part: Part) -> bool:
    """Return whether a process has claimed a message, or died while it moved the message into a journal."""
    if part.position not in source.file.ledger.claims and not holder_of(part.raw):
        return False
    return bool(source.holder(Place(part.position, part.raw, -1))) or source.in_transit(part.raw)


def _complete(disk: Disk, rest: str, note: str) -> None:
    """Complete a run that was decided, or remove the files of one that was not."""
    file = SealedFile(
        disk,
        note,
        "the note of an interrupted split",
        "rename the new files, whose names end in .new, or remove them if their messages are in the queue, then remove"
        " this file",
        max_bytes=_NOTE_BYTES,
        error=TextQueueError,
    )
    fields = file.load()
    if fields is None:
        return
    with file.checking():
        files = [(named(str(temporary), note), named(str(target), note)) for temporary, target in fields["files"]]
    undecided = disk.status(rest) is not None
    for temporary, target in files:
        if undecided:
            disk.unlink(temporary)
        elif (new := disk.status(temporary)) is not None:
            found_there = disk.status(target)
            if found_there is None:
                disk.rename(temporary, target)
            elif found_there.identity == new.identity:  # a crash within the rename
                disk.unlink(temporary)
            else:
                raise InvalidTextError(
                    f"an interrupted split has messages for a file of this name, in {temporary}, but another program"
                    " created the file: rename it, then split again",
                    path=target,
                )
    if undecided:
        disk.unlink(rest)
    disk.unlink(note)
