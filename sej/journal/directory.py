"""The files of a SEJ directory: its segments, the gaps that are recorded, and which journal it is.

::

    jnl/0123456789abcdef.jnl   segments, named by their first offset; nothing foreign is ever put here
    jnl.lck                    the writer's lock; names its holder
    ofs/NAME.ofs, NAME.lck     kept offsets of readers and their locks
    ofs/NAME.check             their twins, with a checksum
    kept/                      cut tails and damaged bytes: nothing is ever thrown away
    tmp/                       files before their rename
    idx/                       the sidecar index, one file a segment; rebuilt at any time
    gaps/                      gaps that a repair recorded
    token                      the fencing token, see :mod:`sej.journal.writer_lock`
    txn/                       pending and done batches of ``append_once``
    tier.json                  where messages are that left jnl/, see :mod:`sej.journal.tier`
    id                         16 random bytes and their checksum: this journal's identity

Source: the SEJ document, "SEJ Directory"; everything except ``jnl/``, ``jnl.lck`` and ``ofs/`` is ours, and the
original ignores it. Reading creates nothing.

``gaps/<first>.gap`` holds one gap as JSON with a checksum (:mod:`sej.system.sealed`): the first missing offset, the
next existing one, and the file with the damaged bytes. Readers pass a recorded gap and report it. The original cannot.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Self

from sej.checks import PATH
from sej.codec.format import MAX_OFFSET
from sej.errors import CorruptionError, InvalidNameError, JournalNotFoundError, NotAJournalError
from sej.system.checksum import crc32c
from sej.system.disk import Disk, File, absolute_path, read_small, replace_file
from sej.system.disk import is_journal as is_journal
from sej.system.durable import KeptPosition
from sej.system.sealed import SealedFile, whole

_HEX: Final = "0123456789abcdef"
_DIGITS: Final = 16
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_NAME_BYTES: Final = 200
_GAP_BYTES: Final = 1 << 16
ID_BYTES: Final = 16
ID_SIZE: Final = ID_BYTES + 4
"""The size of the file: a CRC32C follows the random bytes."""
_LOOK_S: Final = 0.2
_SOON_S: Final = 0.01
_GRACE_S: Final = 1.0
"""A directory with other entries and without ``jnl/``, or without a segment, may be a journal that a writer is creating
at this moment."""
UNFINISHED: Final[tuple[list[str], ...]] = ([], ["ofs"])
"""What is in a directory in which a writer creates a journal, or was killed before it had."""


class Segment(NamedTuple):
    """One ``.jnl`` file."""

    first_offset: int
    path: str

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)


class Directory:
    """The paths of one SEJ directory."""

    __slots__ = ("disk", "jnl", "path", "prefix")

    def __init__(self, path: str | os.PathLike[str], disk: Disk) -> None:
        """Set the path, with its links resolved. A relative path means the current directory of this call."""
        if type(path) is not str or not path or "\0" in path:  # else nothing is left to check
            PATH("path", path)
        self.path = path = absolute_path(path)
        self.prefix = path if path.endswith(os.sep) else path + os.sep
        """The path with its separator."""
        self.jnl = self.prefix + "jnl"
        """The directory of the segments."""
        self.disk = disk

    def at(self, *parts: str) -> str:
        """Return a path in it."""
        return self.prefix + os.sep.join(parts)

    def segment(self, first_offset: int) -> Segment:
        """Return the segment that starts with an offset, whether or not it exists."""
        return Segment(first_offset, self.at("jnl", f"{first_offset:016x}.jnl"))

    def kept_position(self) -> KeptPosition:
        """Return the durable position of the last segment; nothing is opened."""
        return KeptPosition(self.disk, self.prefix + "idx/durable")

    def sync_names(self) -> None:
        """Sync the names of the segments, which another process may have left unsynced."""
        self.disk.sync_dir(self.jnl)
        self.disk.sync_dir(self.path)

    def queue_names(self) -> list[str]:
        """Return the names of the queues over the journal."""
        return self._named(".queue")

    def reader_names(self) -> list[str]:
        """Return the names of the readers that keep an offset, of queues too."""
        return self._named(".ofs")

    def _named(self, suffix: str) -> list[str]:
        return sorted(name[: -len(suffix)] for name in self.names("ofs") if name.endswith(suffix) and name != suffix)

    def require(self) -> None:
        """Check that it is a SEJ directory.

        Raises:
            JournalNotFoundError: the path does not exist, or is a directory that a writer has begun to create.
            NotAJournalError: a file, or a directory without ``jnl/``.
        """
        there = self.disk.status(self.path)
        if there is None:
            self.refuse_sharded()
            raise JournalNotFoundError(
                "there is no journal here; sej.Writer or `sej append` creates one, reading does not", path=self.path
            )
        if not there.is_dir:
            raise NotAJournalError(f"this is a file; expected a SEJ directory{self._near()}", path=self.path)
        inside = self.disk.status(self.jnl)
        if inside is None:
            names = self.names()
            if names in UNFINISHED:
                raise JournalNotFoundError(
                    "this directory is empty; sej.Writer or `sej append` creates a journal in it", path=self.path
                )
            if "jnl" in names:  # created meanwhile
                inside = self.disk.status(self.jnl)
        if inside is None or not inside.is_dir:
            raise NotAJournalError(
                f"this directory has no jnl/, so it is not a SEJ directory{self._near()}", path=self.path
            )

    def refuse_sharded(self) -> None:
        """Refuse the name of a sharded journal, such as ``data/orders.2``: its shards are next to it.

        Raises:
            JournalNotFoundError: the name of a shard begins with this one.
        """
        parent, name = os.path.split(os.path.normpath(self.path))
        if not re.search(r"(^|\.)[1-9a]$", name):
            return  # and the parent is not listed: on a hub it has thousands of names
        shard = re.compile(rf"{re.escape(name)}\.[0-9a-f]{{3}}")
        with suppress(OSError):
            for found in sorted(filter(shard.fullmatch, self.disk.list(parent))):
                raise JournalNotFoundError(
                    f"this is the name of a sharded journal; pass one of its shards, as in {found!r}", path=self.path
                )

    def _near(self) -> str:
        """Return the end of an error that names the journal around this path or inside it, or the right command."""
        around, jnl, _ = f"{self.path}{os.sep}".rpartition(f"{os.sep}jnl{os.sep}")
        if jnl:
            return f"; it belongs to {around}"
        if self.path.endswith(".tq"):
            return "; `sej tq` reads .tq files"
        with suppress(OSError):
            for name in sorted(self.names()):
                if self.disk.status(self.at(name, "jnl")) is not None:
                    return f", but holds some: pass one of them, as in {self.at(name)}"
        return ""

    def sealed(self, what: str, way_out: str, *parts: str, max_bytes: int = 1 << 20) -> SealedFile:
        """Return a small JSON file in it, which is replaced through ``tmp/``; arguments as for :class:`SealedFile`."""
        temporary = self.at("tmp", parts[-1])
        return SealedFile(self.disk, self.at(*parts), what, way_out, temporary=temporary, max_bytes=max_bytes)

    def names(self, *parts: str) -> list[str]:
        """Return the names in it, or in a directory in it; none if it is missing."""
        try:
            return self.disk.list(self.prefix + os.sep.join(parts))
        except FileNotFoundError:
            return []

    def segments(self) -> list[Segment]:
        """Return its segments by first offset. Names that are not 16 lower-case hex digits and ``.jnl`` are ignored.

        A name that is added while the directory is listed may be missing although a later one is listed: a caller that
        finds a gap lists again.

        Raises:
            CorruptionError: a segment's name exceeds the largest offset.
        """
        names: list[str] | None = None
        while names is None:
            try:
                names = self.disk.list(self.jnl)
            except (FileNotFoundError, NotADirectoryError):
                self.require()  # or it was created meanwhile
        prefix = self.jnl + os.sep
        found = [Segment(int(name[:_DIGITS], 16), prefix + name) for name in names if _is_segment(name)]
        if found and found[-1].first_offset > MAX_OFFSET:
            raise CorruptionError(
                f"offset {found[-1].first_offset} in the file's name exceeds the largest offset; move this file out"
                " of jnl/",
                path=found[-1].path,
            )
        return found

    def foreign(self) -> list[str]:
        """Return names in ``jnl/`` that are not segments: the original's scanner fails on them."""
        return [name for name in self.names("jnl") if not _is_segment(name)]


def _is_segment(name: str) -> bool:
    """Return whether it is 16 lower-case hex digits and ``.jnl``. Compiling a pattern takes a new process longer."""
    return len(name) == _DIGITS + len(".jnl") and name.endswith(".jnl") and not name[:_DIGITS].strip(_HEX)


def journals_in(disk: Disk, root: str) -> list[str]:
    """Return the names of the SEJ directories in a directory; names that begin with a dot are ignored."""
    return [name for name in disk.list(root) if not name.startswith(".") and is_journal(disk, os.path.join(root, name))]


def containing(segments: list[Segment], offset: int) -> int:
    """Return the index of the segment that contains offset or ends before it; -1 if offset is before all segments."""
    return bisect_right(segments, offset, key=lambda segment: segment.first_offset) - 1


def is_still(disk: Disk, segment: Segment, file: File) -> bool:
    """Return whether a segment's name still belongs to the opened file."""
    there = disk.status(segment.path)
    return there is not None and there.identity == file.status().identity


def check_name(name: str, what: str) -> str:
    """Check that a name cannot leave its directory.

    Raises:
        InvalidNameError: it is not letters, digits, ``_``, ``-`` and ``.`` (not first), at most 200.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {name!r} ({type(name).__name__})")
    if not re.fullmatch(_NAME, name) or len(name) > _NAME_BYTES:
        raise InvalidNameError(
            f"{what} must be ASCII letters, digits, '_', '-' and '.' (not first), at most {_NAME_BYTES}, got {name!r}"
        )
    return name


class Gap(NamedTuple):
    """Lost offsets.

    Attributes:
        start: the first missing offset.
        stop: the next existing offset.
        reason: what was found.
        kept: the file with the damaged bytes, or None.
    """

    start: int
    stop: int
    reason: str
    kept: str | None = None

    @property
    def missing(self) -> int:
        """The number of missing messages."""
        return self.stop - self.start

    def __str__(self) -> str:
        """Format as one line."""
        lost = f"message {self.start} is" if self.missing == 1 else f"messages {self.start} to {self.stop - 1} are"
        return f"{lost} lost: {self.reason}"


def read_gaps(directory: Directory) -> list[Gap]:
    """Return the recorded gaps of a journal, by offset.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    return sorted((_read_gap(directory, name) for name in _gap_names(directory)), key=lambda gap: gap[:2])


def is_recorded(gaps: list[Gap], start: int, stop: int) -> bool:
    """Return whether one of the gaps contains the offsets [start, stop)."""
    return any(gap.start <= start and stop <= gap.stop for gap in gaps)


def count_messages(directory: Directory, start: int, stop: int) -> int:
    """Return how many of the offsets [start, stop) are in no recorded gap. Gaps of two repairs may overlap.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    found = 0
    for gap in read_gaps(directory):
        found += max(min(gap.start, stop) - start, 0)
        start = max(start, gap.stop)
    return found + max(stop - start, 0)


def gap_at(directory: Directory, offset: int) -> Gap | None:
    """Return the recorded gap that contains an offset, or None; of two that overlap, the one that starts later.

    A file is named by the first offset of its gap, so usually one file is read.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    for name in sorted(_gap_names(directory), reverse=True):
        if name <= _gap_name(offset):
            gap = _read_gap(directory, name)
            if gap.start <= offset < gap.stop:
                return gap
    return None


def _gap_name(start: int) -> str:
    return f"{start:016x}.gap"


def _gap_names(directory: Directory) -> list[str]:
    return [name for name in directory.names("gaps") if name.endswith(".gap")]


def _read_gap(directory: Directory, name: str) -> Gap:
    file = _gap_file(directory, name)
    row = file.load() or {}
    with file.checking():
        start = whole(row["start"], 0, MAX_OFFSET - 1)
        kept = row["kept"]
        return Gap(start, whole(row["stop"], start + 1, MAX_OFFSET), str(row["reason"]), kept and str(kept))


def _gap_file(directory: Directory, name: str) -> SealedFile:
    way_out = "move it to kept/ and run `sej repair`, which records the gap again"
    return directory.sealed("a readable gap", way_out, "gaps", name, max_bytes=_GAP_BYTES)


def record_gap(directory: Directory, gap: Gap) -> None:
    """Record a gap, durably."""
    for name in ("gaps", "tmp"):
        directory.disk.mkdir(directory.at(name))
    _gap_file(directory, _gap_name(gap.start)).store(gap._asdict())


def journal_id(directory: Directory, *, create: bool = False) -> bytes | None:
    """Return the journal's identity, 16 random bytes; None if it has none and ``create`` is False.

    Raises:
        CorruptionError: the file does not hold an identity, or not the one that was written.
    """
    disk, path = directory.disk, directory.at("id")
    try:
        data = read_small(disk, path, ID_SIZE)
    except FileNotFoundError:
        if not create:
            return None
        fresh = os.urandom(ID_BYTES)
        disk.mkdir(directory.at("tmp"))
        replace_file(disk, directory.at("tmp", "id"), path, fresh + crc32c(fresh).to_bytes(4))
        return fresh
    identity = data[:ID_BYTES]
    if data != identity + crc32c(identity).to_bytes(4):
        raise CorruptionError(
            "this is not the identity that was written for this journal; restore the file from a copy, or"
            " remove it so that the next writer makes a new one. Streams and dead letters then treat this"
            " journal as another one",
            path=path,
            position=0,
        )
    return identity


class Incarnation(NamedTuple):
    """What changes if a SEJ directory is re-created under the same name.

    Attributes:
        jnl: the device and inode of its segments' directory, or None if it is missing.
        named: the device, inode and time of its identity file, or None without one, as in journals of the original.
        content: the bytes of that file, or None.
    """

    jnl: object
    named: object
    content: bytes | None

    @classmethod
    def look(cls, directory: Directory) -> Self:
        """Read these of the directory as it is now."""
        return cls(_segments_of(directory), _identity_of(directory), _content_of(directory))

    def is_still(self, directory: Directory) -> bool:
        """Return whether it is the same directory; it still is after it got its first identity.

        If there is an identity, only that is checked: this runs for every segment, and before every step of a copy.
        If its file was touched, or replaced by an equal one, the directory of the segments decides too.
        """
        if self.named is not None:
            if _identity_of(directory) == self.named:
                return True
            if self.content is None or _content_of(directory) != self.content:
                return False
        return _segments_of(directory) == self.jnl


def _segments_of(directory: Directory) -> object:
    status = directory.disk.status(directory.jnl)
    return status and status.identity


def _identity_of(directory: Directory) -> object:
    status = directory.disk.status(directory.at("id"))
    return status and (status.identity, status.mtime_ns)


def _content_of(directory: Directory) -> bytes | None:
    try:
        return read_small(directory.disk, directory.at("id"), ID_SIZE)
    except (FileNotFoundError, CorruptionError):
        return None


def wait_for_journal(
    directory: Directory, timeout: float | None, stopped: Callable[[], bool] = lambda: False
) -> bool | None:
    """Wait until a journal exists; return False if it was there already, None if the wait was stopped.

    A journal that appears usually has a segment when this returns, so that its first offset is known.

    Args:
        directory: the journal; its parent directories may be missing too.
        timeout: seconds to wait; 0 does not wait, None waits without a limit.
        stopped: called at least five times in a second; it returns whether to stop waiting.

    Raises:
        JournalNotFoundError: the journal did not appear within the timeout.
        NotAJournalError: the path is a file, or a directory of something else.

    Example:
        >>> import tempfile, sej
        >>> from sej.system.disk import OS
        >>> path = tempfile.mkdtemp()
        >>> sej.Writer(path).close()
        >>> wait_for_journal(Directory(path, OS), timeout=None)
        False
    """
    from sej.system.watch import Watch  # here, because few processes wait, and each writer loads this module

    start = time.monotonic()
    odd_since: float | None = None
    waited = False
    with Watch(directory.path) as watch:
        while True:
            now = time.monotonic()
            pause = _LOOK_S
            try:
                directory.require()
                odd_since = now if odd_since is None else odd_since
                if not waited or directory.segments() or now - odd_since >= _GRACE_S:
                    return waited
                pause = _SOON_S
            except JournalNotFoundError:
                if timeout is not None and now - start >= timeout:
                    raise
                if timeout is not None:
                    pause = min(start + timeout - now, _LOOK_S)
                odd_since = None
            except NotAJournalError:
                odd_since = now if odd_since is None else odd_since
                there = directory.disk.status(directory.path)
                if (there is not None and not there.is_dir) or now - odd_since >= _GRACE_S:
                    raise
            if stopped():
                return None
            waited = True
            watch.wait(pause)
