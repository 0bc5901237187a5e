"""Which files are a queue's journal, and in which order they are read.

=====================  ==============================================================================
``cars``               the current file; missing is like empty
``cars.1234``          rotated at 1234 ms; rotated files come first, in the order of their numbers
``cars.1234.pack``     replaces every rotated file up to 1234; those are dead and to be deleted
``cars~~...``          temporary; the originals delete all of them when they open the queue
``cars~~lock``         our lock: by that rule the originals do not trip over it
``cars~~durable``      our record of what is on the medium, see ``renewing``; if it is gone, more is renewed
``kept/``              our folder for bytes that were cut or came from elsewhere; the originals ignore folders
=====================  ==============================================================================

Any other name, such as ``cars.old``, is not ours. An empty ``.pack`` is not a pack: the original makes the
empty file first and renames over it, so a crash between the two leaves one, and believing it would kill every rotated
file. Not believing it is always safe: an empty pack says that nothing was alive, and what it replaces adds up to that.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kestrel.errors import MissingError
from kestrel.files import check_name, durable_path, join, lock_path, names_in, stamp_of
from sej.system.disk import OS, Disk


class Part(NamedTuple):
    """One file of a journal.

    Attributes:
        path: the file.
        stamp: the number in its name; None for the current file.
        packed: whether its name still ends with ``.pack``.
    """

    path: str
    stamp: int | None
    packed: bool = False


class Listing(NamedTuple):
    """The files of one queue in a directory.

    Attributes:
        parts: the files of the journal, in the order of replay.
        dead: rotated files that a pack replaces, and empty packs.
        temporary: files that a process left when it died while writing them.
    """

    parts: list[Part]
    dead: list[str]
    temporary: list[str]


def list_parts(directory: str | os.PathLike[str], name: str, disk: Disk = OS) -> Listing:
    """Look which files are the journal of a queue; changes nothing.

    Raises:
        MissingError: the directory does not exist.
    """
    check_name(name)
    names = names_in(directory, disk)
    rotated, packs, current, dead, temporary = [], [], [], [], []
    for file in names:
        if file != name and not file.startswith((f"{name}.", f"{name}~~")):
            continue
        path = join(directory, file)
        status = disk.status(path)
        if status is None or status.is_dir:
            continue
        if file == name:
            current.append(Part(path, None))
        elif file.startswith(f"{name}~~"):
            temporary.append(path)
        elif (stamp := stamp_of(file[len(name) + 1 :])) is not None:
            rotated.append(Part(path, stamp))
        elif file.endswith(".pack") and (stamp := stamp_of(file[len(name) + 1 : -5])) is not None:
            if status.size:
                packs.append(Part(path, stamp, packed=True))
            else:
                dead.append(path)
    parts = sorted(rotated, key=_order)
    if packs:
        pack = max(packs, key=_order)
        dead.extend(part.path for part in [*parts, *packs] if part is not pack and _order(part) <= _order(pack))
        parts = [pack, *(part for part in parts if _order(part) > _order(pack))]
    ours = lock_path(directory, name), durable_path(directory, name)
    temporary = [path for path in temporary if path not in ours]
    return Listing(parts + current, dead, temporary)


def require(directory: str | os.PathLike[str], name: str, disk: Disk = OS) -> None:
    """Make sure that a queue has files, for callers that would otherwise make an empty queue.

    Raises:
        MissingError: the directory does not exist, or has no file of the queue.
    """
    if not any(list_parts(directory, name, disk)):
        raise MissingError(f"the directory holds no file of a queue {name!r}; check the name", path=directory)


def queue_names(directory: str | os.PathLike[str], disk: Disk = OS) -> list[str]:
    """The queues that have files in a directory.

    Raises:
        MissingError: the directory does not exist.
    """
    found = set()
    for file in names_in(directory, disk):
        name, dot, rest = file.partition(".")
        if "~" in file or not name or (dot and stamp_of(rest.removesuffix(".pack")) is None):
            continue
        status = disk.status(join(directory, file))
        if status is not None and not status.is_dir:
            found.add(name)
    return sorted(found)


def _order(part: Part) -> tuple[int, str]:
    return part.stamp or 0, ""
