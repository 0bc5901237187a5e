"""Reading a queue that another program may be changing: its files, opened once, and a check that they are the same.

An original knows nothing of our locks. It may append, rotate, rewrite and delete at any moment. So a reader opens every
file of the queue first and then looks into the directory again: if the files are still the same ones, they belong
together. Open files stay readable after the original has removed them. :meth:`Pinned.check` says later whether the
original has changed the queue since. Reading creates, renames and removes nothing.

If our own lock file exists, a shared ``flock`` on it keeps our processes from opening the queue meanwhile; the file is
not written.
"""

from __future__ import annotations

import os
from typing import Final

from kestrel.errors import BusyError, Damage
from kestrel.files import LOCK, Place, stamp_of
from sej.system.disk import File

_TRIES: Final = 20


class Pinned:
    """The files of one queue, opened for reading.

    Attributes:
        place: where the queue is.
        damage: what was unreadable; for its user.
        files: by path, in the order of the look.
        sizes: how large each one was when it was opened, bytes.
    """

    def __init__(self, place: Place, *, exclude: bool = False) -> None:
        """Open them.

        Args:
            place: where the queue is.
            exclude: keep our own processes from opening the queue until ``close``.

        Raises:
            BusyError: the files were replaced faster than they can be opened, or another process has the queue open.
        """
        self.files: dict[str, File] = {}
        self.sizes: dict[str, int] = {}
        self.damage: list[Damage] = []
        self.place = place
        self._lock: File | None = None
        if exclude:
            self._exclude(place.path(LOCK))
        try:
            for _ in range(_TRIES):
                if self._open_all(self._look()) and self._difference(grown=False) is None:
                    return
            raise BusyError(
                f"the files were replaced {_TRIES} times while they were opened; read them when the queue is less busy",
                path=place.path(),
            )
        except BaseException:
            self.close()
            raise

    def _look(self) -> list[str]:
        """List the paths of the files that hold items, or the place of a reader."""
        whole = len(self.place.path())
        return [path for path in self.place.files() if _counts(path[whole:])]

    def written(self) -> list[tuple[str, int]]:
        """The names of the files, and when each one was written last, ns since the epoch."""
        return [(os.path.basename(path), file.status().mtime_ns) for path, file in self.files.items()]

    def _exclude(self, path: str) -> None:
        try:
            self._lock = self.place.disk.open(path, "read")
        except FileNotFoundError:
            return
        if not self._lock.lock(exclusive=False, held=True):
            self.close()
            raise BusyError("the queue is open in another process or object; close it there", path=path)

    def _open_all(self, paths: list[str]) -> bool:
        """Open exactly these files; False if one is gone."""
        self._close_files()
        for path in paths:
            try:
                file = self.place.disk.open(path, "read")
            except FileNotFoundError:
                return False
            self.files[path], self.sizes[path] = file, file.size()
        return True

    def _difference(self, *, grown: bool) -> str | None:
        """The path of a file that is not as it was opened; the queue's own if files came or went."""
        if self._look() != list(self.files):
            return self.place.path()
        for path, file in self.files.items():
            status = self.place.disk.status(path)
            if status is None or status.identity != file.status().identity:
                return path
            if grown and status.size != self.sizes[path]:
                return path
        return None

    def check(self) -> None:
        """Check that the queue has not changed since it was opened.

        Raises:
            BusyError: it was changed.
        """
        path = self._difference(grown=True)
        if path is not None:
            self.refuse(path)

    def refuse(self, path: str) -> None:
        """Say that a file was changed.

        Raises:
            BusyError: always.
        """
        raise BusyError(
            "the queue was changed while it was read; stop the program that writes to it, or copy its directory and"
            " read the copy",
            path=path,
        )

    def close(self) -> None:
        """Close the files and release the lock."""
        self._close_files()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _close_files(self) -> None:
        while self.files:
            self.files.popitem()[1].close()
        self.sizes.clear()


def _counts(rest: str) -> bool:
    """Whether a file with this after the queue's name is read."""
    if rest.startswith((".read.", "~~read.")):
        return "~~" not in rest[2:]
    return not rest or stamp_of(rest[1:].removesuffix(".pack")) is not None
