"""What an open queue holds: the journal's files and their effect in memory, changed together.

Every change has three steps, in this order::

    1. write the operations      Appender.append; ``fuse.live`` is False from here on
    2. apply them to the memory  Backlog: what waits, and what is reserved
    3. ``fuse.live = True``      files and memory agree again

If step 1 fails, nothing was applied and the queue has failed. If a signal's handler raises between 1 and 3, ``live``
stays False and every later call is refused. So the memory never shows a state that the files do not lead to.

After a change that lets the journal grow or shrink, it is rotated, rewritten or packed. The caller holds the queue's
mutex.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, Literal, NamedTuple

from kestrel.errors import Damage, MissingError
from kestrel.files import Place, wall_clock_ms
from kestrel.reading import Pinned
from kestrel.tail import Sync, end
from kestrel.transfer import Expired, Fields, Import, Moved, WriterLike, export_to
from kestrel.v2 import format as opcodes
from kestrel.v2.format import addx, continue_, removes, xid_operation
from kestrel.v2.items import Row
from kestrel.v2.journal import DIALECT, Dialect, Storage, list_parts, pinned_pieces, reading, refuse_others
from kestrel.v2.replay import MEMORY_PER_BYTE, Backlog, Checkpoint, dump, load, next_xid, packed
from sej.checks import one_of
from sej.message import Message
from sej.system.disk import OS, Disk, File

_FLUSH_STEP: Final = 1 << 16
_MOST: Final = 1 << 62
MEMORY_BYTES: Final = 32 << 20
"""The memory of a pack, an export or an import."""


class Sizes(NamedTuple):
    """When a journal is rotated or rewritten, as the options of a queue say; by default never."""

    max_memory_bytes: int
    journal_bytes: int = _MOST
    max_journal_bytes: int = _MOST
    compact_delay_s: float = 0.0


class Contents:
    """The state of one open queue; a :class:`~kestrel.tail.Store`.

    Attributes:
        backlog: what waits, and what is reserved.
        reserved_at: when each open transaction was reserved, ms since the epoch; empty in a queue without time-outs.
        tail: appends to the current file.
        fuse: the lifecycle.
        storage: the files.
        damage: what was unreadable when the queue was opened.
        checkpoints: the states at the ends of rotated files, while the queue is in read-behind.
        rewrites: how often the journal was rewritten.
        rotations: how often the current file was rotated.
        packs: how often older files were packed at a checkpoint.
    """

    def __init__(
        self,
        place: Place,
        sizes: Sizes,
        dialect: Dialect = "auto",
        sync: Sync = "never",
        *,
        put_back: bool = False,
        renew: bool = True,
    ) -> None:
        """Take the lock, replay the files and cut what is damaged.

        Args:
            place: where the queue is.
            sizes: when the journal is rotated or rewritten.
            dialect: what opcode 8 means.
            sync: when writes are synced to disk.
            put_back: whether open transactions are put back, the lowest xid at the head.
            renew: whether what earlier processes left is made durable first; False for what is replaced anyway.
        """
        self.storage = storage = Storage(place, dialect, sync)
        self.tail, self.fuse = storage.tail, storage.fuse
        self.backlog = backlog = Backlog(storage, sizes.max_memory_bytes)
        self.rewrites = self.rotations = self.packs = 0
        self._sizes, self._compact_delay_ms = sizes, int(sizes.compact_delay_s * 1000)
        self._next_compaction_ms = self._fresh_bytes = 0
        self.reserved_at: dict[int, int] = {}
        try:
            storage.open()
            if renew:
                self.tail.renewing.renew([piece.path for piece in storage.pieces])
            self.damage, self.checkpoints = load(storage, backlog)
            storage.ready(self.damage)
            self.put_back(sorted(backlog.open, reverse=True) if put_back else [])
        except BaseException:
            end(self)
            raise

    def add(self, items: Sequence[bytes], now: int, expiry: int, *, closes: int | None = None) -> None:
        """Add items at the end, with one write.

        Args:
            items: their data; one if it closes a transaction.
            now: their add time.
            expiry: their expiry; 0: never.
            closes: the transaction that is confirmed by the same operation.
        """
        storage, backlog = self.storage, self.backlog
        piece, position = storage.current, storage.current.size
        operations = [addx(data, now, expiry) for data in items]
        if closes is not None:
            operations = [continue_(closes, data, now, expiry) for data in items]
        self.tail.append(b"".join(operations))
        for operation, data in zip(operations, items, strict=True):
            backlog.place = (piece, position)
            backlog.append((backlog.added, data, now, expiry, 0))
            backlog.added += 1
            position += len(operation)
        if closes is not None:
            self._forget(closes)
        self.fuse.live = True
        self.look_ahead()

    def remove(self, *, expired: bool = False) -> Row:
        """Take the head, for good. The caller has looked at it, so it is in memory."""
        self.tail.append(removes(1))
        row = self.backlog.popleft()
        if not expired and row[2] is not None:
            self.backlog.taken_add_time = row[2]
        self.fuse.live = True
        return row

    def reserve(self, now: int | None) -> tuple[int, Row]:
        """Take the head as a transaction; returns its id, and the row. As :meth:`remove`.

        Args:
            now: the time, ms since the epoch, if it is needed later; else None.
        """
        backlog = self.backlog
        xid = next_xid(backlog.last_xid, backlog.open)
        self.tail.append(xid_operation(opcodes.REMOVE_TENTATIVE_XID, xid))
        row = backlog.popleft()
        backlog.last_xid = xid
        backlog.open[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            backlog.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    def confirm(self, xid: int) -> None:
        """End an open transaction."""
        self.tail.append(xid_operation(opcodes.CONFIRM_REMOVE, xid))
        self._forget(xid)
        self.fuse.live = True

    def _forget(self, xid: int) -> None:
        del self.backlog.open[xid]
        self.reserved_at.pop(xid, None)

    def put_back(self, xids: list[int]) -> None:
        """Put reserved items back at the head, one after another; so the last of xids ends there."""
        if xids:
            self.tail.append(b"".join(xid_operation(opcodes.UNREMOVE, xid) for xid in xids))
            for xid in xids:
                self.backlog.appendleft(self.backlog.open.pop(xid))
                self.reserved_at.pop(xid, None)
            self.fuse.live = True
        self.look_ahead()

    def clear(self, now: int) -> int:
        """Remove everything that waits; returns how many items."""
        backlog = self.backlog
        last = backlog.memory[-1][2] if backlog.memory and not backlog.behind else now
        count = left = len(backlog)
        while left:
            step = min(left, _FLUSH_STEP)
            self.tail.append(removes(step), midway=left < count)
            left -= step
        backlog.clear()
        if count and last is not None:
            backlog.taken_add_time = last
        self.fuse.live = True
        return count

    def tend(self, now: int) -> None:
        """Before an item is added and after one was taken: keep the journal small."""
        below = self._quiet_below if self.backlog else self._empty_below
        if self.storage.current.size >= below or self._passed:
            self._shrink(now)
        self.look_ahead()

    def look_ahead(self) -> None:
        """How far the current file may grow before a change of one item needs anything but the write and its effect."""
        backlog = self.backlog
        quiet = 0 if backlog.expiring else min(_MOST, self._quiet_below)
        behind = bool(backlog.behind)
        backlog.behind_below = quiet if behind else 0
        backlog.plain_below = 0 if behind else min(quiet, self.storage.current.size + backlog.room // MEMORY_PER_BYTE)
        backlog.empty_below = min(backlog.plain_below, self._empty_below)

    @property
    def _quiet_below(self) -> int:
        """While the current file is smaller than this, a put needs nothing else if an item waits."""
        if self.backlog.behind:
            return self._sizes.max_memory_bytes
        older = self.storage.total_size - self.storage.current.size
        return min(self._sizes.max_memory_bytes, self._sizes.max_journal_bytes + self._fresh_bytes - older)

    @property
    def _empty_below(self) -> int:
        """As ``_quiet_below``, if no item waits."""
        return min(self._quiet_below, self._sizes.journal_bytes + self._fresh_bytes)

    @property
    def _passed(self) -> bool:
        """Whether the reader has passed a checkpoint. Only reading changes this; so a put need not look."""
        if not self.checkpoints:
            return False
        reader, end = self.backlog.piece, self.checkpoints[0].piece
        return reader is None or reader.stamp is None or reader.stamp > (end.stamp or 0)  # the current file has none

    def _shrink(self, now_ms: int) -> None:
        """Rotate, rewrite or pack if the files are too large. Raises as ``Appender.append``."""
        storage, backlog = self.storage, self.backlog
        if self._passed:
            self._pack(now_ms)
        size = storage.current.size
        if size >= self._sizes.journal_bytes + self._fresh_bytes and not backlog:
            self.rewrite(now_ms)
        elif (
            storage.total_size > self._sizes.max_journal_bytes + self._fresh_bytes
            and not backlog.behind
            and not 0 < self._next_compaction_ms - now_ms <= self._compact_delay_ms  # more: the clock was set back
        ):
            self.rewrite(now_ms)
            self._next_compaction_ms = now_ms + self._compact_delay_ms
        elif size > self._sizes.max_memory_bytes:
            piece = storage.rotate()
            self.rotations += 1
            if backlog.behind:
                self.checkpoints.append(Checkpoint.of(piece, backlog))

    def rewrite(self, now_ms: int) -> None:
        """Rewrite the journal."""
        self.storage.rewrite(dump(self.backlog, now_ms))
        self.checkpoints.clear()
        self._fresh_bytes = self.storage.current.size
        self.rewrites += 1

    def _pack(self, now_ms: int) -> None:
        last = self.checkpoints[0]
        while self._passed:
            last = self.checkpoints.pop(0)
        # What waits or is reserved and came from these files is in memory: the reader has passed them.
        alive = {row[0]: row for row in self.backlog.memory if row[0] < last.added}
        alive.update((row[0], row) for row in self.backlog.open.values())
        self.storage.replace(last.piece, packed(last, alive, now_ms))
        self.packs += 1

    def settle(self) -> None:
        """Rewrite the journal of an empty queue, as the original does."""
        if self.fuse.live and not self.backlog and self.storage.total_size:
            self.rewrite(self.storage.place.now_ms())

    def erase(self) -> None:
        """Remove the queue's files."""
        self.storage.erase()

    def release(self) -> None:
        """Close what is read."""
        self.backlog.close()


def require(place: Place) -> None:
    """Make sure that a queue has files, for callers that would otherwise make an empty queue.

    Raises:
        MissingError: the directory does not exist, or has no file of the queue.
    """
    if not any(list_parts(place.files(), place.name)):
        raise MissingError(
            f"the directory holds no file of a queue {place.name!r}; check the name", path=place.directory
        )


def pack(
    directory: str | os.PathLike[str],
    name: str,
    *,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> list[Damage]:
    """Put all files of a queue that no process has open into one, with the same items, open transactions and last xid.

    Memory stays bounded; damaged bytes are copied to ``kept/``.

    Args:
        directory: where the files are.
        name: the queue.
        dialect: what opcode 8 means.
        disk: the seam.
        now_ms: the clock, in ms since the epoch.

    Returns:
        What was unreadable.

    Raises:
        MissingError: the directory has no such queue.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 3 queue, which packs nothing.
        FailedError: a write failed; the journal holds the same as before.
    """
    place = Place.of(directory, name, disk, now_ms)
    DIALECT("dialect", dialect)
    with place.opening():
        require(place)
        store = Contents(place, Sizes(MEMORY_BYTES), dialect, renew=False)
        try:
            store.rewrite(now_ms())
        finally:
            end(store)
    return store.damage


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    open_transactions: Literal["first", "leave"] = "first",
    expired: Expired = "mark",
    read_back: Callable[[int], Iterable[Message]] | None = None,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Append what a queue holds to a SEJ journal. The queue is not changed: its directory is only read.

    An original may run on the same files. If it changes the queue meanwhile, the export fails.
    If it is called again after it has finished, and the queue is the same, it appends nothing and returns the same: the
    file ``<name>.exported`` in the SEJ journal is its plan and its record.

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
    place = Place.of(directory, name, disk, now_ms)
    one_of(("first", "leave"))("open_transactions", open_transactions)
    DIALECT("dialect", dialect)
    with place.opening():
        require(place)
        with closing(Pinned(place, exclude=True)) as snapshot:
            journal = pinned_pieces(snapshot, dialect)
            backlog = Backlog(journal, MEMORY_BYTES)
            refuse_others(journal)
            snapshot.damage, _ = load(journal, backlog)
            first = [backlog.open[xid] for xid in sorted(backlog.open)] if open_transactions == "first" else []
            waiting = (row for part in (first, backlog.rows()) for row in part)
            return export_to(
                writer,
                snapshot,
                ((data, add_time, expiry or None) for _, data, add_time, expiry, _ in waiting),
                [open_transactions, [[os.path.basename(piece.path), piece.size] for piece in journal.pieces]],
                expired=expired,
                read_back=read_back,
                grace_ms=1,
            )


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[Message],
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
        MoveError: a message has a key or type, what was written reads as something else, or the record of an import
            cannot be read.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 3 queue.
    """
    place = Place.of(directory, name, disk, now_ms)
    moving = Import(place, messages, keys)
    with place.opening():
        contents = Contents(place, Sizes(MEMORY_BYTES))
        try:
            staged = moving.stage(_Form(), now_ms())
            storage, decided = contents.storage, moving.plan.load()
            mine = [staged.count, staged.messages]
            # The queue has not changed since an import if the newest file that has anything is the imported one.
            newest = [[os.path.basename(piece.path), piece.size] for piece in storage.pieces if piece.size][-1:]
            if staged.count and (decided is None or [decided["messages"], decided["file"]] != [mine, newest]):
                target = storage.after_current()
                moving.plan.store({"messages": mine, "file": [[os.path.basename(target.path), staged.size]]})
                storage.adopt(staged.path, target)
            else:
                disk.unlink(staged.path)
            return Moved(staged.count, staged.checksum, None, contents.damage)
        finally:
            end(contents)


class _Form:
    """A staged item is an ADDX."""

    head = b""

    def encode(self, item: Fields) -> bytes:
        return addx(item.data, item.add_time, item.expiry)

    def decode(self, file: File) -> Iterator[Fields]:
        for operation in reading(file, "2.4").records():
            yield Fields(operation.data or b"", operation.add_time or 0, operation.expiry or 0)
