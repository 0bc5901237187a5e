"""What a journal adds up to: a queue's state, by the rules of the operations."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from kestrel.errors import BusyError, Damage, DamageError, MissingError
from kestrel.files import check_place, join
from kestrel.v2.codec import Operation
from kestrel.v2.hot import Reserving
from kestrel.v2.items import Item, Row, item_of
from kestrel.v2.journal import DIALECT, Dialect, read_journal
from kestrel.v2.listing import Part, list_parts
from kestrel.v2.rules import apply
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path

_TRIES: Final = 20


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

    If a process rotates or rewrites the files meanwhile, they are read again.

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
        BusyError: the queue replaces its files faster than they can be read.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    DIALECT("dialect", dialect)
    for _ in range(_TRIES):
        parts = list_parts(directory, name, disk).parts
        before = _identities(parts, disk)
        try:
            state = _replay(parts, dialect, disk)
        except MissingError:
            continue
        if _identities(list_parts(directory, name, disk).parts, disk) == before:
            return state
    raise BusyError(
        f"the files were replaced {_TRIES} times while they were read; read them when the queue is less busy",
        path=join(directory, name),
    )


def _identities(parts: list[Part], disk: Disk) -> list[object]:
    """Return what identifies these files, independent of appended bytes."""
    found: list[object] = []
    for part in parts:
        status = disk.status(part.path)
        found.append((part, status and status.identity))
    return found


def _replay(parts: list[Part], dialect: Dialect, disk: Disk) -> State:
    rows: deque[Row] = deque()
    reserving = Reserving()
    damage: list[Damage] = []
    for part in parts:
        for operation in read_part(part, damage, dialect=dialect, disk=disk):
            apply(reserving, rows, operation)
    return State(
        [item_of(row) for row in rows],
        {xid: item_of(row) for xid, row in sorted(reserving.open.items())},
        reserving.last_xid,
        damage,
        [part.path for part in parts],
    )


def read_part(part: Part, damage: list[Damage], *, dialect: Dialect, disk: Disk) -> Iterator[Operation]:
    """The operations of one file that count: up to damage, which is noted, or to the state dump that ends it."""
    try:
        for operation in read_journal(part.path, dialect=dialect, disk=disk):
            if operation.count is not None:
                return
            yield operation
    except DamageError as error:
        damage.append(Damage(part.path, error.position or 0, error.reason))
