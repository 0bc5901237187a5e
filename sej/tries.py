"""What a reader's process has in hand: ``ofs/NAME.tries``, so that a message that ends processes can be blamed.

The file is there while somebody is at work. Whoever finds one knows that its predecessor died: until it is past what
that one could have had in hand it notes each message before it is handled, and a message that ended too many processes
is not tried again.

The note is one line of JSON, written over the one before and never cut first, so that no death leaves nothing. It says
everything twice: where it was written in part, the digits of two messages are not taken for a third.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final, Self

from sej.directory import Directory
from sej.disk import File
from sej.errors import LockLostError

__all__ = ["Tries"]

_NOTE_BYTES: Final = 128


class Tries:
    """The note of one reader, whose lock is held.

    Example:
        >>> import tempfile
        >>> from sej.directory import Directory
        >>> from sej.disk import OS
        >>> directory = Directory(tempfile.mkdtemp(), OS)
        >>> directory.disk.mkdir(directory.at("ofs"))
        >>> Tries(directory, "worker", 0, 1000).begin(7, 5)  # nobody died
        0
        >>> Tries(directory, "worker", 0, 1000).begin(7, 5)  # somebody did, nobody knows where
        0
        >>> Tries(directory, "worker", 0, 1000).begin(7, 5)
        1
    """

    def __init__(self, directory: Directory, name: str, kept: int, span: int) -> None:
        """Look what a predecessor left behind.

        Args:
            directory: the journal.
            name: the reader's.
            kept: its kept offset.
            span: so many messages behind it are in hand at most.
        """
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.tries")
        self._file: File | None = None
        self._offset, self._ended = -1, 0
        self._careful_below = -1
        with contextlib.suppress(FileNotFoundError):
            self._file = self._disk.open(self._path, "edit")
            self._careful_below = kept + span
            with contextlib.suppress(ValueError, KeyError, TypeError):
                last = json.loads(self._file.read(4096, 0))
                offset, ended = int(last["offset"]), int(last["attempts"])
                again, counted = last.get("again", (offset, ended))
                if again == offset:
                    self._offset, self._ended = offset, min(ended, counted)

    def careful(self, offset: int) -> bool:
        """Whether to go message by message, because a predecessor died around here."""
        return offset < self._careful_below

    def appear(self) -> None:
        """Somebody is at work from now on."""
        if self._file is None:
            self._file = self._disk.open(self._path, "temp")

    def begin(self, offset: int, max_attempts: int) -> int:
        """A message is in hand; how many processes it has ended already.

        It is blamed if this one ends now: only where each message is noted, and one that will be tried.
        """
        self.appear()
        if not self.careful(offset):
            return 0
        ended = self._ended if offset == self._offset else 0
        if ended < max_attempts:
            note = json.dumps({"offset": offset, "attempts": ended + 1, "again": [offset, ended + 1]})
            assert self._file is not None
            self._file.write_at(note.ljust(_NOTE_BYTES - 1).encode() + b"\n", 0)
        return ended

    def remove(self) -> None:
        """Nobody is at work any more."""
        self._disk.unlink(self._path)

    def close(self) -> None:
        """Close the file, and leave it where it is."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove it, unless it may be somebody else's by now."""
        self.close()
        if kind is None or not issubclass(kind, LockLostError):
            self.remove()
