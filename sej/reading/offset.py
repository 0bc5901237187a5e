"""Kept offsets: where a reader continues after it died.

``ofs/NAME.ofs`` holds 8 bytes, big endian: the next offset to read (source: the SEJ document, "Offset"). It is replaced
by temporary file, sync and rename, so it is always old or new. Zero bytes: the reader never committed, and its default
applies; one to seven bytes are an error. ``ofs/NAME.lck`` lets one process at a time be the reader of that name.
``ofs/NAME.check`` is a checksummed twin (:mod:`sej.journal.offset_check`), so that a changed byte is noticed. It also
has the
time of the last message of the journal when the reader last had read all. If that message is another one when the
reader is opened, the journal lost messages, and others have their offsets now.

Before an offset is made durable the journal is synced up to it: a kept offset must not outlive its messages.
"""

from __future__ import annotations

import os
import shlex
import threading
from typing import Final, NamedTuple

from sej.checks import DISK, Seconds, one_of, require, seconds
from sej.checks import OFFSET as AN_OFFSET
from sej.errors import (
    BadOffsetFileError,
    ClosedError,
    InvalidNameError,
    LockedError,
    OffsetBeyondEndError,
    OffsetTooSmallError,
    SejError,
)
from sej.journal.directory import Directory, wait_for_journal
from sej.journal.offset_check import (
    After,
    check_reader,
    drop_twin,
    keep_offset,
    known_offset,
    may_have_twin,
    read_kept,
    read_place,
)
from sej.journal.retention import readers_lock
from sej.journal.tail import Tail, sync_up_to
from sej.journal.tier import readable
from sej.journal.view import Journal
from sej.message import FIRST, LAST, Start
from sej.system.disk import OS, Disk
from sej.system.lifecycle import Closing, is_mine
from sej.system.locks import Lock
from sej.system.logs import WARNING, record

_BEYOND_END: Final = one_of(("raise", "rewind"))
_LARGEST_TIMESTAMP: Final = 2**63 - 1


def check_arguments(
    path: str | os.PathLike[str],
    name: str,
    default: int | Start = FIRST,
    *,
    beyond_end: str = "raise",
    wait: bool = False,
    timeout: Seconds | None = None,
    disk: Disk = OS,
) -> tuple[Directory, float | None]:
    """Check the arguments of an :class:`Offset` without opening it; return its directory and its timeout in seconds.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range; InvalidNameError for the name.
    """
    timeout = seconds("timeout", timeout)
    require(default=default, wait=wait, timeout=timeout, disk=disk, beyond_end=(beyond_end, _BEYOND_END))
    directory = Directory(path, disk)
    check_reader(directory, name)
    return directory, timeout


class Offset(Closing):
    """A reader's kept offset, held by one process at a time.

    After :meth:`close` commit and reset raise :class:`~sej.ClosedError`.

    Attributes:
        path: the SEJ directory.
        name: the reader's name.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> with Offset(path, "reader1") as o:
        ...     o.commit(2)
        >>> read_offset(path, "reader1")
        2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        default: int | Start = FIRST,
        *,
        beyond_end: str = "raise",
        wait: bool = False,
        timeout: Seconds | None = None,
        disk: Disk = OS,
    ) -> None:
        """Take the reader's lock and read its offset.

        Args:
            path: the SEJ directory.
            name: letters, digits, ``_``, ``-`` and ``.`` (not first).
            default: where a reader that never committed starts: an offset, FIRST or LAST. LAST is kept on opening, so
                that it means the end at the first opening, not at a later one.
            beyond_end: ``"raise"``, or ``"rewind"`` to move back if the journal lost messages that were read: to its
                end, or to the first message that is newer than the last one that was read, if others have been
                appended. If timestamps are not in order, messages that were read may be read again.
            wait: wait for a journal that does not exist yet. All its messages are new then: LAST begins with the first
                one.
            timeout: with ``wait``, the most seconds to wait, or a duration such as ``"1h"``; None: no limit.
            disk: the disk.

        Raises:
            LockedError: another process has this reader name.
            BadOffsetFileError: the file has one to seven bytes, or not the bytes that were written.
            OffsetBeyondEndError: the kept offset is past the journal's end, or was: other messages are there now.
            InvalidNameError: a new reader may not have this name, or a work queue has it, or needs its lock.
            JournalNotFoundError: there is no journal, with ``wait=True`` after the timeout.
        """
        self._directory, timeout = check_arguments(
            path, name, default, beyond_end=beyond_end, wait=wait, timeout=timeout, disk=disk
        )
        self.name = name
        is_new = wait and wait_for_journal(self._directory, timeout) and default is LAST
        self._directory.require()
        self.path = self._directory.path
        self._disk = disk
        disk.mkdir(self._directory.at("ofs"))
        refuse_queue(self._directory, name)
        self._file_path = self._directory.at("ofs", f"{name}.ofs")
        self._guard = threading.RLock()
        self._lock = Lock(self._directory.at("ofs", f"{name}.lck"), what=f"reader {name!r}", disk=disk)
        self._closed = self._warned = False
        self._beyond_end = beyond_end
        self._tail = Tail(self._directory)
        self._after: After | None = None
        try:
            self._lock.acquire()
            with readers_lock(self._directory):
                self._value = self._open(FIRST if is_new else default)
                if is_new and not self._kept:
                    self._keep(self._value)  # LAST means this message, not the end at the next opening
        except BaseException:
            self._lock.release()
            raise

    @property
    def value(self) -> int:
        """The next offset to read."""
        return self._value

    def commit(self, offset: int) -> None:
        """Commit an offset, durably; one at or below the kept one changes nothing.

        The logger of this module warns once if one is below it. :meth:`reset` goes back.

        Raises:
            OffsetBeyondEndError: the journal ends before it.
            ClosedError: the offset was closed.
            LockedError: a signal handler called this while a call of this object was under way; nothing was done.
        """
        with self._alone():
            self._check(offset)
            if offset > self._value or (offset == self._value and not self._kept):
                self._keep(offset)
            elif offset < self._value and not self._warned:
                self._warned = True
                text = "%s: reader %r is at offset %d: commit(%d) changes nothing, reset(%d) goes back"
                record(__name__, WARNING, text, self.path, self.name, self._value, offset, offset)

    def reset(self, offset: int) -> None:
        """Set an offset, durably, also backwards.

        Raises:
            OffsetBeyondEndError: the journal ends before it.
            OffsetTooSmallError: its message was deleted.
            LockedError: as for :meth:`commit`.
        """
        with self._alone(), readers_lock(self._directory):
            self._check(offset)
            if offset == self._value and self._kept:
                return
            segments = readable(self._directory, offset)
            if segments and offset < segments[0].first_offset:
                raise OffsetTooSmallError(
                    f"message {offset} was deleted; reader {self.name!r} can go back to offset"
                    f" {segments[0].first_offset}",
                    first_available=segments[0].first_offset,
                    path=self._file_path,
                    offset=offset,
                )
            self._keep(offset)

    def close(self) -> None:
        """Release the reader's lock, after a commit in another thread has ended.

        Raises:
            LockedError: as for :meth:`commit`.
        """
        with self._alone():
            self._closed = True
            self._lock.release()

    def __repr__(self) -> str:
        """Show path, name and value."""
        return f"<sej.Offset {self.path!r} {self.name!r} value={self._value}>"

    def _alone(self) -> threading.RLock:
        """Return the mutex, unless this is a signal handler in the middle of a call, which would then end differently.

        After a commit in the handler, the interrupted commit would move the offset back. After a close, it would write
        without the reader's lock.
        """
        if is_mine(self._guard):
            raise LockedError(
                f"a call of reader {self.name!r} is under way in this thread: a signal handler cannot use it before"
                " that call returns",
                path=self._file_path,
            )
        return self._guard

    def _open(self, default: int | Start) -> int:
        kept, after = read_place(self._directory, self.name)
        self._kept = kept is not None
        if kept is None:
            if self._disk.status(self._file_path) is None:
                drop_twin(self._directory, self.name)
            self._disk.open(self._file_path, "append").close()  # from now on retention waits for this reader
            if default is LAST:
                end = self._tail.end_offset()
                self._keep(end)  # LAST means this end, not the end at the next opening
                return end
            return Journal(self.path, disk=self._disk).first_offset if isinstance(default, Start) else default
        # The process that kept it may have died before its name was durable.
        self._disk.sync_dir(self._directory.at("ofs"))
        wrong = misplaced(self._directory, kept, after, self._tail)
        if wrong is None:
            self._after = after
            return kept
        if self._beyond_end == "raise":
            raise OffsetBeyondEndError(
                f"reader {self.name!r} is at offset {kept}, but {wrong.reason}; reset the reader with the command that"
                " `sej doctor` prints, or open it with beyond_end='rewind'",
                path=self._file_path,
                offset=kept,
            )
        self._keep(wrong.unread)
        return wrong.unread

    def _check(self, offset: int) -> None:
        if self._closed or not self._lock.held:
            raise ClosedError(f"reader {self.name!r} is closed; open it again", path=self._file_path)
        AN_OFFSET("offset", offset)

    def _keep(self, offset: int) -> None:
        self._lock.check()
        sync_up_to(self._directory, offset, self._tail)
        if self._disk.status(self._directory.at("tmp")) is None:
            self._disk.mkdir(self._directory.at("tmp"))
        self._after = self._known(offset)
        keep_offset(self._directory, self.name, offset, strict=False, after=self._after)
        self._value = offset
        self._kept = True

    def _known(self, offset: int) -> After | None:
        """Return what is known about the messages before an offset: the last message of the journal, or an earlier one.

        Another message would have to be read for each commit.
        """
        last = self._tail.last
        if last is not None and last[0] + 1 == offset:
            return After(offset, last[1])
        return self._after if self._after is not None and self._after.offset <= offset else None


def refuse_queue(directory: Directory, name: str) -> None:
    """Check that no work queue has the name of a reader: another offset would repeat or drop items.

    Raises:
        InvalidNameError: one has, or the reader's lock would be the queue's.
    """
    for queue in (name, name.removesuffix(".queue")):
        path = directory.at("ofs", f"{queue}.queue")
        if may_have_twin(queue) and directory.disk.status(path) is not None:
            raise InvalidNameError(
                f"{name!r} has the files of the work queue {queue!r}, so it cannot be read, moved or removed as a"
                f" reader; choose another name, or `sej queue purge --name {queue} {shlex.quote(directory.path)}` drops"
                " the items that wait",
                path=path,
            )


class Misplaced(NamedTuple):
    """Why a kept offset cannot be right, and where its reader should continue.

    Attributes:
        reason: what contradicts the offset.
        unread: the first message that the reader has not read; the end of the journal, if that is not known.
        known: whether it is.
    """

    reason: str
    unread: int
    known: bool


def misplaced(directory: Directory, kept: int, after: After | None, tail: Tail) -> Misplaced | None:
    """Compare a kept offset with the journal; None: the messages before it are those that were read.

    If the journal lost messages, others may have their offsets now, whether or not it has grown past the kept offset
    again. The messages that were not read are those after the last one with a timestamp that is known (``after``). If
    none is known, or no newer one can be found, the end of the journal is taken.

    Args:
        directory: the journal.
        kept: the offset.
        after: what is known about the messages before it.
        tail: of this journal.
    """
    end = tail.end_offset()
    if kept > end and tail.past_damage(kept) is None:
        reason = f"the journal ends at {end}: it lost messages or was replaced"
    else:
        there = None if after is None else _time_before(directory, after.offset, tail)
        if after is None or there is None or there == after.timestamp:
            return None
        reason = (
            f"message {after.offset - 1} is not the one that it has read: the journal lost messages or was replaced,"
            " and others have their offsets now"
        )
    newer = None if after is None else _first_newer(directory, after.timestamp)
    return Misplaced(reason, min(kept, end, end if newer is None else newer), newer is not None)


def wrong_place(directory: Directory, name: str, tail: Tail) -> Misplaced | None:
    """Return why the kept offset of a reader or queue cannot be right; None: it can be, or there is none."""
    try:
        kept, after = read_place(directory, name)
    except BadOffsetFileError as error:
        known = known_offset(directory, name)
        unread = Journal(directory.path, disk=directory.disk).first_offset if known is None else known
        return Misplaced(str(error), min(unread, tail.end_offset()), known is not None)
    return None if kept is None else misplaced(directory, kept, after, tail)


def _first_newer(directory: Directory, timestamp: int) -> int | None:
    """Return the first message that is newer than a timestamp; None: it cannot be found, as in a damaged segment."""
    if timestamp == _LARGEST_TIMESTAMP:
        return None
    try:
        return Journal(directory.path, disk=directory.disk).find_time(timestamp + 1)
    except SejError:
        return None


def _time_before(directory: Directory, offset: int, tail: Tail) -> int | None:
    """Return the timestamp of the message before an offset; None if it was deleted or cannot be read."""
    last = tail.last
    if last is not None and last[0] == offset - 1:
        return last[1]
    from sej.reading.scanner import Scanner  # here, because a reader that has read all does not come here

    try:
        with Scanner(directory.path, offset - 1, timeout=0.0, disk=directory.disk) as scanner:
            found = scanner.read(1)
    except SejError:
        return None
    return found[0].timestamp if found and found[0].offset == offset - 1 else None


def read_offset(path: str | os.PathLike[str], name: str, *, disk: Disk = OS) -> int | None:
    """Return a reader's kept offset, without its lock; None: it never committed.

    Raises:
        BadOffsetFileError: the file has one to seven bytes, or not the bytes that were written.
        InvalidNameError: there is no reader of this name, and a new one may not have it.
        JournalNotFoundError: there is no journal.
    """
    DISK("disk", disk)
    directory = Directory(path, disk)
    check_reader(directory, name)
    directory.require()
    return read_kept(directory, name)
