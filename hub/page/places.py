"""What the page may show: the journals, sharded journals, hubs and text queues of some paths, and nothing else.

A browser names a place by its path. The path is only ever compared with the paths found here, so no request can reach
another file. Symbolic links that lead out of the paths of the command line are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hub.naming import is_root, parse_source
from sej.cli.state.readers import journals_below
from sej.errors import JournalNotFoundError
from shard.names import Path as ShardPath
from shard.names import split_name
from shard.trees import find

Kind = Literal["journal", "shards", "hub", "directory", "text queue"]


class Place(NamedTuple):
    """One path of the command line.

    Attributes:
        path: the path.
        kind: what it is; ``"directory"`` is a directory of journals and ``.tq`` files.
    """

    path: Path
    kind: Kind

    @property
    def text(self) -> str:
        """The path as text."""
        return str(self.path)


class Shards(NamedTuple):
    """One sharded journal.

    Attributes:
        name: its name in addresses: the path of its shards without their numbers.
        shards: root, prefix and bits.
    """

    name: str
    shards: ShardPath


def place_of(path: Path) -> Place:
    """Recognise a path.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: it is a file that is not a ``.tq`` file.
    """
    if not path.exists():
        raise JournalNotFoundError("the path does not exist; create the journal or the .tq file first", path=path)
    if path.suffix == ".tq" and not path.is_dir():
        return Place(path, "text queue")
    if is_root(path):
        return Place(path, "hub")
    journals = journals_below(path)
    if journals == [str(path)]:
        return Place(path, "journal")
    names = [os.path.basename(journal) for journal in journals]
    parts = [split_name(name) for name in names]
    if all(parts) and any(part is not None and part[1] for part in parts):
        return Place(path, "shards")
    return Place(path, "hub" if names and all(parse_source(name) for name in names) else "directory")


def shards_of(root: Path) -> list[Shards]:
    """Return the sharded journals of a root, by name; without those of a single shard, which are plain journals."""
    found = find(root, layout="shards").paths
    return [Shards(os.path.join(str(root), path.name), path) for path in found if path.bits]


def text_queues_of(place: Place) -> list[str]:
    """Return the ``.tq`` files of a path."""
    if place.kind == "text queue":
        return [place.text]
    if place.kind != "directory":
        return []
    found = (str(path) for path in place.path.glob("*.tq") if path.is_file())
    return sorted(path for path in found if is_inside(path, [place.path]))


def is_inside(path: str, roots: Iterable[Path]) -> bool:
    """Return whether a file or journal is below one of the roots, and no link of it or in it leads out of them."""
    real = [os.path.realpath(root) for root in roots]
    return all(
        any(os.path.commonpath((root, there)) == root for root in real)
        for there in map(os.path.realpath, (path, *_links(path)))
    )


def _links(path: str) -> Iterator[str]:
    folders = [path] if os.path.isdir(path) else []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir():
                    folders.append(entry.path)
