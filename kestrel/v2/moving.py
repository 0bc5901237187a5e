"""Move a Kestrel 2 queue into a SEJ journal, and back. ``transfer`` describes the mapping of the fields.

Both ways are resumable: a call that was cut short (a crash, a full disk) is finished by calling it again, and nothing
is stored twice. An export only reads the queue's directory; its progress is a file in the SEJ journal until it has
finished. An import is written to ``kept/<name>.import`` and becomes part of the journal whole, by one rename. Both
ways are verified: what was written is counted and its checksum is compared.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Literal

from kestrel.errors import DamageError, MoveError
from kestrel.files import KEPT, check_place, join, opening
from kestrel.limits import wall_clock_ms
from kestrel.transfer import (
    BATCH,
    Expired,
    Imported,
    MessageLike,
    Moved,
    Progress,
    WriterLike,
    check_export,
    check_import,
    checksum,
    export_rows,
    fields_of,
    rows_of,
)
from kestrel.v2.backlog import Backlog
from kestrel.v2.codec import Operation, addx
from kestrel.v2.items import Item
from kestrel.v2.journal import DIALECT, Dialect, read_operations
from kestrel.v2.listing import require
from kestrel.v2.packing import load
from kestrel.v2.storage import Snapshot, Storage, refuse_others
from sej.checks import one_of
from sej.checks import require as require_arguments
from sej.system.disk import OS, Disk, read_small, replace_file
from sej.system.durable import renew
from sej.system.paths import absolute_path
from sej.system.sealed import seal, unseal

_MEMORY_BYTES: Final = 32 << 20
_MARK_BYTES: Final = 1 << 16
_MARK: Final = "published"
"""The mark of an import is renamed, so this is the name in its checksum."""


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    open_transactions: Literal["first", "leave"] = "first",
    expired: Expired = "mark",
    read_back: Callable[[int], Iterable[MessageLike]] | None = None,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Append what a queue holds to a SEJ journal. The queue is not changed: its directory is only read.

    An original may run on the same files. If it changes the queue meanwhile, the export fails.
    If it is called again after it has finished, and the queue is the same, it appends nothing and returns the same: the
    file ``<name>.exported`` in the SEJ journal records it.

    Args:
        directory: where the queue's files are.
        name: the queue.
        writer: a ``sej.Writer``.
        open_transactions: ``"first"``: reserved items come first, the lowest xid at the head, as opening the queue
            would have them; ``"leave"``: they are left out.
        expired: ``"mark"``: an item that has expired gets the key ``expired=<ms>`` instead of ``expiry=<ms>``;
            ``"leave"``: it is left out.
        read_back: called with an offset, gives the messages from there on, as a ``sej.Scanner`` does: what was
            written is read again and compared. Without it, the export does not notice that another program appended to
            the journal between a call that was cut short and this one: such messages are taken for items.
        dialect: what opcode 8 means.
        disk: the seam of the queue's files.
        now_ms: the clock, for items that have no add time, and for what has expired.

    Returns:
        What was moved, in all calls together.

    Raises:
        MoveError: the queue or the SEJ journal changed since an export that was cut short, what was read back is
            something else, or the same queue was exported with other options.
        MissingError: the directory has no such queue.
        BusyError: another process has the queue open, or a program changed it while it was read.
        DamageError: the files are those of a Kestrel 3 queue.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    check_export(writer, read_back, expired, now_ms)
    require_arguments(open_transactions=(open_transactions, one_of(("first", "leave"))), dialect=(dialect, DIALECT))
    with opening(join(directory, name)):
        require(directory, name, disk)
        snapshot = Snapshot(directory, name, disk=disk, exclude=True)
        backlog = Backlog(snapshot, _MEMORY_BYTES, dialect=dialect)
        try:
            refuse_others(snapshot)
            machine, damage = load(snapshot, backlog, dialect=dialect)
            source = [[os.path.basename(piece.path), piece.size] for piece in snapshot.pieces]
            first = [machine.open[xid] for xid in sorted(machine.open)] if open_transactions == "first" else []
            waiting = (row for part in (first, backlog.rows()) for row in part)
            progress = Progress.of_export(
                directory, name, writer, [open_transactions, source], disk, snapshot.written()
            )
            at = progress.time_ms(now_ms)
            items = ((data, add_time, expiry or None) for _, data, add_time, expiry, _ in waiting)
            rows = rows_of(items, at, at, expired)
            return export_rows(rows, writer, progress, damage, read_back, snapshot.check)
        finally:
            backlog.close()
            snapshot.close()


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[MessageLike],
    *,
    keys: Literal["refuse", "drop"] = "refuse",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Add messages to a queue that no process has open, after its items: all of them or none.

    If it is called again with the same messages after it has finished, and the queue has not changed since, it adds
    nothing and returns the same: the file ``kept/<name>.imported`` records it. To add them twice, remove that file.

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
        MoveError: a message has a key or type, the messages are not those of a call that was cut short, what was
            written reads as something else, or the record of an import cannot be read.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 3 queue.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    check_import(messages, keys, now_ms)
    with opening(join(directory, name)):
        storage = Storage(directory, name, sync="never", sync_soon=lambda: None, disk=disk, now_ms=now_ms)
        backlog = Backlog(storage, _MEMORY_BYTES)
        try:
            storage.renew()
            _, damage = load(storage, backlog)
            storage.ready(damage)
            disk.mkdir(join(directory, KEPT))
            staged = join(directory, join(KEPT, f"{name}.import"))
            marker, published = f"{staged}.due", f"{staged}.published"
            if _adopted(staged, storage, disk) and disk.status(marker) is not None:
                # A call that was cut short came as far as the rename, so the same messages must not be added twice.
                disk.rename(marker, published)
                disk.unlink(staged)
            imported = Imported(directory, name, disk)
            last = imported.load(_files(storage))
            passed = _Passed(messages)
            count, found = _stage(staged, (Item(*fields_of(message, keys, now_ms())) for message in passed), disk)
            mark = {"count": count, "checksum": found}
            if count and [count, passed.checksum] != last:
                if _read(published, disk) != mark:
                    replace_file(disk, f"{marker}.part", marker, seal(_MARK, mark))
                    storage.adopt(staged)
                imported.save(_files(storage), [count, passed.checksum])
            for path in (staged, published, marker):
                if disk.status(path) is not None:
                    disk.unlink(path)
            return Moved(count, found, None, damage)
        finally:
            backlog.close()
            storage.tail.close()


class _Passed:
    """Messages, and a checksum of those that were read, with the times that a queue does not store exactly."""

    def __init__(self, messages: Iterable[MessageLike]) -> None:
        self.checksum = 0
        self._messages = messages

    def __iter__(self) -> Iterator[MessageLike]:
        for message in self._messages:
            self.checksum = checksum([message], self.checksum)[1]
            yield message


def _files(storage: Storage) -> list[list[str | int]]:
    """The state of a queue: an item that is put or taken makes the current file longer, or replaces files."""
    return [[os.path.basename(piece.path), piece.size] for piece in storage.pieces if piece.size]


def _adopted(staged: str, storage: Storage, disk: Disk) -> bool:
    """Whether the staged file is gone, or is already a file of the journal that still has its old name as well."""
    status = disk.status(staged)
    if status is None:
        return True
    there = [disk.status(piece.path) for piece in storage.pieces]
    return any(other is not None and other.identity == status.identity for other in there)


def _read(path: str, disk: Disk) -> dict[str, int] | None:
    """How many items were published, and their checksum; None if none were.

    Raises:
        MoveError: the record cannot be read.
    """
    try:
        data = read_small(disk, path, _MARK_BYTES)
    except FileNotFoundError:
        return None
    try:
        return unseal(_MARK, data)
    except ValueError as error:
        raise MoveError(
            f"the record of an import that was cut short cannot be read ({error}); compare the queue with the messages,"
            " then remove this file",
            path=path,
        ) from error


def _stage(path: str, items: Iterator[Item], disk: Disk) -> tuple[int, int]:
    """Write items to a file after those that it has already, which must be the first ones; verified and durable."""
    file = disk.open(path, "append")
    try:
        renew(disk, file, 0, file.size())  # a call that was cut short may have failed to sync it
        count, found, size = _sum_up(read_operations(file, dialect="2.4"))
        if size < file.status().size:
            file.truncate(size)
        done, same = 0, 0
        for item in islice(items, count):
            same = _sum_item(same, item)
            done += 1
        if (done, same) != (count, found):
            raise MoveError(
                f"an import that was cut short left {count} items here, and the messages do not begin with them; pass"
                " the same messages again, or remove this file to import all of them",
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
            raise MoveError(
                f"{count} items were written, {there[0]} were read back, or their bytes differ; check the disk",
                path=path,
            )
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


def _sum_item(start: int, item: Item) -> int:
    """Without the add time: a message that has none gets another one when the call is repeated."""
    return zlib.crc32(item.data, zlib.crc32(b"%d %d" % (len(item.data), item.expiry), start))
