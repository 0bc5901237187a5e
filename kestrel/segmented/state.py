"""What the files of a libkestrel queue add up to: its items, and what each reader has yet to see."""

from __future__ import annotations

import os
from typing import NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.files import check_place, open_file
from kestrel.segmented.codec import Item
from kestrel.segmented.files import Bookmark, Reading, behind_zeros, check_magic, list_files, read_bookmark
from kestrel.segmented.format import WRITER_MAGIC
from sej.system.disk import OS, Disk

__all__ = ["State", "fit", "load"]


class State(NamedTuple):
    """What a queue holds.

    Attributes:
        items: by id, those that every reader has confirmed included while their file is there.
        tail_id: the last id; 0 in an empty queue.
        readers: where each reader stands, as far as its file is good, fitted to the items that are there.
        damage: what was unreadable; each file counts up to there.
        beyond_end: bytes behind the zero byte that ends a file: lost to the original, see ``read_writer_file``.
    """

    items: list[Item]
    tail_id: int
    readers: dict[str, Bookmark]
    damage: list[Damage]
    beyond_end: list[Damage]

    def pending(self, name: str) -> list[int]:
        """The ids that a reader has not confirmed.

        Raises:
            KeyError: there is no such reader.
        """
        head, done = self.readers[name]
        return [item.id for item in self.items if item.id > head and item.id not in done]


def fit(bookmark: Bookmark, first_id: int, tail_id: int) -> Bookmark:
    """A bookmark as it counts where the ids from first_id to tail_id are there; both 0 in an empty queue."""
    head = max(min(bookmark.head, tail_id), first_id - 1, 0)
    return Bookmark(head, frozenset(number for number in bookmark.done if head < number <= tail_id))


def load(directory: str | os.PathLike[str], name: str, *, disk: Disk = OS) -> State:
    """What a queue's files add up to; changes nothing, takes no lock and holds all of it in memory.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: there is no such directory.
        BadNameError: no queue can have this name.
    """
    check_place(directory, name, disk)
    listing = list_files(directory, name, disk)
    items: list[Item] = []
    damage: list[Damage] = []
    beyond: list[Damage] = []
    for _, path in listing.writers:
        file = open_file(path, disk)
        try:
            check_magic(file, WRITER_MAGIC)
            reading = Reading(file)
            items.extend(reading.items())
            if reading.ended and behind_zeros(file, reading.position) < file.status().size:
                beyond.append(Damage(path, reading.position, "records stand behind the zero byte that ends the file"))
        except DamageError as error:
            damage.append(Damage(path, error.position or 0, error.reason))
        finally:
            file.close()
    items.sort(key=lambda item: item.id)
    first_id, tail_id = (items[0].id, items[-1].id) if items else (0, 0)
    readers = {}
    for reader, path in listing.readers.items():
        file = open_file(path, disk)
        try:
            bookmark, broken = read_bookmark(file)
        finally:
            file.close()
        if broken is not None:
            damage.append(Damage(path, broken.position or 0, broken.reason))
        if bookmark is not None:
            readers[reader] = fit(bookmark, first_id, tail_id)
    if len(readers) > 1:
        readers.pop("", None)
    return State(items, tail_id, readers, damage, beyond)
