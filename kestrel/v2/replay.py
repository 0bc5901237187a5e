"""What a journal adds up to: a queue's state, by the rules of the operations."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.files import check_place
from kestrel.v2.backlog import Backlog
from kestrel.v2.items import Item, item_of
from kestrel.v2.journal import DIALECT, Dialect, read_batches
from kestrel.v2.storage import Piece, Pieces, Snapshot
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path

_ALL: Final = 1 << 62


class Checkpoint(NamedTuple):
    """The state at the end of a rotated file, by numbers alone.

    Attributes:
        piece: that file.
        open: the open transactions and their entries' numbers.
        waiting: the waiting entries as ranges of numbers, head first.
        added: the number of the first entry that a newer file adds.
        last_xid: the transaction id that was used last.
    """

    piece: Piece
    open: dict[int, int]
    waiting: list[range]
    added: int
    last_xid: int

    @classmethod
    def of(cls, piece: Piece, backlog: Backlog) -> Checkpoint:
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


def load(storage: Pieces, backlog: Backlog, *, dialect: Dialect = "auto") -> tuple[list[Damage], list[Checkpoint]]:
    """Replay a storage's files into a backlog, which bounds the memory; sets the pieces' sizes to what is good of them.

    Returns:
        What was unreadable, and the states at the ends of files at which the queue was in read-behind.
    """
    damage, checkpoints = [], []
    for piece in storage.pieces:
        file = storage.open(piece)
        try:
            for batch in read_batches(file, dialect=dialect, end=piece.size):
                if not backlog.apply(piece, batch):
                    break
        except DamageError as error:
            piece.size = error.position or 0
            damage.append(Damage(piece.path, piece.size, error.reason))
        finally:
            storage.release(file)
        if backlog.behind and piece is not storage.pieces[-1]:
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
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    DIALECT("dialect", dialect)
    snapshot = Snapshot(directory, name, disk=disk)
    backlog = Backlog(snapshot, _ALL)
    try:
        damage, _ = load(snapshot, backlog, dialect=dialect)
        return State(
            [item_of(row) for row in backlog.memory],
            {xid: item_of(row) for xid, row in sorted(backlog.open.items())},
            backlog.last_xid,
            damage,
            [piece.path for piece in snapshot.pieces],
        )
    finally:
        snapshot.close()
