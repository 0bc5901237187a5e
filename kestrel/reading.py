"""Reading the records of a file in bounded memory, and following the files of a queue; for both formats.

A file is read in blocks. A size is believed only after it was compared with the bytes that are left. Ordinary records
are decoded many at a time, by a :class:`~kestrel.fast.Table`; what it leaves is decoded alone, by the format.

An original knows nothing of our locks. It may append, rotate, rewrite and delete at any moment. So a reader opens every
file of the queue first and then looks into the directory again: if the files are still the same ones, they belong
together. Open files stay readable after the original has removed them. :meth:`Pinned.check` says later whether the
original has changed the queue since. Reading creates, renames and removes nothing.

If our own lock file exists, a shared ``flock`` on it keeps our processes from opening the queue meanwhile; the file is
not written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

from kestrel.errors import BusyError, Damage, DamageError
from kestrel.fast import Entry, Table
from kestrel.files import LOCK, Place, stamp_of
from sej.system.disk import File

_BLOCK: Final = 1 << 18
_TRIES: Final = 20
_HEAD: Final = 64
"""More than any record has before its data."""


class Format(NamedTuple):
    """How the records of one file are stored. Its errors need no path.

    Attributes:
        table: decodes ordinary records.
        kind: records of other types are passed over.
        decode: returns the record at a place in a block, and its size, from the block, the place and the position in
            the file; None for what is not all there.
        end: the byte that ends a file in the place of a record; -1: none does.
        way_out: what an error of the format lacks.
    """

    table: Table
    kind: type[Any]
    decode: Callable[[bytes, int, int], tuple[Any, int | None]]
    end: int = -1
    way_out: str = ""


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
        try:
            if exclude:
                with suppress(FileNotFoundError):
                    self._lock = place.disk.open(place.path(LOCK), "read")
                if self._lock is not None and not self._lock.lock(exclusive=False, held=True):
                    raise BusyError(
                        "the queue is open in another process or object; close it there", path=place.path(LOCK)
                    )
            for _ in range(_TRIES):
                self._close_files()
                paths = self._look()
                with suppress(FileNotFoundError):  # one was removed since
                    for path in paths:
                        file = self.files[path] = place.disk.open(path, "read")
                        self.sizes[path] = file.size()
                    if self._difference(grown=False) is None:
                        return
            raise BusyError(
                f"the files were replaced {_TRIES} times while they were opened; read them when the queue is less busy",
                path=place.path(),
            )
        except BaseException:
            self.close()
            raise

    def open(self, path: str) -> File:
        """A file, for its :meth:`release`."""
        return self.files[path]

    def release(self, file: File) -> None:
        """The file stays open."""

    def _look(self) -> list[str]:
        """List the paths of the files that hold items, or the place of a reader."""
        whole = len(self.place.path())
        return [path for path in self.place.files() if _counts(path[whole:])]

    def written(self) -> list[tuple[str, int]]:
        """The names of the files, and when each one was written last, ns since the epoch."""
        return [(os.path.basename(path), file.status().mtime_ns) for path, file in self.files.items()]

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


Source = Place | Pinned
"""What opens the files of a queue."""


@contextmanager
def opened(source: Source, path: str) -> Iterator[File]:
    """A file of a queue, for reading."""
    file = source.open(path)
    try:
        yield file
    finally:
        source.release(file)


class Files(Protocol):
    """The files that a cursor follows.

    Attributes:
        source: what opens them.
    """

    source: Source

    def following(self, entry: Entry | None) -> tuple[Entry, int] | None:
        """The file after this one that has records, and where they begin."""

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
        self._found: list[Any] = []
        self._at = 0

    def copy(self) -> Cursor:
        """Another one at the same place, for records that know their positions; nothing is read yet."""
        left = self._found[self._at :]
        return Cursor(self._files, self.entry, left[0].position if left else self.position)

    def record(self) -> Any:
        """The next record; None if there is none so far."""
        while self._at >= len(self._found):
            found = self.batch()
            if found is None:
                return None
            self._found, self._at = found, 0
        self._at += 1
        return self._found[self._at - 1]

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
            self._file = self._files.source.open(self.entry.path)
        self._reading = self._files.reading(self._file, self.position, self._end)
        self._batches = self._reading.batches()
        return True

    def close(self) -> None:
        """Close the file."""
        self._batches = iter(())
        file, self._file = self._file, None
        if file is not None:
            self._files.source.release(file)


def _counts(rest: str) -> bool:
    """Whether a file with this after the queue's name is read."""
    if rest.startswith((".read.", "~~read.")):
        return "~~" not in rest[2:]
    return not rest or stamp_of(rest[1:].removesuffix(".pack")) is not None
