"""Every queue of a directory, of both formats, and what each one holds. Nothing here changes a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from kestrel.errors import Damage
from kestrel.files import join, names_in
from kestrel.magic import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC
from kestrel.segmented.files import Bookmark
from kestrel.segmented.snapshot import Snapshot as SegmentedSnapshot
from kestrel.v2.backlog import Backlog
from kestrel.v2.listing import queue_names
from kestrel.v2.packing import load
from kestrel.v2.snapshot import Snapshot
from sej.system.disk import OS
from sej.system.paths import absolute_path

_MEMORY_BYTES: Final = 32 << 20


class Summary(NamedTuple):
    """What a queue holds.

    Attributes:
        items: waiting items; of libkestrel all that are in the files.
        bytes: of these.
        reserved: items in open transactions; None for libkestrel.
        readers: how many items each reader has not confirmed; None for Kestrel 2.
        damage: what was unreadable.
    """

    items: int
    bytes: int
    reserved: int | None
    readers: dict[str, int] | None
    damage: list[Damage]


def files_of(directory: str | os.PathLike[str], name: str) -> list[str]:
    """The paths of a queue's files: its name, or its name and a dot or ``~~``.

    Raises:
        MissingError: the directory does not exist.
    """
    mine = [file for file in names_in(directory, OS) if file == name or file.startswith((f"{name}.", f"{name}~~"))]
    paths = (join(directory, file) for file in mine)
    return [path for path in paths if (there := OS.status(path)) is not None and not there.is_dir]


def magic_of(path: str | os.PathLike[str]) -> bytes:
    """How a file begins."""
    file = OS.open(absolute_path(path), "read")
    try:
        return file.read(MAGIC_SIZE, 0)
    finally:
        file.close()


def formats_of(directory: str | os.PathLike[str], name: str) -> set[bool]:
    """Whose the files of a queue are, by how they begin: True for libkestrel's, False for Kestrel 2's."""
    formats = set()
    for path in files_of(directory, name):
        if "~~" not in os.path.basename(path):
            try:
                magic = magic_of(path)
            except FileNotFoundError:  # a running Kestrel has removed it
                continue
            if magic:
                formats.add(magic in (READER_MAGIC, WRITER_MAGIC))
    return formats


def queues_in(directory: str | os.PathLike[str]) -> list[str]:
    """The queues of both formats that have files in a directory, sorted.

    Raises:
        MissingError: the directory does not exist.
    """
    readers = {file.partition(".read.")[0] for file in names_in(directory, OS) if ".read." in file and "~" not in file}
    return sorted({*queue_names(directory), *filter(None, readers)})


def summary_of(directory: str | os.PathLike[str], name: str, *, segmented: bool) -> Summary:
    """What a queue holds, in bounded memory.

    Raises:
        BusyError: the files were replaced faster than they can be opened.
    """
    return (_summary_3 if segmented else _summary_2)(directory, name)


def _summary_2(directory: str | os.PathLike[str], name: str) -> Summary:
    snapshot = Snapshot(directory, name)
    backlog = Backlog(snapshot, _MEMORY_BYTES)
    try:
        machine, damage = load(snapshot, backlog)
        reserved = len(machine.open)
        return Summary(len(backlog), backlog.data_bytes, reserved, None, damage)
    finally:
        backlog.close()
        snapshot.close()


def _summary_3(directory: str | os.PathLike[str], name: str) -> Summary:
    snapshot = SegmentedSnapshot(directory, name)
    try:
        readers = snapshot.readers or {"": Bookmark()}
        pending = dict.fromkeys(readers, 0)
        count = size = 0
        for item in snapshot.items():
            count += 1
            size += len(item.data)
            for reader in _pending(readers, item.id):
                pending[reader] += 1
        return Summary(count, size, None, pending, snapshot.damage)
    finally:
        snapshot.close()


def _pending(readers: dict[str, Bookmark], number: int) -> Iterator[str]:
    """The readers that have not confirmed an id."""
    for reader, (head, done) in readers.items():
        if number > head and number not in done:
            yield reader
