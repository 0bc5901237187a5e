"""The order of a queue is kept with it: a queue that is opened with another order is refused, or converted by name."""

from __future__ import annotations

from typing import Final

from sej.errors import LockedError
from sej.journal.directory import Directory
from sej.queue.disk.log import QueueLog
from sej.queue.disk.parked import missing_keys, parked_offsets
from sej.queue.log.format import BLOCK, ORDER, WAIT
from sej.queue.log.state import QueueState

ORDERS: Final = ("ready", "key")
"""ready: every item as soon as it is ready; key: the items of a key one after another."""
ON_DEAD: Final = ("next", "block")
"""next: after a dead letter the next item of its key is delivered; block: its key waits until it is put back."""


def settle_order(log: QueueLog, directory: Directory, order: str | None, on_dead: str | None, *, convert: bool) -> None:
    """Compare the order of an open queue with the requested one, under the lock; items of dead processes were returned.

    Args:
        log: the queue's log.
        directory: its journal.
        order: one of ORDERS; None: as the queue has it.
        on_dead: one of ON_DEAD; None: as the queue has it.
        convert: whether to convert the queue if it differs.

    Raises:
        ValueError: it differs, and convert is False.
        LockedError: a worker holds an item, so that the queue cannot be converted now.
    """
    there = log.state.order
    has = "ready" if there is None else "key"
    blocks = "block" if there is not None and there.block else "next"
    if order in (None, has) and (on_dead in (None, blocks) or (there is None and on_dead == "next")):
        return
    wanted, ending = order or has, on_dead or blocks
    if not convert:
        name, kept, got = ("order", has, wanted) if wanted != has else ("on_dead", blocks, ending)
        raise ValueError(
            f"{name} must be {kept!r}, which is kept with this queue, got {got!r};"
            " convert_order=True changes it for all workers"
        )
    if wanted != has and log.state.leased:
        raise LockedError(
            "a queue whose items are leased cannot be converted to another order; stop the workers first", path=log.path
        )
    if wanted == "key":
        keys = () if has == "key" else missing_keys(directory, log.state)
        freed = [] if ending == "block" else _blocked(log.state)
        log.append(ORDER(1, ending == "block"), *keys, *freed)
    else:
        offsets = [offset for offset, _ in parked_offsets(directory, log.state)]
        log.append(*(WAIT(offset, 0, 0, 0) for offset in offsets), ORDER(0, 0))


def _blocked(state: QueueState) -> list[bytes]:
    """Return the records that free the keys of dead letters."""
    order = state.order
    return [] if order is None else [BLOCK(at, key, 0) for at, key in order.keys.items() if not state.has(at)]
