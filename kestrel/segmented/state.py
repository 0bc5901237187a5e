"""What the files of a libkestrel queue add up to: its items, and what each reader has yet to see."""

from __future__ import annotations

import os
from typing import NamedTuple

from kestrel.errors import Damage
from kestrel.files import check_place
from kestrel.segmented.codec import Item
from kestrel.segmented.files import Bookmark
from kestrel.segmented.snapshot import Snapshot
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path


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


def load(directory: str | os.PathLike[str], name: str, *, disk: Disk = OS) -> State:
    """What a queue's files add up to; changes nothing, takes no lock and holds all of it in memory.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: the directory does not exist.
        BadNameError: no queue can have this name.
        BusyError: the queue replaces its files faster than they can be opened.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    snapshot = Snapshot(directory, name, disk=disk)
    try:
        items = sorted(snapshot.items(), key=lambda item: item.id)
    finally:
        snapshot.close()
    return State(items, snapshot.tail_id, snapshot.readers, snapshot.damage, snapshot.beyond_end)
