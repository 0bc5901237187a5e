"""The archive and the split: they move entries from a queue file to other files.

Both write what remains into a temporary file, and rename it to the queue's name, if no other program has changed the
file since it was read. If an editor has the file open and saves its old buffer later, the messages are removed again
(``textqueue.editing.reconcile``). For that the run adds the line with the number.

A comment belongs to the messages right below it, up to a blank line or the next comment. It is moved if all of them are
moved to the same file. Lines outside of entries are not moved.

**The archive** moves done messages to the end of another file. The steps of a run::

    1  write the messages that remain into a temporary file, .jobs.tq.tmp
    2  lock the archive, with .done.tq.lck, and undo a run of any queue that was interrupted there
    3  write a note, .jobs.tq.archive: the archive, its size, and the text that will be appended
    4  write the path of the note into .done.tq.incoming, next to the archive done.tq
    5  append the moved messages to the archive, and sync it
    6  rename the temporary file to the queue's name                          the run is complete
    7  remove the note and .done.tq.incoming, and unlock the archive

Its invariant: as long as the temporary file of the note exists under its own name, the run is not complete. After a
crash, the next run of that queue, or of another one with the same archive, removes the text of the note from the end of
the archive. The run begins again. As each run undoes the last one before it appends, what comes after the size in the
note is that text, or a part of it. If another program than this library has written after it, it remains. So no message
is lost or repeated, and equal messages remain different.

**The split** moves messages into several new files. Messages that a process has claimed remain, and so do those of an
interrupted drain. The steps of a run, under the queue's lock::

    1  write the new files and what remains, under temporary names; sync them
    2  write a note, .jobs.tq.split: the temporary names and the final ones
    3  rename what remains to the queue's name                                the split is decided
    4  rename the new files to their final names
    5  remove the note

Its invariant: as long as the temporary file of what remains exists under its own name, no message was moved. After a
crash before step 3, the next run removes the temporary files. After a later crash, it completes step 4. So no message
is lost, and none is in two files that a worker reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sej.system.disk import Disk, File, absolute_path, around
from sej.system.locks import end_file_lease
from sej.system.sealed import SealedFile, seal, whole
from textqueue.editing.proof import Place
from textqueue.editing.queue_file import ALL, QueueFile
from textqueue.editing.reconcile import shifted
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.format.mutex import holder_of
from textqueue.format.parser import CONTROL_OF, MessageStatus, decode, digest, encode
from textqueue.format.windows import NUMBER, Generation, Token, is_generation, placed, require_resolved, scan, token_of
from textqueue.log import ARCHIVED, EMPTY, MARKS, WAS
from textqueue.sidecar import (
    Guard,
    named,
    noted,
    open_sidecar,
    real_path,
    replace_sidecar,
    sidecar_path,
    temporary_file,
)

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())


class Part(NamedTuple):
    """An entry: its position and its bytes."""

    position: int
    raw: bytes

    @property
    def is_comment(self) -> bool:
        """Whether it is a comment."""
        return self.raw[0] == _COMMENT


def runs(file: File) -> Iterator[list[Part]]:
    """Yield comments with the messages right below them. A message without a comment above is a run of its own."""
    run: list[Part] = []
    for window in scan(file):
        require_resolved(file, window)
        for position, raw in placed(window.position, window.data):
            comment_below = raw[0] == _COMMENT and not all(part.is_comment for part in run)
            if run and (raw[0] not in _ENTRIES or comment_below or is_generation(raw)):
                yield run
                run = []
            if raw[0] in _ENTRIES and not is_generation(raw):
                run.append(Part(position, raw))
            if run and not run[0].is_comment:
                yield run
                run = []
    if run:
        yield run


def _pieces(file: File, choose: Callable[[Part], str | None]) -> dict[str, list[Part]]:
    """Return what to move to each file. A comment is moved with its messages."""
    pieces: dict[str, list[Part]] = {}
    for run in runs(file):
        chosen = {part.position: choose(part) for part in run if not part.is_comment}
        together = next(iter(chosen.values())) if len(set(chosen.values())) == 1 else None
        for part in run:
            target = chosen.get(part.position, together)
            if target is not None:
                pieces.setdefault(target, []).append(part)
    return pieces


def _count(parts: Sequence[Part]) -> int:
    return sum(not part.is_comment for part in parts)


def write_rest(session: QueueFile, temporary: str, parts: Sequence[Part]) -> Token:
    """Write what remains without some parts into the temporary file, and return its state."""
    ledger, gone = session.ledger, _spans(parts)
    number = (shifted(ledger.line_at, gone), NUMBER % (ledger.number + 1))
    patch = () if ledger.line_at < 0 else (number,)
    return session.write_rest(session.file, temporary, token_of(session.status), gone, (0, b""), *patch)


def put_rest(session: QueueFile, temporary: str, after: Token, parts: Sequence[Part]) -> bool:
    """Rename what remains to the queue's name, and log what was moved; False: another program changed the file."""
    if not session.swap(session.file, temporary, token_of(session.status)):
        return False
    ledger, gone = session.ledger, _spans(parts)
    lines = [
        (ARCHIVED, at, digest(raw), WAS + raw[:1] if raw[0] in MARKS else EMPTY)
        for at, raw in parts
        if raw[0] != _COMMENT
    ]
    generation = Generation(shifted(ledger.line_at, gone), ledger.number + 1)
    ledger.begin(session.moved_claims(gone), after, generation, lines=lines)
    return True


def _spans(parts: Sequence[Part]) -> list[tuple[int, int]]:
    return [(position, len(raw)) for position, raw in parts]


def require_outside_journals(disk: Disk, target: str) -> None:
    """Check that a new file or directory is not among the files of a journal, as in ``orders/jnl/done.tq``."""
    if (journal := around(disk, target)) is not None:
        raise InvalidTextError(
            f"this path is among the files of the journal {journal}, where only SEJ may write: choose a path outside of"
            " it",
            path=target,
        )


_NOTE_BYTES: Final = 1 << 32


def check_target(source: TqFile, target: str, statuses: Collection[MessageStatus]) -> None:
    """Check that a queue file can be archived in a target: another file, outside of journals."""
    require_outside_journals(source.file.disk, target)
    if not set(statuses) <= {MessageStatus.cleared, MessageStatus.critical}:
        raise InvalidTextError(
            "only cleared and critical messages can be archived: pass these statuses only", path=source.path
        )
    here, there = source.file.disk.status(source.path), source.file.disk.status(target)
    if os.path.abspath(target) == os.path.abspath(source.path) or (
        here is not None and there is not None and here.identity == there.identity
    ):
        raise InvalidTextError("the archive must be another file than the queue", path=target)


def archive(source: TqFile, target: str, statuses: Collection[MessageStatus]) -> int:
    """Move the done messages of a queue file to the end of another file, and return their number."""
    check_target(source, target, statuses)
    controls = {CONTROL_OF[status][0] for status in statuses}
    count = None
    for _ in source.attempts("archive", whole=True):
        with source.file as session:
            if session.known and (count := _archive(source, session, target, controls)) is not None:
                break
    with source.file:
        return count or 0  # the ledger is reconciled, in case another process was there as well


def _archive(source: TqFile, session: QueueFile, target: str, controls: Collection[int]) -> int | None:
    """Make one attempt; None if another program changed the file meanwhile: the next attempt undoes this one."""
    disk = session.disk
    temporary, note = session.guard.path(".tmp"), session.guard.path(".archive")
    end_file_lease(session.file)
    _undo(disk, note)
    moved = _pieces(session.file, lambda part: target if part.raw[0] in controls else None).get(target)
    if not moved:
        return 0
    if session.add_line():  # so that a buffer of an editor that is open names its state
        return None
    data = b"".join(_ended(raw) for _, raw in moved)
    rest = write_rest(session, temporary, moved)
    with _locked(disk, target, source.path) as archive:
        run = _Run(os.path.abspath(target), archive.size(), os.path.abspath(temporary), b"")
        _append(source, archive, run._replace(text=_end_of(archive, run.size) + data), note)
        there = disk.status(target)
        if there is None or there.identity != archive.status().identity:  # an editor has replaced the archive
            return None
        if not put_rest(session, temporary, rest, moved):
            return None
        disk.unlink(note)
        disk.unlink(_incoming(target))
    return _count(moved)


class _Run(NamedTuple):
    """A run: the archive, its size before, the temporary file with what remains, and the text that is appended."""

    target: str
    size: int
    temporary: str
    text: bytes


@contextlib.contextmanager
def _locked(disk: Disk, target: str, queue: str | None) -> Iterator[File]:
    """Lock an archive, which may be a queue, and undo what was interrupted there. A new one gets the mode of queue."""
    guard = Guard(target, disk=disk, queue=queue or target)
    try:
        with guard, open_sidecar(disk, target, queue) as archive:
            _settle(disk, target, archive)
            yield archive
    finally:
        guard.close()


def _incoming(target: str) -> str:
    """Return the path of the file that names the note of the run that appends to an archive."""
    return sidecar_path(real_path(target), ".incoming")


def _append(source: TqFile, archive: File, run: _Run, note: str) -> None:
    disk, incoming = source.file.disk, _incoming(run.target)
    paths = {"target": noted(run.target, note), "temporary": noted(run.temporary, note)}
    fields = run._asdict() | paths | {"text": decode(run.text)}
    names = {"note": noted(note, incoming)}
    replace_sidecar(disk, note, seal(note, fields), source.path)
    replace_sidecar(disk, incoming, seal(incoming, names), source.path)
    try:
        archive.write(run.text)
        archive.sync()
    except OSError:
        _cut(archive, run)
        raise


def _undo(disk: Disk, note: str) -> None:
    """Undo what an interrupted run of this queue has appended to an archive."""
    run = _read(disk, note)
    if run is None:
        return
    if disk.status(run.target) is not None:
        with _locked(disk, run.target, None):
            pass
    disk.unlink(note)


def _settle(disk: Disk, target: str, archive: File) -> None:
    """Undo the run of any queue that was interrupted while it appended to an archive, which is locked."""
    incoming = _incoming(target)
    file = _file(disk, incoming)
    fields = file.load()
    if fields is None:
        return
    with file.checking():
        note = named(str(fields["note"]), incoming)
    run = _read(disk, note)
    there = None if run is None else disk.status(run.target)
    if run is not None and there is not None and there.identity == archive.status().identity:
        if disk.status(run.temporary) is not None:
            _cut(archive, run)
            archive.sync()
        disk.unlink(note)
    disk.unlink(incoming)


def _cut(archive: File, run: _Run) -> None:
    """Remove the text of a run from the end of an archive, unless another program has written after it."""
    tail = archive.read(len(run.text) + 1, run.size)
    if tail and _is_torn(tail, run.text):
        archive.truncate(run.size)


def _read(disk: Disk, note: str) -> _Run | None:
    file = _file(disk, note)
    fields = file.load()
    if fields is None:
        return None
    with file.checking():
        target, temporary = named(str(fields["target"]), note), named(str(fields["temporary"]), note)
        return _Run(target, whole(fields["size"]), temporary, encode(fields["text"]))


def _file(disk: Disk, note: str) -> SealedFile:
    way_out = (
        "compare the end of the archive with the queue, remove messages that are in both from the archive, then remove"
        " this file"
    )
    return _note(disk, note, "an interrupted archive run", way_out)


def _note(disk: Disk, note: str, what: str, way_out: str) -> SealedFile:
    return SealedFile(disk, note, f"the note of {what}", way_out, max_bytes=_NOTE_BYTES, error=TextQueueError)


def _is_torn(tail: bytes, text: bytes) -> bool:
    """Return whether a power loss left this of a text: a part of it, with zeros for bytes that were not written."""
    if text.startswith(tail):
        return True
    return len(tail) <= len(text) and all(byte in (0, meant) for byte, meant in zip(tail, text, strict=False))


def _end_of(archive: File, size: int) -> bytes:
    """Return the missing newline of the archive's last line, or empty bytes."""
    return b"" if not size or archive.read(1, size - 1) == b"\n" else b"\n"


def _ended(raw: bytes) -> bytes:
    return raw if raw.endswith(b"\n") else raw + b"\n"


def split(source: TqFile, choose: Callable[[Part], str | None]) -> dict[str, int]:
    """Move messages into new files, and return the number of messages in each.

    choose: returns the path of the new file for a message, or None if it remains. It is called once for each message
    that is not claimed, in order.
    """
    for _ in source.attempts("split", whole=True):
        with source.file as session:
            if session.known and (counts := _split(source, session, choose)) is not None:
                return counts
    return {}


def _split(source: TqFile, session: QueueFile, choose: Callable[[Part], str | None]) -> dict[str, int] | None:
    disk, file = source.file.disk, session.file
    end_file_lease(file)
    rest, note = sidecar_path(source.file.guard.real_path, ".rest"), sidecar_path(source.file.guard.real_path, ".split")
    _complete(disk, rest, note)
    chosen = _pieces(file, lambda part: None if _is_held(source, part) else choose(part))
    pieces = {absolute_path(target): parts for target, parts in chosen.items()}
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
    return {target: _count(parts) for target, parts in chosen.items()} if done else None


def _write(disk: Disk, file: File, pieces: Mapping[str, Sequence[Part]], temporary: Mapping[str, str]) -> None:
    """Write the new files under their temporary names, and sync them."""
    for target, parts in pieces.items():
        with temporary_file(disk, temporary[target], file.path, ALL) as new:
            for _, raw in parts:
                new.write(_ended(raw))
    for directory in {os.path.dirname(target) or "." for target in pieces}:
        disk.sync_dir(directory)  # after step 3, these files have the only copy of their messages


def _is_held(source: TqFile, part: Part) -> bool:
    """Return whether a process has claimed a message, or died while it moved the message into a journal."""
    if part.position not in source.file.ledger.claims and not holder_of(part.raw):
        return False
    return bool(source.holder(Place(part.position, part.raw, -1))) or source.in_transit(part.raw)


def _complete(disk: Disk, rest: str, note: str) -> None:
    """Complete a run that was decided, or remove the files of one that was not."""
    way_out = (
        "rename the new files, whose names end in .new, or remove them if their messages are in the queue, then remove"
        " this file"
    )
    file = _note(disk, note, "an interrupted split", way_out)
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
