"""Reading the records of a file in bounded memory, and following the files of a queue; for both formats.

A file is read in blocks. A size is believed only after it was compared with the bytes that are left. Ordinary records
are decoded many at a time, by a :class:`~kestrel.fast.Table`; what it leaves is decoded alone, by the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from kestrel.errors import DamageError
from kestrel.fast import Entry, Table
from sej.system.disk import File

_BLOCK: Final = 1 << 18
_HEAD: Final = 64
"""More than any record has before its data."""


class Format(Protocol):
    """How the records of one file are stored. Its errors need no path.

    Attributes:
        table: decodes ordinary records.
        kind: records of other types are passed over.
        end: the byte that ends a file in the place of a record; -1: none does.
        way_out: what an error of the format lacks.
    """

    table: Table
    kind: type[Any]
    end: int
    way_out: str

    def decode(self, data: bytes, at: int, position: int) -> tuple[Any, int | None]:
        """The record at ``at``, and its size; None for what is not all there."""


class Reading:
    """One pass over the records of an open file.

    Attributes:
        file: the file.
        position: where the next record begins; after a whole pass: where the records end.
        ended: whether the byte for it ended the file there.
    """

    def __init__(self, file: File, form: Format, start: int = 0, end: int | None = None) -> None:
        self.file = file
        self.position = start
        self.ended = False
        self._form = form
        self._end = file.status().size if end is None else end

    def batches(self) -> Iterator[list[Any]]:
        """The records, many at a time. One that is decoded alone is alone in its list.

        Raises:
            DamageError: the bytes at its position are not a record; everything before was yielded.
        """
        form = self._form
        # base: where the block begins in the file; at: where in it the next record begins
        base, block, at = self.position, b"", 0
        while (left := self._end - self.position) > 0:
            if len(block) - at < min(_HEAD, left):
                base, block, at = self.position, self._read(max(_BLOCK, _HEAD)), 0
            found, at = form.table.decode(block, base, at)
            if found:
                self.position = base + at
                yield found
                left = self._end - self.position
                if len(block) - at < max(min(_HEAD, left), 1):
                    continue
            if block[at] == form.end:
                self.ended = True
                return
            try:
                record, size = form.decode(block, at, self.position)
            except DamageError as error:
                raise self._damage(error.reason + form.way_out) from None
            if size is None or size > left:
                due = "more bytes" if size is None else f"{size} bytes"
                raise self._damage(
                    f"a record is cut short: expected {due}, {left} are left in the file; a process died while writing"
                    " it, or its size is wrong; open the queue, which copies the rest to kept/ and continues before it"
                )
            if record is None:
                base, block, at = self.position, self._read(max(_BLOCK, size)), 0
                continue
            at, self.position = at + size, self.position + size
            if isinstance(record, form.kind):
                yield [record]

    def records(self) -> Iterator[Any]:
        """The records, one at a time; ``position`` runs ahead of them. Raises as :meth:`batches`."""
        for found in self.batches():
            yield from found

    def _read(self, size: int) -> bytes:
        """So many bytes from the position on, or as many as there are up to the end."""
        due = min(size, self._end - self.position)
        data = self.file.read(due, self.position)
        if len(data) < due:
            raise self._damage(f"the file became shorter than {self._end} bytes while it was read; read it again")
        return data

    def _damage(self, reason: str) -> DamageError:
        return DamageError(reason, path=self.file.path, position=self.position)


class Files(Protocol):
    """The files that a cursor follows."""

    def following(self, entry: Entry | None) -> tuple[Entry, int] | None:
        """The file after this one that has records, and where they begin."""

    def open(self, entry: Entry) -> File | None:
        """The file, for its :meth:`release`; None: it was removed, because its records are not needed."""

    def release(self, file: File) -> None:
        """The file is not used any more."""

    def reading(self, file: File, start: int, end: int) -> Reading:
        """The records in a part of the file."""


class Cursor:
    """Reads the records of files from a place on; follows files that are renamed and that grow.

    Attributes:
        entry: the file that is read; None: none is yet.
        position: where in it the next batch begins.
    """

    def __init__(self, files: Files, entry: Entry | None = None, position: int = 0) -> None:
        self._files = files
        self.entry = entry
        self.position = self._end = position
        self._file: File | None = None
        self._reading: Reading | None = None
        self._batches: Iterator[list[Any]] = iter(())

    def batch(self) -> list[Any] | None:
        """The next records, in the order of the files; None if there are none so far."""
        while (found := next(self._batches, None)) is None:
            self.position = self._end
            if not self._advance():
                return None
        assert self._reading is not None
        self.position = self._reading.position
        return found

    def _advance(self) -> bool:
        """Continue with what was written since, in this file or the next; False if nothing was."""
        if self.entry is None or self.position >= self.entry.size:
            following = self._files.following(self.entry)
            if following is None:
                return False
            self.close()
            self.entry, self.position = following
        self._end = self.entry.size
        if self._file is None:
            self._file = self._files.open(self.entry)
        if self._file is not None:
            self._reading = self._files.reading(self._file, self.position, self._end)
            self._batches = self._reading.batches()
        return True

    def close(self) -> None:
        """Close the file."""
        self._batches = iter(())
        file, self._file = self._file, None
        if file is not None:
            self._files.release(file)
