"""Which items of a writer file count: up to damage, and without a torn last one.

The ids in a file ascend. A power failure in the middle of a put may leave the size of the file without the bytes of its
end: the last PUT is then whole by its size, and its id is zero, or half written. The original takes the id of the last
PUT for the queue's last id, and delivers nothing above it. So a last PUT whose id is not above the one before it is
damage here. Elsewhere in a file an id that is not above the one before it is damage too: one of the two is wrong. The
items are whole, so it is reported and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kestrel.segmented.codec import item_of
from kestrel.segmented.files import Reading, check_magic
from kestrel.segmented.format import MAGIC_SIZE, PUT, WRITER_MAGIC
from sej.system.disk import File


class Scan(NamedTuple):
    """One writer file.

    Attributes:
        size: where the records that count end.
        items: how many items they hold.
        first_id: of the first item with an id from 1 on; 0: it has none.
        lowest_id: of all items; 0: it has none.
        last_id: the highest id; 0: it has none.
        data_bytes: the data of all items.
        ended: whether a zero command byte ends the file there.
        reason: why what follows is damage; None: the file ends there, or zeros follow.
        fall: where the first item is whose id is not above the one before it, and what is wrong; None: all ids rise.
    """

    size: int
    items: int = 0
    first_id: int = 0
    lowest_id: int = 0
    last_id: int = 0
    data_bytes: int = 0
    ended: bool = False
    reason: str | None = None
    fall: tuple[int, str] | None = None


def scan(file: File, size: int) -> Scan:
    """Read a writer file once.

    Args:
        file: the file.
        size: how much of it.

    Raises:
        DamageError: it is not a writer file.
    """
    check_magic(file, WRITER_MAGIC)
    reading = Reading(file, end=size)
    totals, reason = reading.totals(), reading.reason
    end = min(reading.position, size)
    if totals is None:
        return Scan(end, ended=reading.ended, reason=reason)
    if totals.last_id <= totals.before_last and reason is None:
        last, before = totals.last_id, totals.before_last
        reason = f"the last item has the id {last}, expected one above {before}; a power failure tore it"
        return scan(file, _last_put(file, end))._replace(ended=reading.ended, reason=reason)
    items, first, lowest, highest, _, _, data_bytes, _, rising = totals
    fall = None if rising else _first_fall(file, end)
    return Scan(end, items, first, lowest, highest, data_bytes, reading.ended, reason, fall)


def _first_fall(file: File, size: int) -> tuple[int, str] | None:
    """Where the first item is whose id is not above the one before it, and what is wrong."""
    before: int | None = None
    for record in Reading(file, end=size).records():
        if record.command == PUT:
            number = item_of(record).id
            if before is not None and number <= before:
                reason = f"an item with the id {number} follows one with {before}: one of the two ids is damaged"
                return record.position, f"{reason}; nothing was cut"
            before = number
    return None


def _last_put(file: File, size: int) -> int:
    """Where the last item's record begins."""
    return max(
        record.position for record in Reading(file, end=size).records() if record.command == PUT and item_of(record)
    )


def settle(scans: Sequence[Scan]) -> list[Scan]:
    """The scans of a queue's files, in the order in which the files were made, without a torn item alone in the newest.

    Its id is not above those of the other files.
    """
    if not scans:
        return []
    *others, newest = scans
    above = max((one.last_id for one in others), default=0)
    if newest.items == 1 and newest.last_id <= above:
        reason = f"the only item has the id {newest.last_id}, expected one above {above}; a power failure tore it"
        newest = Scan(MAGIC_SIZE, ended=newest.ended, reason=reason)
    return [*others, newest]
