"""``textqueue.check``: probable typing mistakes in a queue file, with their places and how to fix them.

None of them stops the queue: it keeps and skips lines that it does not understand.

**Details** are what a person wants to know about a message in addition to its text: its line, its age, and who has
claimed it. The ledger has the time of each edit by a program: the time at which the file was changed. A message that no
program has edited has no time of its own. It is at least as old as the last change of its file.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from shlex import quote
from typing import Final, Literal, NamedTuple

from sej.checks import require
from sej.errors import FileTypeError
from sej.system.disk import OS, Disk, File, absolute_path, is_mount_point
from textqueue.cursor import pieces
from textqueue.editing.message import Message
from textqueue.editing.tq_file import TqFile
from textqueue.files import is_special
from textqueue.format.mutex import HELD, ROOM, holder_of, host_of, is_alive, is_here, mutex_of
from textqueue.format.parser import (
    BOM,
    CONFLICT,
    CONFLICT_COPY,
    CONTROL_OF,
    CONTROLS,
    MUTEX,
    RETRIES,
    STATUS_OF,
    Entry,
    MessageStatus,
    Stray,
    decode,
    digest,
    name_of,
    parse,
    plan_error,
    retries_of,
    variables_of,
)
from textqueue.format.windows import generations_in, placed, scan
from textqueue.log import CHANGES, CLAIMS, Record
from textqueue.sidecar import sidecar_path

Severity = Literal["error", "warning", "hint"]
_KNOWN: Final = " ".join(repr(chr(control.byte)) for control in CONTROLS)


class Problem(NamedTuple):
    """A probable mistake in a queue file.

    Attributes:
        path: the file.
        line: the line number, from 1.
        column: the column, from 1, in characters.
        what: the problem, and how the queue treats it.
        mend: how to fix it.
        position: the position in the file, in bytes.
        severity: ``"error"``: the queue skips the line, or uses it in another way than it seems; ``"warning"``: the
            queue uses it, and it may not be what was meant; ``"hint"``: no action is needed.
    """

    path: str
    line: int
    column: int
    what: str
    mend: str
    position: int
    severity: Severity = "warning"

    def __str__(self) -> str:
        """Return the problem in the form of compilers, so that editors can jump to it."""
        return f"{self.path}:{self.line}:{self.column}: {self.what}; {self.mend}"


class _Finding(NamedTuple):
    at: int  # relative to the start of the part
    what: str
    mend: str
    severity: Severity = "warning"


def check(path: str | os.PathLike[str], *, disk: Disk = OS) -> list[Problem]:
    """Check a queue file for probable mistakes.

    Args:
        path: the file.
        disk: the file system.

    Returns:
        The problems, in the order of the file; an empty list if there are none.

    Raises:
        FileNotFoundError: the file does not exist.
        FileTypeError: the path is a directory.
    """
    require(path=path, disk=disk)
    name = os.fspath(path)
    if is_special(name):
        what = "this is a pipe, a socket or a device, which the queue of a directory skips"
        return [Problem(name, 1, 1, what, "move it out of the directory, or rename it", 0, "error")]
    there = disk.status(name)
    if there is not None and there.is_dir:
        raise FileTypeError("expected a .tq file, got a directory; check each of its files", path=name)
    try:
        file = disk.open(absolute_path(name), "read")
    except FileNotFoundError as error:
        why = "the file does not exist; TextQueue(path).append or `sej tq add` creates it"
        raise FileNotFoundError(error.errno, why, name) from None
    found = [*_unfinished(name, disk), *_other_names(name, disk)]
    line = 1
    with file:
        for window in scan(file):
            if window.position == len(BOM) and file.read(len(BOM), 0) == BOM:
                found.append(_mark(name))
            found += _problems(name, window.data, window.position, line, end=window.at_end)
            line += window.data.count(b"\n")
    return found


def _unfinished(name: str, disk: Disk) -> list[Problem]:
    """Return the problem of a split that was interrupted."""
    if disk.status(sidecar_path(absolute_path(name), ".split")) is None:
        return []
    what = "a split of this file runs or was interrupted: messages may be in files named .new, which no worker reads"
    return [
        Problem(name, 1, 1, what, "if none runs, run `sej tq split` on this file again, which completes it", 0, "error")
    ]


def _other_names(name: str, disk: Disk) -> Iterator[Problem]:
    """Yield the problems of a file that programs may open under another name. Symbolic links are followed."""
    if CONFLICT_COPY.search(os.path.basename(name)):
        what = "this is a conflict copy of a program that synchronises files: no worker takes a message of this file"
        original = CONFLICT_COPY.sub("", os.path.basename(name))
        yield Problem(name, 1, 1, what, f"add what is missing to {original!r}, then remove this file", 0, "error")
    status = disk.status(name)
    if status is not None and status.links > 1:
        what = f"the file has {status.links} names (hard links)"
    elif is_mount_point(name):
        what = "the file is mounted here from another directory"
    else:
        return
    what += ": programs that use another name have another lock and ledger, and may get the same messages"
    yield Problem(name, 1, 1, what, "use one name: copy the file instead of linking it, or mount its directory", 0)


def check_text(data: bytes, name: str, *, line: int = 1) -> list[Problem]:
    """Check the text of a queue file from a line on, as :func:`check` does."""
    rest = data.removeprefix(BOM) if line == 1 else data
    marks = [_mark(name)] if len(rest) < len(data) else []
    return [*marks, *_problems(name, rest, len(data) - len(rest), line, end=True)]


def _mark(name: str) -> Problem:
    return Problem(name, 1, 1, "the file begins with a byte order mark", "save it as UTF-8 without BOM", 0)


def _problems(name: str, data: bytes, position: int, line: int, *, end: bool) -> Iterator[Problem]:
    """Yield the problems of whole chunks that begin at a position and a line. end: they are the last ones."""
    is_sound = _is_sound(data)
    line += data.count(b"\n") if is_sound else 0
    for part in () if is_sound else parse(data, start=False):
        found = list(_conflict(part.raw)) or (_entry(part) if isinstance(part, Entry) else _stray(part))
        for at, what, mend, severity in found:
            before = part.raw[:at]
            column = len(decode(before[before.rfind(b"\n") + 1 :])) + 1
            where = position + part.position + at
            yield Problem(name, line + before.count(b"\n"), column, what, mend, where, severity)
        line += part.raw.count(b"\n")
    if end and data and not data.endswith(b"\n"):
        column = len(decode(data[data.rfind(b"\n") + 1 :])) + 1
        what = "the last line has no newline, so it counts only after the file has been unchanged for a while"
        mend = "no fix is needed; a newline at its end makes it count now"
        yield Problem(name, line, column, what, mend, position + len(data), "hint")


_BEGINS: Final = frozenset({b"", *(bytes([control.byte]) for control in CONTROLS)})
_ODD: Final = b"\r", b"\n\n ", b"\n\n\\", b"\n=======", b"<<<<<<<", b"|||||||", b">>>>>>>"
"""What may be a problem, after a newline: other blank lines, entries that begin with no text, conflict markers."""
_TEXT_AFTER_VARIABLE: Final = re.compile(rb"\n\\[^\n]*\n ")
_VARIABLES: Final = re.compile(rb"(?:\n\\[^\n]*)+")


def _is_sound(data: bytes) -> bool:
    """Return whether whole chunks have no problem, except that the last newline is missing.

    In a large file, that is true for nearly all, and found without a look at each message.
    """
    lines = data.split(b"\n")
    begins = {line[:1] for line in lines}
    if not begins <= _BEGINS or lines[0][:1] in (b" ", b"\\"):
        return False
    if b" " in begins and b"\\" in begins and _TEXT_AFTER_VARIABLE.search(data):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    odd = any(part in data for part in _ODD) or data.startswith((b"=======", b"\n ", b"\n\\"))
    return not odd and (b"\\" not in begins or all(map(_are_sound, set(_VARIABLES.findall(data)))))


@lru_cache
def _are_sound(variables: bytes) -> bool:
    """Return whether variables are sound below a queued message."""
    raw = b"-x" + variables
    return b"@" not in raw and not any(_entry(Entry(0, MessageStatus.queued, b"x", (), raw)))


def _conflict(raw: bytes) -> Iterator[_Finding]:
    mend = "keep one version of each message and remove the markers"
    if CONFLICT.match(raw):
        what = f"this is a conflict marker, {decode(raw).strip()[:40]!r}: no worker takes a message of this file"
        yield _Finding(0, what, mend, "error")
    elif raw.rstrip() == b"=" * 7:
        yield _Finding(0, "this looks like a conflict marker, and counts as a cleared message", mend)


def _stray(part: Stray) -> Iterator[_Finding]:
    if part.kind == "continuation of nothing":
        mend = "put it right below a message's text, or begin it with '-' or '#'"
        yield _Finding(0, "this continuation line has no entry above, so it is skipped", mend, "error")
    elif part.kind == "variable of nothing":
        what = "this variable has no message above, so it is skipped"
        yield _Finding(0, what, "put it right below its message", "error")
    elif part.kind == "unknown control character":
        first = decode(part.raw)[0]
        if first.isprintable():
            shown, mend = repr(first), f"begin it with one of {_KNOWN}"
        else:  # a control character, or a byte of UTF-16
            shown, mend = f"byte 0x{part.raw[0]:02x}", f"save the file as UTF-8, or begin it with one of {_KNOWN}"
        yield _Finding(0, f"a line cannot begin with {shown}, so it is skipped", mend, "error")


def _entry(part: Entry) -> Iterator[_Finding]:
    try:
        part.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{part.raw[error.start]:02x} is not UTF-8; it is kept as it is"
        yield _Finding(error.start, what, "save the file as UTF-8")
    if part.status is MessageStatus.comment:
        return
    names: set[str] = set()
    for position, data in variables_of(part.raw):
        name = name_of(data)
        if name is None or b"=" not in data:
            continue
        if name in names:
            yield _Finding(
                position, f"this is a second variable {name!r}; only the first is used", "rename or remove it"
            )
        names.add(name)
        text = decode(data.partition(b"=")[2]).strip()
        if name == RETRIES and retries_of(b"\n\\" + data) is None:
            yield _Finding(
                position, f"retries must be a number, got {text[:40]!r}; it is not counted down", "write retries=3"
            )
        if wrong := plan_error(name, text):
            yield _Finding(position, *wrong)
    mutex = mutex_of(part.raw)
    if mutex is None or part.status is not MessageStatus.queued:
        return
    if len(mutex.data) < ROOM:
        room = f"{MUTEX}= has {len(mutex.data)} bytes, but a claim needs {ROOM}; it is written into the ledger instead"
        yield _Finding(mutex.position, room, f"add spaces after {MUTEX}= until it has {ROOM} bytes", "hint")
    if mutex.holder and not is_alive(mutex.holder):
        gone = f"{decode(mutex.holder)} claimed this message and has ended; the next worker claims it again"
        yield _Finding(mutex.position, gone, f"no fix is needed; spaces after {MUTEX}= free it now", "hint")
    elif mutex.holder and (host := host_of(mutex.holder)):
        what = f"{decode(mutex.holder)} claimed this message, and whether it has ended cannot be seen from this host"
        way = f"`sej tq give-back --dead-host {quote(host)}`"
        mend = f"no worker here takes it; if its process has ended, run {way} on this file"
        yield _Finding(mutex.position, what, mend, "hint")


_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]
_BLOCK: Final = 1 << 20


class Detail(NamedTuple):
    """A message with the number of its first line, from 1, its age, and its holder.

    The age is the time since a program added, marked or claimed it, otherwise since its file was changed. The holder is
    the process that has claimed it and is alive, or the text that a user wrote into its mutex.
    """

    message: Message
    line: int
    age_s: float
    holder: str | None


def details(messages: Iterable[Message], *, now_ns: int) -> Iterator[Detail]:
    """Yield the details of messages in their order. The messages of a file that has vanished are left out."""
    for source, group in itertools.groupby(messages, lambda message: message.source):
        for file in _opened(source):
            for message in group:
                holder, since_ns = file.claim(message, digest(message.raw))
                yield Detail(message, file.line(message.position), max(now_ns - since_ns, 0) / 1e9, holder)


class Totals(NamedTuple):
    """How many messages have each status, how many are claimed, and the age of the oldest queued one, if any."""

    counts: dict[MessageStatus, int]
    claimed: int
    oldest_s: float | None


def totals(sources: Iterable[TqFile], *, now_ns: int) -> Totals:
    """Count the messages of some files. A message is looked at only if the ledger or a claim is about it."""
    counts = dict.fromkeys(MessageStatus, 0)
    claimed, oldest_ns = 0, now_ns + 1
    for source in sources:
        next(pieces(source), None)  # after a save by an editor, this brings the ledger in line with the file
        for file in _opened(source):
            for position, data, epoch in pieces(source):
                text = b"\n" + data
                for control, status in STATUS_OF.items():
                    counts[status] += text.count(b"\n%c" % control)
                counts[MessageStatus.comment] -= len(generations_in(data))
                for holder, since_ns in file.claims(position, data, epoch) if b"\n-" in text else ():
                    claimed += holder is not None
                    oldest_ns = min(oldest_ns, since_ns)
    return Totals(counts, claimed, None if oldest_ns > now_ns else (now_ns - oldest_ns) / 1e9)


def _opened(source: TqFile) -> Iterator[_File]:
    """Yield the file of a source, unless an editor is between two renames."""
    with suppress(FileNotFoundError), closing(_File(source)) as file:
        yield file


class _File:
    """One file of the queue: its ledger, and the lines up to the last message."""

    def __init__(self, source: TqFile) -> None:
        self.source = source
        self._file: File = source.reading()
        self._changed_ns = self._file.status().mtime_ns
        self._position, self._lines = 0, 1
        with source.file.guard.threads:
            source.file.refresh()
            ledger = source.file.ledger
            self._claims = dict(ledger.claims)
            self._epoch = ledger.epoch
            edits = [one for one in ledger.history() if one.kind in CHANGES or one.kind in CLAIMS]
        # For a user who may only read, lines may have moved since the positions in the ledger were correct.
        self._unplaced: dict[bytes, list[Record]] = defaultdict(list)
        for record in self._claims.values():
            self._unplaced[record.digest].append(record)
        # Equal messages are interchangeable: the newest edit counts for all that have no edit at their position.
        self._edited = {record.digest: record.token[2] for record in edits}
        self._edited_at = {(record.position, record.digest): record.token[2] for record in edits}

    def close(self) -> None:
        self._file.close()

    def line(self, position: int) -> int:
        while self._position < position:
            data = self._file.read(min(_BLOCK, position - self._position), self._position)
            if not data:
                break
            self._lines += data.count(b"\n")
            self._position += len(data)
        return self._lines

    def claims(self, position: int, data: bytes, epoch: int) -> Iterator[tuple[str | None, int]]:
        """Yield holder and time of the queued messages in some entries; once for all about which nothing is known."""
        held = self._claims or HELD.search(data)
        if not self._edited and not held:
            yield None, self._changed_ns
            return
        for at, raw in placed(position, data):
            if raw[0] == _QUEUED:
                name = digest(raw)
                known = held or name in self._edited
                yield self.claim(Message(self.source, raw, at, epoch), name) if known else (None, self._changed_ns)

    def claim(self, message: Message, name: bytes) -> tuple[str | None, int]:
        """Return the holder of a message, and the time of its last edit in nanoseconds since 1970."""
        since_ns = self._edited_at.get((message.position, name), self._edited.get(name, self._changed_ns))
        if message.epoch == self._epoch:
            record = self._claims.get(message.position)
        else:
            record = self._unplaced[name].pop(0) if self._unplaced.get(name) else None
        owner = record.detail if record is not None and record.digest == name else holder_of(message.raw)
        if record is None and message.epoch == self._epoch and is_here(message.raw):  # a user copied the message
            return None, since_ns
        return decode(self.source.leases.holder(owner)) or None, since_ns
