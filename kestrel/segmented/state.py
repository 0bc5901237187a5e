"""What the files of a libkestrel queue add up to: its items, and what each reader has yet to see."""

from __future__ import annotations

import os
from typing import NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.files import check_place, open_file
from kestrel.segmented.codec import Item
from kestrel.segmented.files import BEYOND_END, Bookmark, Reading, after_zeros, check_magic, list_files, read_bookmarks
from kestrel.segmented.format import WRITER_MAGIC
from sej.system.disk import OS, Disk

__all__ = ["State", "fit", "load"]


class State(NamedTuple):
    """What a queue holds.

    Attributes:
        items: by id, those that every reader has confirmed included while their file is there.
        tail_id: the last id; 0 in an empty queue.
        readers: what each reader has confirmed, as far as its file is good, fitted to the items in the files.
        damage: what was unreadable; each file counts up to there.
        beyond_end: bytes after the zero byte that ends a file: lost to the original, see ``read_writer_file``.
    """

    items: list[Item]
    tail_id: int
    readers: dict[str, Bookmark]
    damage: list[Damage]
    beyond_end: list[Damage]

    def pending(self, name: str) -> list[int]:
        """The ids that a reader has not confirmed.

        Raises:
            KeyError: the queue has no such reader.
        """
        head, done = self.readers[name]
        return [item.id for item in self.items if item.id > head and item.id not in done]


def fit(bookmark: Bookmark, first_id: int, tail_id: int) -> Bookmark:
    """A bookmark as it counts if the files hold the ids from first_id to tail_id; both are 0 in an empty queue."""
    head = max(min(bookmark.head, tail_id), first_id - 1, 0)
    return Bookmark(head, frozenset(number for number in bookmark.done if head < number <= tail_id))


def load(directory: str | os.PathLike[str], name: str, *, disk: Disk = OS) -> State:
    """What a queue's files add up to; changes nothing, takes no lock and holds all of it in memory.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: the directory does not exist.
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
            if reading.ended and after_zeros(file, reading.position) < file.status().size:
                beyond.append(Damage(path, reading.position, BEYOND_END))
        except DamageError as error:
            damage.append(Damage(path, error.position or 0, error.reason))
        finally:
            file.close()
    items.sort(key=lambda item: item.id)
    first_id, tail_id = (items[0].id, items[-1].id) if items else (0, 0)
    readers = {}
    for reader, bookmark, broken in read_bookmarks(listing, disk):
        if broken is not None:
            damage.append(broken)
        if bookmark is not None:
            readers[reader] = fit(bookmark, first_id, tail_id)
    if len(readers) > 1:
        readers.pop("", None)
    return State(items, tail_id, readers, damage, beyond)
