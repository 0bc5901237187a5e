"""What a journal adds up to: a queue's state, by the rules of the operations; and making the journal small again.

A rewrite replaces all files by one with the whole state. It is for queues that fit into memory.

A queue in read-behind is packed at checkpoints. When the reader has passed the end of a rotated file, that file and all
older ones are replaced by one file that leads to the same state, but has no data for removed items. Removed items keep
their places, because the newer files still have the operations that remove them. All other items before the checkpoint
are in memory, because the reader has passed them.

The original writes the transactions opened since the checkpoint first, and after them one empty item for each remove.
So if removes and reserves are mixed, a reserve may find an empty item. Here each item keeps its place.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.fast import Entry
from kestrel.files import Place
from kestrel.reading import Pinned, opened
from kestrel.v2.backlog import Backlog
from kestrel.v2.format import CONFIRM_REMOVE, REMOVE_TENTATIVE_XID, addx, xid_operation
from kestrel.v2.items import Item, Row, item_of
from kestrel.v2.journal import DIALECT, Dialect
from kestrel.v2.storage import Pieces, pinned_pieces
from sej.system.disk import OS, Disk

_ALL: Final = 1 << 62
_BLOCK: Final = 1 << 18
_RUN: Final = 1 << 12


class Checkpoint(NamedTuple):
    """The state at the end of a rotated file, by numbers alone.

    Attributes:
        piece: that file.
        open: the open transactions and their entries' numbers.
        waiting: the waiting entries as ranges of numbers, head first.
        added: the number of the first entry that a newer file adds.
        last_xid: the transaction id that was used last.
    """

    piece: Entry
    open: dict[int, int]
    waiting: list[range]
    added: int
    last_xid: int

    @classmethod
    def of(cls, piece: Entry, backlog: Backlog) -> Checkpoint:
        """The state as it is now, at the end of piece."""
        waiting: list[range] = []
        for number, *_ in backlog.memory:
            if waiting and waiting[-1].stop == number:
                waiting[-1] = range(waiting[-1].start, number + 1)
            else:
                waiting.append(range(number, number + 1))
        if backlog.behind:
            waiting.append(range(backlog.next_number, backlog.added))
        open_ = {xid: row[0] for xid, row in backlog.open.items()}
        return cls(piece, open_, waiting, backlog.added, backlog.last_xid)


def load(pieces: Pieces, backlog: Backlog) -> tuple[list[Damage], list[Checkpoint]]:
    """Replay files into a backlog, which bounds the memory; sets the pieces' sizes to what is good of them.

    Returns:
        What was unreadable, and the states at the ends of files at which the queue was in read-behind.
    """
    damage, checkpoints = [], []
    for piece in pieces.all:
        try:
            with opened(pieces.source, piece.path) as file:
                for batch in pieces.reading(file, 0, piece.size).batches():
                    if not backlog.apply(piece, batch):
                        break
        except DamageError as error:
            piece.size = error.position or 0
            damage.append(Damage(piece.path, piece.size, error.reason))
        backlog.reread()
        if backlog.behind and piece is not pieces.all[-1]:
            checkpoints.append(Checkpoint.of(piece, backlog))
    return damage, checkpoints


class State(NamedTuple):
    """What a queue holds.

    Attributes:
        items: head first.
        open_transactions: the reserved items by xid, ascending.
        last_xid: the transaction id that was used last.
        damage: what was unreadable; each file counts up to there.
        files: the files that were read, in that order.
    """

    items: list[Item]
    open_transactions: dict[int, Item]
    last_xid: int
    damage: list[Damage]
    files: list[str]

    @property
    def recovered(self) -> list[Item]:
        """The items with the open ones put back, the lowest xid at the head, as opening the queue would."""
        return [*self.open_transactions.values(), *self.items]


def replay(directory: str | os.PathLike[str], name: str, *, dialect: Dialect = "auto", disk: Disk = OS) -> State:
    """What a queue's journal adds up to; changes nothing, takes no lock and holds all of it in memory.

    If a process rotates or rewrites the files while they are opened, they are opened again.

    Args:
        directory: where the files are.
        name: the queue.
        dialect: what opcode 8 means.
        disk: the seam.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: the directory does not exist.
        BadNameError: no queue can have this name.
        BusyError: the queue replaces its files faster than they can be opened.
    """
    DIALECT("dialect", dialect)
    with closing(Pinned(Place.of(directory, name, disk))) as snapshot:
        pieces = pinned_pieces(snapshot, dialect)
        backlog = Backlog(pieces, _ALL)
        damage, _ = load(pieces, backlog)
    return State(
        [item_of(row) for row in backlog.memory],
        {xid: item_of(row) for xid, row in sorted(backlog.open.items())},
        backlog.last_xid,
        damage,
        [piece.path for piece in pieces.all],
    )


def dump(backlog: Backlog, now_ms: int) -> Iterator[bytes]:
    """A whole state as operations, in blocks: replayed, it is the same state with the same last xid.

    Args:
        backlog: what waits, and the open transactions.
        now_ms: the add time of items that have none.
    """
    waiting = (_add(row, now_ms) for row in backlog.rows())
    return _blocks(_dump(backlog.open, waiting, backlog.last_xid, now_ms))


def packed(checkpoint: Checkpoint, alive: dict[int, Row], now_ms: int) -> Iterator[bytes]:
    """A checkpoint's state as operations, in blocks; items that are not alive any more without their data."""
    open_ = {xid: alive.get(number) for xid, number in checkpoint.open.items()}
    return _blocks(_dump(open_, _remaining(checkpoint.waiting, alive, now_ms), checkpoint.last_xid, now_ms))


def _remaining(waiting: list[range], alive: dict[int, Row], now_ms: int) -> Iterator[bytes]:
    """What waited at a checkpoint; many items that are gone in one part, because a long queue has millions."""
    order, gone = sorted(alive), _add(None, now_ms)
    for numbers in waiting:
        here = order[bisect_left(order, numbers.start) : bisect_left(order, numbers.stop)]
        at = numbers.start
        for number in (*here, numbers.stop):
            for first in range(at, number, _RUN):
                yield gone * min(_RUN, number - first)
            if number < numbers.stop:
                yield _add(alive[number], now_ms)
            at = number + 1


def _dump(open_: Mapping[int, Row | None], waiting: Iterable[bytes], last_xid: int, now_ms: int) -> Iterator[bytes]:
    for xid in sorted(open_, key=lambda xid: (xid == last_xid, xid)):  # a replay ends with the one that was used last
        yield _add(open_[xid], now_ms)
        yield xid_operation(REMOVE_TENTATIVE_XID, xid)
    unused = b""
    if last_xid and last_xid not in open_:
        # This makes it the last one that was used, in operations that every Kestrel 2 reads; only while nothing waits.
        unused = addx(b"", 0) + b"".join(xid_operation(one, last_xid) for one in (REMOVE_TENTATIVE_XID, CONFIRM_REMOVE))
    if open_:
        yield unused
        unused = b""
    for part in waiting:  # an empty queue is left empty
        yield unused + part
        unused = b""


def _add(row: Row | None, now_ms: int) -> bytes:
    """An item; None: one that is gone, without its data."""
    if row is None:
        return addx(b"", 0)
    _, data, add_time, expiry, _ = row
    return addx(data, now_ms if add_time is None else add_time, expiry)


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    block: list[bytes] = []
    size = 0
    for part in parts:
        block.append(part)
        size += len(part)
        if size >= _BLOCK:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)
