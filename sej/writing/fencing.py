"""Fencing tokens: a writer that was replaced cannot append any more, even if it does not know that it was replaced.

A token is a number that only rises. The journal's is in the file ``token``; a writer that opens with a number stores
it there. From then on every append compares its writer's number with the journal's. Both happen under the journal's
lock, and the number is on the disk before the opening returns. So each append of a writer with a lower number is in the
journal before the higher number is, or nowhere::

    old leader (7)    append ........ append                          append -> ConflictError: expected 7, found 8
    journal's token   7               7          8 on the disk        8
    new leader (8)                               opens: the end that it sees is final for all lower tokens

The file is replaced as a whole. A writer keeps the version that it has compared open, so no later version has the same
inode: while the path is still this file, the number is the same. This costs one ``stat`` for each append.
"""

from __future__ import annotations

from typing import Final, Literal

from sej.checks import COUNT
from sej.errors import ConflictError, CorruptionError
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.locks import is_current
from sej.system.sealed import whole

NEXT: Final = "next"


class Fence:
    """The token of one shared writer. Every call is made under the journal's lock, except :meth:`close`.

    Attributes:
        token: the writer's number.
    """

    def __init__(self, directory: Directory, token: int | Literal["next"]) -> None:
        """Check the number; nothing is read yet."""
        if token != NEXT:
            COUNT("token", token)
        self.token = token if isinstance(token, int) else 0
        self._is_next = token == NEXT
        self._disk = directory.disk
        self._journal, self._tmp = directory.path, directory.at("tmp")
        way_out = "remove it, then open each writer with a number above every earlier one"
        self._file = directory.sealed("a fencing token", way_out, "token")
        self._seen: File | None = None
        """The version of the file whose number is not above the writer's."""

    def take(self) -> None:
        """Store the number in the journal, durably.

        Raises:
            ConflictError: the journal has a higher one.
        """
        found = self._load()
        if self._is_next:
            self.token = (found or 0) + 1
        elif found is not None and found > self.token:
            raise self._conflict(found)
        if found != self.token:
            self._disk.mkdir(self._tmp)
            self._file.store({"token": self.token})
        self._keep()

    def check(self) -> None:
        """Check that no writer has stored a higher number.

        Raises:
            ConflictError: one has; nothing was appended.
            CorruptionError: the file was removed, or has a lower number, as from an old copy.
        """
        if not is_current(self._disk, self._identity, self._file.path):
            found = self._load()
            if found is None or found < self.token:
                raise CorruptionError(
                    f"the journal's fencing token must be at least {self.token}, got {found}: the file was removed or"
                    " replaced by an old one; open this writer again with a higher token",
                    path=self._file.path,
                )
            if found > self.token:
                raise self._conflict(found)
            self._keep()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._seen is not None:
            self._seen.close()

    def _load(self) -> int | None:
        content = self._file.load()
        with self._file.checking():
            return None if content is None else whole(content["token"])

    def _keep(self) -> None:
        self.close()
        self._seen = self._disk.open(self._file.path, "read")
        self._identity = self._seen.status().identity

    def _conflict(self, found: int) -> ConflictError:
        return ConflictError(
            f"this writer's fencing token is {self.token}, and the journal's is {found}: another writer has taken over,"
            " so nothing was appended; close this one",
            path=self._journal,
            expected=self.token,
            found=found,
        )
