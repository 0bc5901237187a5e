"""What both formats share in moving to SEJ journals and back: messages, progress, checksums, and the export.

The mapping: the data is the value, the add time the timestamp, and an expiry, which SEJ does not have, is stored in
the key as ``expiry=<ms>``, or as ``expired=<ms>`` if it had passed when the export began. SEJ's types and other keys
have no place in Kestrel: importing them is refused unless they may be dropped. This module knows SEJ only by these
methods: a writer with ``append_many`` and ``sync``, messages with ``timestamp``, ``type``, ``key`` and ``value``.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from kestrel.errors import Damage, MoveError
from kestrel.files import KEPT, join
from sej.checks import CALLABLE, ITERABLE, one_of, optional, require, with_methods
from sej.system.disk import Disk, read_small, replace_file
from sej.system.sealed import seal, unseal, whole

Expired = Literal["mark", "leave"]
"""What an export does with an item that has expired: its key says ``expired``, or it is left out."""

BATCH: Final = 1000
"""Messages between two syncs."""
_PROGRESS_BYTES: Final = 1 << 26
_NS: Final = 1_000_000
_MAX_MS: Final = (2**63 - 1) // _NS
_MIN_MS: Final = -(2**63) // _NS + 1
_EXPIRY_KEY: Final = re.compile(rb"(?:expiry|expired)=([0-9]{1,19})")


class WriterLike(Protocol):
    """What an export writes to; a ``sej.Writer`` is one. By its ``offset`` a resumed export repeats nothing."""

    def append_many(
        self, values: Sequence[bytes], keys: Sequence[bytes] | None = None, *, timestamp: Sequence[int] | None = None
    ) -> object:
        """Append messages."""

    def sync(self) -> object:
        """Make them durable."""


class MessageLike(Protocol):
    """What an import reads; a ``sej.Message`` is one."""

    @property
    def timestamp(self) -> int:
        """Nanoseconds since the epoch."""

    @property
    def type(self) -> int:
        """0 to 255."""

    @property
    def key(self) -> bytes:
        """Up to 127 bytes."""

    @property
    def value(self) -> bytes:
        """The payload."""


class Moved(NamedTuple):
    """What was moved.

    Attributes:
        count: how many items.
        checksum: CRC32 over all of them, see :func:`checksum`.
        first_offset: the first one's offset in the SEJ journal; None if the writer has no ``offset``.
        damage: what was unreadable in the Kestrel journal.
    """

    count: int  # type: ignore[assignment]  # a tuple's own count has no use here
    checksum: int
    first_offset: int | None
    damage: list[Damage]


class Row(NamedTuple):
    """An item as SEJ stores it. It has the attributes of a message, so one checksum serves both."""

    timestamp: int
    key: bytes
    value: bytes


class Fields(NamedTuple):
    """A message as Kestrel stores it.

    Attributes:
        data: the item's bytes.
        add_time: when it was put, in ms since the epoch.
        expiry: when it expires, in ms since the epoch; 0: never.
    """

    data: bytes
    add_time: int
    expiry: int


class Progress:
    """How far an export is, in a small file that is replaced whole.

    An export whose progress is in the SEJ journal leaves a second file, with ``ed`` at the end of its name: the caller
    may not have learnt that the export finished, and then calls it again.
    """

    def __init__(self, path: str, source: list[Any], disk: Disk, written: list[tuple[str, int]] | None = None) -> None:
        """Name it.

        Args:
            path: the file.
            source: what the queue holds, as JSON.
            disk: the seam.
            written: each file of the queue, and when it was written last: a queue that was emptied and filled again may
                have the same source.
        """
        self.path = path
        self._source = source
        self._written = [list(one) for one in written or ()]
        self._disk = disk
        self._time_ms: int | None = None

    @classmethod
    def of_export(
        cls,
        directory: str | os.PathLike[str],
        name: str,
        writer: WriterLike,
        source: list[Any],
        disk: Disk,
        written: list[tuple[str, int]],
    ) -> Progress:
        """The progress of an export of ``name``: a file in the SEJ journal, because the queue is only read.

        For a writer that has no directory of its own it is in the queue's ``kept/``; if it is there, any writer
        continues it.
        """
        path = join(directory, os.path.join(KEPT, f"{name}.export"))
        journal = getattr(writer, "path", None)
        status = disk.status(journal) if isinstance(journal, str) else None
        if disk.status(path) is None:
            if status is not None and status.is_dir:
                path = os.path.join(str(journal), f"{name}.export")
            else:
                disk.mkdir(os.path.dirname(path), parents=True)
        return cls(path, source, disk, written)

    def load(self) -> dict[str, Any] | None:
        """What a call that was cut short left; None if there was no such call."""
        try:
            data = read_small(self._disk, self.path, _PROGRESS_BYTES)
        except FileNotFoundError:
            return None
        try:
            found = unseal(self.path, data)
            whole(found["count"])
            if found["start"] is not None:
                whole(found["start"])
        except (ValueError, KeyError) as error:
            raise MoveError(
                f"this progress of an export or import cannot be read ({error}); remove it to start again",
                path=self.path,
            ) from error
        if found["source"] != self._source:
            raise MoveError(
                "the queue was changed since an export that was cut short; to start again remove this file, and the"
                f" {found['count']} items that were exported from offset {found['start']} on",
                path=self.path,
            )
        return found

    def finished(self) -> dict[str, Any] | None:
        """What a call left that finished; None if there was none, or if the queue was written since."""
        try:
            found = unseal(self._record, read_small(self._disk, self._record, _PROGRESS_BYTES))
            for name in ("start", "count", "checksum", "time"):
                whole(found[name])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise MoveError(
                f"this record of an export cannot be read ({error}); remove it to export all items again",
                path=self._record,
            ) from error
        return found if (found["source"], found.get("written")) == (self._source, self._written) else None

    def time_ms(self, now_ms: Callable[[], int]) -> int:
        """When the first call began, ms since the epoch; so that every call finds the same items expired."""
        state = self.load() or self.finished()
        self._time_ms = now_ms() if state is None else whole(state.get("time", now_ms()))
        return self._time_ms

    def save(self, start: int | None, count: int) -> None:
        """Store how far it is, durably."""
        state = {"source": self._source, "start": start, "count": count}
        if self._time_ms is not None:
            state["time"] = self._time_ms
        replace_file(self._disk, f"{self.path}.part", self.path, seal(self.path, state))

    def finish(self, moved: Moved) -> None:
        """Record that an export has finished, and remove the progress."""
        if os.path.basename(os.path.dirname(self.path)) != KEPT and moved.first_offset is not None:
            state = {"source": self._source, "start": moved.first_offset, "count": moved.count, "time": self._time_ms}
            record = seal(self._record, {**state, "checksum": moved.checksum, "written": self._written})
            replace_file(self._disk, f"{self._record}.part", self._record, record)
        self.remove()

    @property
    def _record(self) -> str:
        return f"{self.path}ed"

    def remove(self) -> None:
        """Remove the file, because the call has finished, and ``kept/`` if it was made for it."""
        self._disk.unlink(self.path)
        folder = os.path.dirname(self.path)
        if os.path.basename(folder) == KEPT:
            with contextlib.suppress(OSError):  # it holds other files
                self._disk.rmdir(folder)


def checksum(messages: Iterable[MessageLike | Row], start: int = 0) -> tuple[int, int]:
    """How many messages, and the CRC32 over their sizes, timestamps, keys and values; start: the CRC32 so far."""
    count, found = 0, start
    for message in messages:
        found = _sum(found, message.timestamp, message.key, message.value)
        count += 1
    return count, found


def compare(moved: Moved, messages: Iterable[MessageLike], path: str) -> None:
    """Make sure that these messages are what was moved.

    Raises:
        MoveError: they are not.
    """
    count, found = checksum(messages)
    if (count, found) != (moved.count, moved.checksum):
        raise MoveError(
            f"{moved.count} items with checksum {moved.checksum:08x} were written, {count} with {found:08x} were read"
            " back; check the disk, and do not remove the source",
            path=path,
        )


def export_rows(
    rows: Iterator[Row],
    writer: WriterLike,
    progress: Progress,
    damage: list[Damage],
    read_back: Callable[[int], Iterable[MessageLike]] | None,
    check: Callable[[], None],
) -> Moved:
    """Append rows to a SEJ journal from where the progress says, in batches that are synced and stored as progress.

    What read_back then reads from the first offset is compared with the rows, and the progress is removed. Without
    read_back, messages that another program appended after a call that was cut short are taken for items. ``check``
    raises if the queue was changed; it is called before each batch and after the last one.

    If an earlier call finished and the queue is the same, nothing is appended: it may have failed at its very end.
    """
    offset: int | None = getattr(writer, "offset", None)
    state = progress.load()
    last = progress.finished() if state is None else None
    if last is not None and offset is not None and offset >= last["start"] + last["count"]:
        return _finished(rows, last, progress.path, damage, check)
    start = offset if state is None else state["start"]
    count = 0 if state is None else state["count"]
    unsaved = 0
    if state is not None and offset is not None and start is not None:
        # What was appended but not yet stored as progress is at most one batch; more is from another program.
        if not count <= offset - start <= count + BATCH:
            raise MoveError(
                f"the SEJ journal ends at offset {offset}, an export that was cut short left it between {start + count}"
                f" and {start + count + BATCH}; another program wrote to it; remove this file to export all items"
                " after that",
                path=progress.path,
            )
        unsaved = offset - start - count
    done, found = checksum(islice(rows, count))
    batch = _unsaved(rows, unsaved, (start or 0) + count, read_back, progress.path)
    found = checksum(batch, found)[1]
    done, count = done + len(batch), count + unsaved
    if done < count:
        raise MoveError(
            f"{count} items were exported, and now the queue has {done}: it was changed in between; remove this file"
            f" and the {count} messages that were appended, and start again",
            path=progress.path,
        )
    if state is None:
        progress.save(start, 0)
    else:
        writer.sync()  # the call that was cut short may have ended between an append and its sync
    while batch := list(islice(rows, BATCH)):
        check()
        writer.append_many(
            [row.value for row in batch], [row.key for row in batch], timestamp=[row.timestamp for row in batch]
        )
        writer.sync()
        count += len(batch)
        found = checksum(batch, found)[1]
        progress.save(start, count)
    check()
    end: int | None = getattr(writer, "offset", None)
    if end is not None and start is not None and end - start != count:
        raise MoveError(
            f"{count} items were exported, and the SEJ journal grew by {end - start}: another program wrote to it;"
            " export into a journal that no other program uses",
            path=progress.path,
        )
    moved = Moved(count, found, start, damage)
    if read_back is not None and start is not None:
        compare(moved, islice(read_back(start), count), progress.path)
    progress.finish(moved)
    return moved


def _finished(
    rows: Iterator[Row], last: dict[str, Any], path: str, damage: list[Damage], check: Callable[[], None]
) -> Moved:
    """The result of a call that finished; nothing is appended again."""
    found = checksum(rows)
    check()
    if found != (last["count"], last["checksum"]):
        raise MoveError(
            f"this queue was exported from offset {last['start']} on, with other options or another time; remove this"
            " file to export it again",
            path=f"{path}ed",
        )
    return Moved(*found, last["start"], damage)


def _unsaved(
    rows: Iterator[Row], count: int, offset: int, read_back: Callable[[int], Iterable[MessageLike]] | None, path: str
) -> list[Row]:
    """The rows that a call that was cut short appended at offset, and did not store as progress."""
    batch = list(islice(rows, count))
    if batch and read_back is not None and checksum(islice(read_back(offset), count)) != checksum(batch):
        raise MoveError(
            f"the {count} messages from offset {offset} on are not the next items of the queue; another program wrote"
            " to the SEJ journal; remove this file to export all items after them",
            path=path,
        )
    return batch


def row_of(data: bytes, add_time: int, expiry: int | None) -> Row:
    """An item as a message; None or 0: no expiry."""
    time_ms = min(max(add_time, _MIN_MS), _MAX_MS)
    return Row(time_ms * _NS, b"expiry=%d" % expiry if expiry and expiry > 0 else b"", data)


def rows_of(
    items: Iterable[tuple[bytes, int | None, int | None]], time_ms: int, before_ms: int, expired: Expired
) -> Iterator[Row]:
    """Items as messages.

    Args:
        items: data, add time and expiry of each; expiry as for :func:`row_of`.
        time_ms: the timestamp of items that have no add time.
        before_ms: an item whose expiry is below this has expired.
        expired: what to do with such items.
    """
    for data, add_time, expiry in items:
        row = row_of(data, time_ms if add_time is None else add_time, expiry)
        if expiry is not None and expiry < before_ms:
            if expired == "leave":
                continue
            row = row._replace(key=b"expired=%d" % max(expiry, 1))
        yield row


def fields_of(message: MessageLike, keys: str, time_ms: int) -> Fields:
    """A message as the fields of an item; time_ms: the add time of a message that has no timestamp.

    Raises:
        MoveError: it has a key or type, and keys is ``"refuse"``.
    """
    match = _EXPIRY_KEY.fullmatch(message.key)
    if keys == "refuse" and (message.type or (message.key and not match)):
        raise MoveError(
            f"a message has the key {message.key!r} and type {message.type}, for which Kestrel has no place; import"
            ' it with keys="drop" (--drop-keys) to leave them out'
        )
    expiry = min(int(match[1]), 2**63 - 1) if match else 0
    return Fields(message.value, time_ms if message.timestamp == -(2**63) else message.timestamp // _NS, expiry)


def check_export(
    writer: WriterLike,
    read_back: object,
    expired: Expired,
    now_ms: object,
) -> None:
    """Check the arguments that both formats' exports have.

    Raises:
        TypeError: an argument has another type.
        ValueError: expired is another word.
    """
    require(
        writer=(writer, with_methods("a writer", "append_many", "sync")),
        read_back=(read_back, optional(CALLABLE)),
        expired=(expired, one_of(get_args(Expired))),
        now_ms=(now_ms, CALLABLE),
    )


def check_import(messages: Iterable[MessageLike], keys: str, now_ms: object) -> None:
    """Check the arguments that both formats' imports have.

    Raises:
        TypeError: an argument has another type.
        ValueError: keys is another word.
    """
    require(messages=(messages, ITERABLE), keys=(keys, one_of(("refuse", "drop"))), now_ms=(now_ms, CALLABLE))


def _sum(start: int, timestamp: int, key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %d %b" % (len(value), timestamp, key), start))


_RECORD_BYTES: Final = 1 << 20


class Imported:
    """The record of one queue. The caller holds the queue's lock.

    Attributes:
        path: the file.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, disk: Disk) -> None:
        """Name the file; nothing is opened."""
        self.path = join(directory, os.path.join(KEPT, f"{name}.imported"))
        self._disk = disk

    def load(self, queue: Any) -> Any:
        """What an import stored that left the queue in this state; None if no record matches.

        Raises:
            MoveError: the record cannot be read.
        """
        try:
            found = unseal(self.path, read_small(self._disk, self.path, _RECORD_BYTES))
            return found["messages"] if found["queue"] == queue else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise MoveError(
                f"this record of an import cannot be read ({error}); compare the queue with the messages: if they are"
                " in the queue, do not import them again, otherwise remove this file",
                path=self.path,
            ) from error

    def save(self, queue: Any, messages: Any) -> None:
        """Record an import, durably: the state of the queue after it, and what names its messages. Both are JSON."""
        replace_file(
            self._disk, f"{self.path}.part", self.path, seal(self.path, {"queue": queue, "messages": messages})
        )
