"""The messages that a reader's process is handling: ``ofs/NAME.tries``, which shows a message that ends processes.

The file exists while a process handles messages. If a process finds one, its predecessor died. Until it has passed all
messages that the predecessor may have been handling, it notes each message before it handles it, and a message that
ended too many processes is not handled again.

The note is one line of JSON with a checksum (:mod:`sej.system.sealed`). There is room for two lines, which are written
in turn: if a process dies during a write, the previous note remains. A line that is incomplete or has changed is
ignored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, Self

from sej.checks import Failure, is_failure, refuse_coroutine
from sej.errors import LockLostError, RetriesExhaustedError
from sej.journal.directory import Directory
from sej.message import Message
from sej.reading.dead_letters import DeadLetter, append_dead_letter, source_of
from sej.reading.offset import Offset
from sej.system.disk import File
from sej.system.logs import WARNING, record
from sej.system.sealed import seal, unseal, whole

_NOTE_BYTES: Final = 128


class InterruptError(BaseException):
    """Raised by a handler that did not handle its message: that is not a failed attempt."""


class Attempts:
    """The note of one reader, whose lock the caller holds.

    Example:
        >>> import tempfile
        >>> from sej.journal.directory import Directory
        >>> from sej.system.disk import OS
        >>> directory = Directory(tempfile.mkdtemp(), OS)
        >>> directory.disk.mkdir(directory.at("ofs"))
        >>> Attempts(directory, "worker", 1000).begin(7, 5)  # no process died
        0
        >>> Attempts(directory, "worker", 1000).begin(7, 5)  # one died, at an unknown message
        0
        >>> Attempts(directory, "worker", 1000).begin(7, 5)
        1
    """

    def __init__(self, directory: Directory, name: str, span: int) -> None:
        """Read the note of a predecessor.

        Args:
            directory: the journal.
            name: the reader's name.
            span: at most this many messages after the kept offset were being handled. Messages are counted, not
                offsets: there may be a gap after the kept offset.
        """
        self._directory, self._name = directory, name
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.tries")
        self._file: File | None = None
        self._stays = False
        self._offset, self._ended = -1, 0
        self._careful_left = 0
        """This many further messages may have been in the predecessor's hands,"""
        self._careful_to = -1
        """and those up to this offset."""
        self._number = self._slot = 0
        with contextlib.suppress(FileNotFoundError):
            self._file = self._disk.open(self._path, "edit")
            self._careful_left = span
            data = self._file.read(2 * _NOTE_BYTES, 0)
            for slot in (0, 1):
                with contextlib.suppress(ValueError, KeyError):
                    self._take(slot, data[slot * _NOTE_BYTES :][:_NOTE_BYTES])

    def _take(self, slot: int, line: bytes) -> None:
        """Accept a line if it is a note and newer than the known one."""
        note = unseal(self._path, line.strip(b"\0 \n"))
        offset, ended, number = whole(note["offset"]), whole(note["attempts"]), whole(note["number"])
        if number >= self._number:
            self._offset, self._ended = offset, ended
            self._number, self._slot = number, 1 - slot

    def careful(self, offset: int) -> bool:
        """Return whether to handle messages one by one, because a predecessor died around here."""
        return self._careful_left > 0 or offset <= self._careful_to

    def appear(self) -> None:
        """Note that a process handles messages from now on."""
        if self._file is None:
            self._file = self._disk.open(self._path, "temp")

    def begin(self, offset: int, max_attempts: int) -> int:
        """Note that a message is being handled; return how many processes it has ended already.

        It counts if this process dies now, but only if each message is noted, and only if it will be handled.
        """
        self.appear()
        if not self.careful(offset):
            return 0
        if offset > self._careful_to:
            self._careful_to = offset
            self._careful_left -= 1
        ended = self._ended if offset == self._offset else 0
        if ended < max_attempts:
            self._number += 1
            note = {"offset": offset, "attempts": ended + 1, "number": self._number}
            line = seal(self._path, note).rstrip().ljust(_NOTE_BYTES - 1) + b"\n"
            assert self._file is not None
            self._file.write_at(line, self._slot * _NOTE_BYTES)
            self._slot = 1 - self._slot
        return ended

    def failure_of(self, handle: Callable[[], object], number: int, offset: int) -> BaseException | None:
        """Call a handler, and return why this attempt failed, or None.

        If it ended the program, the note stays, as if the process had died; not for an interrupt.

        Args:
            handle: calls the handler.
            number: the number of the attempt.
            offset: the first message.
        """
        try:
            refuse_coroutine(handle())
        except BaseException as error:
            if not is_failure(error):
                self._stays = not isinstance(error, KeyboardInterrupt | InterruptError)
                raise
            text, path = "%s: reader %r: attempt %d of message %d failed: %s", self._directory.path
            record(__name__, WARNING, text, path, self._name, number, offset, Failure(error), error=error)
            return error
        return None

    def give_up(
        self,
        kept: Offset,
        message: Message,
        attempts: int,
        failure: BaseException | None,
        dead_letter: str | None,
        of: str = "",
    ) -> None:
        """Write a message to the dead letters, and commit the offset after it.

        Args:
            kept: the reader's offset.
            message: the message, whose predecessors are handled.
            attempts: how often the handler failed.
            failure: the last error; None: it ended the process.
            dead_letter: the dead-letter journal.
            of: what the message belongs to, for the error.

        Raises:
            RetriesExhaustedError: no dead-letter journal is set; with the command that skips the message.
        """
        reason = Failure(failure) if failure else f"it ended the process {attempts} times"
        path, offset = self._directory.path, message.offset
        again = kept.value == offset
        kept.commit(offset)
        if dead_letter is None:
            import shlex  # only an error needs it

            skip = shlex.join(["sej", "reset", path, self._name, str(offset + 1)])
            raise RetriesExhaustedError(
                f"reader {self._name!r} failed on this message{of} in {attempts} attempts, the last error: {reason};"
                f" correct the handler, set dead_letter, or skip the message: `{skip}`",
                path=path,
                offset=offset,
            ) from failure
        letter = DeadLetter(message, source_of(self._directory), self._name, attempts, reason)
        append_dead_letter(dead_letter, letter, perhaps_there=again, disk=self._disk)
        kept.commit(offset + 1)

    def remove(self) -> None:
        """Note that no process handles messages any more, unless :meth:`keep_after` kept the note."""
        if not self._stays:
            self._disk.unlink(self._path)

    def close(self) -> None:
        """Close the file and keep it."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        """Return the note."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove it, unless another process may have it already."""
        self.close()
        if kind is None or not issubclass(kind, LockLostError):
            self.remove()
