"""Which journal it is: 16 random bytes with a checksum in ``id``. Whether it was re-created, and when it exists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from sej.errors import CorruptionError, JournalNotFoundError, NotAJournalError
from sej.journal.directory import Directory
from sej.journal.index import CHECK
from sej.system.checksum import crc32c
from sej.system.disk import read_small, replace_file

ID_BYTES: Final = 16
ID_SIZE: Final = ID_BYTES + CHECK.size
"""The size of the file: a CRC32C follows the random bytes."""
_LOOK_S: Final = 0.2
_SOON_S: Final = 0.01
_GRACE_S: Final = 1.0
"""A directory with other entries and without ``jnl/``, or without a segment, may be a journal that a writer is creating
at this moment."""


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
        replace_file(disk, directory.at("tmp", "id"), path, fresh + CHECK.pack(crc32c(fresh)))
        return fresh
    identity = data[:ID_BYTES]
    if data != identity + CHECK.pack(crc32c(identity)):
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
