"""What a reader's process has in hand: ``ofs/NAME.tries``, so that a message that ends processes can be blamed.

The file is there while somebody is at work. Whoever finds one knows that its predecessor died: until it is past what
that one could have had in hand it notes each message before it is handled, and a message that ended too many processes
is not tried again.

The note is one line of JSON with a checksum (:mod:`sej.system.sealed`). There is room for two, which are written in
turn: a death in the middle of a write leaves the note before. A line that was written in part, or has changed, counts
for nothing. Older versions wrote one line without a checksum.
"""

from __future__ import annotations

import contextlib
from typing import Final, Self

from sej.errors import LockLostError
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.sealed import seal, unseal, whole

__all__ = ["Tries"]

_NOTE_BYTES: Final = 128


class Tries:
    """The note of one reader, whose lock is held.

    Example:
        >>> import tempfile
        >>> from sej.journal.directory import Directory
        >>> from sej.system.disk import OS
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
        self._number = self._slot = 0
        with contextlib.suppress(FileNotFoundError):
            self._file = self._disk.open(self._path, "edit")
            self._careful_below = kept + span
            data = self._file.read(2 * _NOTE_BYTES, 0)
            for slot in (0, 1):
                with contextlib.suppress(ValueError, KeyError):
                    self._take(slot, data[slot * _NOTE_BYTES :][:_NOTE_BYTES])

    def _take(self, slot: int, line: bytes) -> None:
        """Believe a line, if it is a note and newer than the one that is known."""
        note = unseal(self._path, line.strip(b"\0 \n"), ("offset", "attempts"), optional=("again",))
        offset, ended, number = whole(note["offset"]), whole(note["attempts"]), whole(note.get("number", 0))
        if number >= self._number and note.get("again", [offset, ended]) == [offset, ended]:
            self._offset, self._ended = offset, ended
            self._number, self._slot = number, 1 - slot

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
            self._number += 1
            note = {"offset": offset, "attempts": ended + 1, "number": self._number}
            line = seal(self._path, note).rstrip().ljust(_NOTE_BYTES - 1) + b"\n"
            assert self._file is not None
            self._file.write_at(line, self._slot * _NOTE_BYTES)
            self._slot = 1 - self._slot
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
