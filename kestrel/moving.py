"""Moving house: a Kestrel 2 queue into a SEJ journal, and back.

What goes where: the data is the value, the add time the timestamp, and an expiry, which SEJ does not know, stands in
the key as ``expiry=<ms>``. SEJ's types and other keys have no place in Kestrel: importing them is refused unless they
may be dropped.

Both ways are resumable: a call that was cut short (a crash, a full disk) is finished by calling it again, and nothing
is there twice. An export notes its progress in ``kept/<name>.export``. An import is written to ``kept/<name>.import``
and becomes part of the journal whole, by one rename. Both ways are verified: what was written is counted and its
checksum is compared.

This module knows SEJ by its face alone: a writer with ``append_many`` and ``sync``, messages with ``timestamp``,
``type``, ``key`` and ``value``.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol

from kestrel.backlog import Backlog
from kestrel.codec import Operation, addx
from kestrel.errors import Damage, DamageError, MoveError
from kestrel.files import KEPT, join
from kestrel.fuse import opening
from kestrel.journal import Dialect, read_operations
from kestrel.packing import load, wall_clock_ms
from kestrel.replay import Item
from kestrel.storage import Storage
from sej.disk import OS, Disk, replace_file

__all__ = [
    "BATCH",
    "MessageLike",
    "Moved",
    "Progress",
    "Row",
    "WriterLike",
    "checksum",
    "compare",
    "export",
    "export_rows",
    "fields_of",
    "import_",
    "row_of",
]

BATCH: Final = 1000
_MEMORY_BYTES: Final = 32 << 20
_NS: Final = 1_000_000
_MAX_MS: Final = (2**63 - 1) // _NS
_MIN_MS: Final = -(2**63) // _NS + 1
_EXPIRY_KEY: Final = re.compile(rb"expiry=([0-9]{1,19})")


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
        first_offset: the first one's offset in the SEJ journal; None where the writer has no ``offset``.
        damage: what was unreadable in the Kestrel journal.
    """

    count: int  # type: ignore[assignment]  # a tuple's own count has no use here
    checksum: int
    first_offset: int | None
    damage: list[Damage]


class Row(NamedTuple):
    """An item on its way, as SEJ has it; and as a message is, so that both are summed up alike."""

    timestamp: int
    key: bytes
    value: bytes


def checksum(messages: Iterable[MessageLike | Row], start: int = 0) -> tuple[int, int]:
    """How many messages, and the CRC32 over their sizes, timestamps, keys and values; start: the CRC32 so far."""
    count, found = 0, start
    for message in messages:
        found = _sum(found, message.timestamp, message.key, message.value)
        count += 1
    return count, found


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    open_transactions: Literal["first", "leave"] = "first",
    read_back: Callable[[int], Iterable[MessageLike]] | None = None,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Append what a queue holds to a SEJ journal. The queue stays as it is.

    Args:
        directory: where the queue's files are.
        name: the queue.
        writer: a ``sej.Writer``.
        open_transactions: ``"first"``: reserved items come first, the lowest xid at the head, as opening the queue
            would have them; ``"leave"``: they are left out.
        read_back: called with the first offset, gives the messages from there on, as a ``sej.Scanner`` does: what was
            written is read again and compared.
        dialect: what opcode 8 means.
        disk: the seam of the queue's files.
        now_ms: the clock, for items that have no add time.

    Returns:
        What was moved, in all calls together.

    Raises:
        MoveError: the queue or the SEJ journal changed since an export that was cut short, or what was read back is
            something else.
        BusyError: somebody has the queue open.
    """
    with opening(join(directory, name)):
        storage = Storage(directory, name, sync="never", sync_soon=lambda: None, disk=disk, now_ms=now_ms)
        backlog = Backlog(storage, _MEMORY_BYTES, dialect=dialect, disk=disk)
        try:
            machine, damage = load(storage, backlog, dialect=dialect, disk=disk)
            disk.mkdir(join(directory, KEPT))
            first = [machine.open[xid] for xid in sorted(machine.open)] if open_transactions == "first" else []
            waiting = (entry for part in (first, backlog.entries()) for entry in part)
            rows = (row_of(*entry.item, now_ms=now_ms) for entry in waiting if entry.item is not None)
            source = [[os.path.basename(piece.path), piece.size] for piece in storage.pieces]
            progress = Progress(join(directory, join(KEPT, f"{name}.export")), [open_transactions, source], disk)
            moved = export_rows(rows, writer, progress, damage)
            if read_back is not None and moved.first_offset is not None:
                compare(moved, islice(read_back(moved.first_offset), moved.count), progress.path)
            progress.remove()
            return moved
        finally:
            backlog.close()
            storage.close()


class Progress:
    """How far an export is, in a small file that is replaced whole."""

    def __init__(self, path: str, source: list[Any], disk: Disk) -> None:
        self.path = path
        self._source = source
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """What a call that was cut short left; None where there was none."""
        try:
            file = self._disk.open(self.path, "read")
        except FileNotFoundError:
            return None
        try:
            found = json.loads(file.read(1 << 20, 0))
            if not isinstance(found, dict) or not {"source", "start", "count"} <= found.keys():
                raise ValueError
        except ValueError:
            raise MoveError(
                "no progress of an export can be read here: remove it to begin anew", path=self.path
            ) from None
        finally:
            file.close()
        if found["source"] != self._source:
            raise MoveError(
                "the queue was changed since an export that was cut short: remove this file to begin anew, and what"
                f" was exported by then ({found['count']} items from offset {found['start']})",
                path=self.path,
            )
        return found

    def save(self, start: int | None, count: int) -> None:
        """Note how far it is, durably."""
        state = json.dumps({"source": self._source, "start": start, "count": count})
        replace_file(self._disk, f"{self.path}.part", self.path, state.encode())

    def remove(self) -> None:
        """It is finished."""
        self._disk.unlink(self.path)


def export_rows(rows: Iterator[Row], writer: WriterLike, progress: Progress, damage: list[Damage]) -> Moved:
    """Append rows to a SEJ journal from where the progress says, in batches that are synced and noted."""
    offset: int | None = getattr(writer, "offset", None)
    state = progress.load()
    start = offset if state is None else state["start"]
    count = 0 if state is None else state["count"]
    if state is not None and offset is not None and start is not None:
        # What was appended but not noted is there; more than one batch of it is from somebody else.
        if not count <= offset - start <= count + BATCH:
            raise MoveError(
                f"the SEJ journal ends at offset {offset}, an export that was cut short left it between {start + count}"
                f" and {start + count + BATCH}: somebody else wrote to it; remove this file to begin anew behind that",
                path=progress.path,
            )
        count = offset - start
    done, found = checksum(islice(rows, count))
    if done < count:
        raise MoveError(f"{count} items were exported, the queue has {done}: it was changed", path=progress.path)
    if state is None:
        progress.save(start, 0)
    while batch := list(islice(rows, BATCH)):
        writer.append_many(
            [row.value for row in batch], [row.key for row in batch], timestamp=[row.timestamp for row in batch]
        )
        writer.sync()
        count += len(batch)
        found = checksum(batch, found)[1]
        progress.save(start, count)
    end: int | None = getattr(writer, "offset", None)
    if end is not None and start is not None and end - start != count:
        raise MoveError(f"{count} items were exported, the SEJ journal grew by {end - start}", path=progress.path)
    return Moved(count, found, start, damage)


def compare(moved: Moved, messages: Iterable[MessageLike], path: str) -> None:
    """Make sure that these messages are what was moved.

    Raises:
        MoveError: they are not.
    """
    count, found = checksum(messages)
    if (count, found) != (moved.count, moved.checksum):
        raise MoveError(
            f"{moved.count} items with checksum {moved.checksum:08x} were written, {count} with {found:08x} are there:"
            " do not remove the source",
            path=path,
        )


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[MessageLike],
    *,
    keys: Literal["refuse", "drop"] = "refuse",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Add messages to a queue that nobody has open, behind what it holds: all of them or none.

    Args:
        directory: where the queue's files are; made if missing.
        name: the queue.
        messages: a ``sej.Scanner`` or the like. After a call that was cut short: the same ones again.
        keys: what to do with keys and types, for which Kestrel has no place.
        disk: the seam.
        now_ms: the clock, for messages without a timestamp.

    Returns:
        What was moved.

    Raises:
        MoveError: a message has a key or type, the messages are not those of a call that was cut short, or what was
            written reads as something else.
        BusyError: somebody has the queue open.
    """
    with opening(join(directory, name)):
        storage = Storage(directory, name, sync="never", sync_soon=lambda: None, disk=disk, now_ms=now_ms)
        backlog = Backlog(storage, _MEMORY_BYTES, disk=disk)
        try:
            _, damage = load(storage, backlog, disk=disk)
            storage.ready(damage)
            disk.mkdir(join(directory, KEPT))
            staged = join(directory, join(KEPT, f"{name}.import"))
            marker, published = f"{staged}.due", f"{staged}.published"
            if _adopted(staged, storage, disk) and disk.status(marker) is not None:
                # A call that was cut short came as far as the rename; so the same messages are not to come twice.
                disk.rename(marker, published)
                disk.unlink(staged)
            count, found = _stage(staged, (fields_of(message, keys, now_ms) for message in messages), disk)
            mark = f"{count} {found}".encode()
            if count and _read(published, disk) != mark:
                replace_file(disk, f"{marker}.part", marker, mark)
                storage.adopt(staged)
            for path in (staged, published, marker):
                if disk.status(path) is not None:
                    disk.unlink(path)
            return Moved(count, found, None, damage)
        finally:
            backlog.close()
            storage.close()


def _adopted(staged: str, storage: Storage, disk: Disk) -> bool:
    """Whether the staged file is gone, or is by now a file of the journal that has its old name too."""
    status = disk.status(staged)
    if status is None:
        return True
    there = [disk.status(piece.path) for piece in storage.pieces]
    return any(other is not None and other.identity == status.identity for other in there)


def _read(path: str, disk: Disk) -> bytes | None:
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return None
    try:
        return file.read(100, 0)
    finally:
        file.close()


def _stage(path: str, items: Iterator[Item], disk: Disk) -> tuple[int, int]:
    """Write items to a file behind those that are there already, which must be the first ones; verified and durable."""
    file = disk.open(path, "append")
    try:
        count, found, size = _sum_up(read_operations(file, dialect="2.4"))
        if size < file.status().size:
            file.truncate(size)
        done, same = 0, 0
        for item in islice(items, count):
            same = _sum_item(same, item)
            done += 1
        if (done, same) != (count, found):
            raise MoveError(
                f"{count} items of an import that was cut short are here, and the messages do not begin with them: give"
                " the same messages, or remove this file to begin anew",
                path=path,
            )
        while batch := list(islice(items, BATCH)):
            file.write(b"".join(addx(item.data, item.add_time or 0, item.expiry) for item in batch))
            for item in batch:
                found = _sum_item(found, item)
            count += len(batch)
        file.sync()
        there = _sum_up(read_operations(file, dialect="2.4"))[:2]
        if there != (count, found):
            raise MoveError(f"{count} items were written, {there[0]} are there or their bytes are others", path=path)
        return count, found
    finally:
        file.close()


def _sum_up(operations: Iterator[Operation]) -> tuple[int, int, int]:
    """Count, checksum and size of staged items, up to where the file was torn."""
    count, found, size = 0, 0, 0
    try:
        for operation in operations:
            found = _sum_item(found, Item(operation.data or b"", operation.add_time, operation.expiry or 0))
            count += 1
            size = operation.position + operation.size
    except DamageError:
        pass
    return count, found, size


def row_of(data: bytes, add_time: int | None, expiry: int | None, *, now_ms: Callable[[], int]) -> Row:
    """An item as a message; None or 0: no expiry, None: no add time."""
    time_ms = now_ms() if add_time is None else min(max(add_time, _MIN_MS), _MAX_MS)
    return Row(time_ms * _NS, b"expiry=%d" % expiry if expiry and expiry > 0 else b"", data)


def fields_of(message: MessageLike, keys: str, now_ms: Callable[[], int]) -> Item:
    """A message as an item.

    Raises:
        MoveError: it has a key or type, and keys is ``"refuse"``.
    """
    match = _EXPIRY_KEY.fullmatch(message.key)
    if keys == "refuse" and (message.type or (message.key and not match)):
        raise MoveError(
            f"a message has the key {message.key!r} and type {message.type}, for which Kestrel has no place: import"
            ' with keys="drop" to leave them out'
        )
    expiry = min(int(match[1]), 2**63 - 1) if match else 0
    return Item(message.value, now_ms() if message.timestamp == -(2**63) else message.timestamp // _NS, expiry)


def _sum(start: int, timestamp: int, key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %d %b" % (len(value), timestamp, key), start))


def _sum_item(start: int, item: Item) -> int:
    """Without the add time: a message that has none gets another one when the call is repeated."""
    return _sum(start, 0, b"%d" % item.expiry, item.data)
