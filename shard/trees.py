"""The contents of a root: one SEJ directory, sharded journals, or a hub's client directories. Creates nothing.

A root with ``jnl/`` in it is one SEJ directory. A root with the marker ``.hub`` is a hub's. Without it, a root whose
SEJ directories all have shard names holds sharded journals, anything else is a hub's. Names that begin with a dot are
ignored, and so are files and directories without ``jnl/``, which :func:`shard.check` reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from sej.checks import DISK, PATH, one_of, optional, require
from sej.errors import JournalNotFoundError, NotAJournalError
from sej.journal.directory import is_journal, journals_in
from sej.system.disk import OS, Disk
from shard.name_format import CLIENT, HUB_MARKER, JOURNAL_DIR
from shard.names import Path, split_name

Layout = Literal["directory", "shards", "hub"]


@dataclass(frozen=True, slots=True)
class Found:
    """One SEJ directory under a root.

    Attributes:
        path: its path.
        client: its client; None outside hubs.
        prefix: the prefix of its shard name, or None if it has none.
        bits: as prefix.
        index: as prefix.
    """

    path: str
    client: str | None
    prefix: str | None
    bits: int | None
    index: int | None

    @property
    def name(self) -> str:
        """The name of the directory."""
        return os.path.basename(self.path)


class Tree:
    """All SEJ directories under a root, in the order of their names: a sequence of :class:`Found`.

    Attributes:
        root: the directory that was read.
        layout: ``"directory"``, ``"shards"`` or ``"hub"``.
        entries: the directories.
    """

    __slots__ = ("entries", "layout", "root")

    def __init__(self, root: str, layout: Layout, entries: tuple[Found, ...]) -> None:
        """Store the entries."""
        self.root = root
        self.layout = layout
        self.entries = entries

    @property
    def paths(self) -> list[Path]:
        """Return the sharded journals among them, outside hubs."""
        if self.layout != "shards":
            return []
        names = {(found.prefix, found.bits) for found in self.entries}
        return [Path(self.root, prefix or "", bits or 0) for prefix, bits in sorted(names, key=str)]

    def __iter__(self) -> Iterator[Found]:
        """Iterate over the directories."""
        return iter(self.entries)

    def __len__(self) -> int:
        """The number of directories."""
        return len(self.entries)

    def __getitem__(self, at: int) -> Found:
        """Return one of them."""
        return self.entries[at]

    def __repr__(self) -> str:
        """Show root, layout and count."""
        return f"<shard.Tree {self.root!r} {self.layout} with {len(self.entries)} directories>"


def find(root: str | os.PathLike[str], *, layout: Layout | None = None, disk: Disk = OS) -> Tree:
    """Return the contents of a root.

    Args:
        root: a SEJ directory, or a directory of them.
        layout: read it as this layout, whatever its names are.
        disk: the disk.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: it is a file, or it holds a SEJ directory whose name fits no layout.
    """
    require(root=(root, PATH), layout=(layout, optional(one_of(get_args(Layout)))), disk=(disk, DISK))
    path = os.fspath(root)
    there = disk.status(path)
    if there is None:
        raise JournalNotFoundError(
            "the path does not exist; shard.Writer creates the root, reading does not", path=path
        )
    if not there.is_dir:
        raise NotAJournalError("this is a file; expected a SEJ directory or a directory of them", path=path)
    if layout is None:
        layout = _recognize(path, disk)
    if layout == "directory":
        if not is_journal(disk, path):
            raise NotAJournalError(
                "this directory has no jnl/, so it is not a SEJ directory; leave layout out", path=path
            )
        return Tree(path, layout, (Found(path, None, None, None, None),))
    return Tree(path, layout, tuple(entry(path, name, layout) for name in journals_in(disk, path)))


def entry(root: str, name: str, layout: Layout) -> Found:
    """Return an entry with the fields of a directory's name under a layout.

    Raises:
        NotAJournalError: the name does not fit it.
    """
    path = os.path.join(root, name)
    if layout == "shards":
        parts = split_name(name)
        if parts is None:
            raise NotAJournalError(
                "this name of a SEJ directory is not a shard's ([prefix.]bit.index); move it away, see shard.check",
                path=path,
            )
        return Found(path, None, *parts)
    client, dot, journal = name.partition(".")
    if not dot or not CLIENT.fullmatch(client) or not JOURNAL_DIR.fullmatch(journal):
        raise NotAJournalError(
            "this SEJ directory's name fits neither a sharded journal ([prefix.]bit.index) nor a hub"
            " (client.journal); move it elsewhere, see shard.check",
            path=path,
        )
    return Found(path, client.replace("~", "."), *(split_name(journal) or (None, None, None)))


def _recognize(root: str, disk: Disk) -> Layout:
    if is_journal(disk, root):
        return "directory"
    if disk.status(os.path.join(root, HUB_MARKER)) is not None:
        return "hub"
    return "shards" if all(split_name(name) for name in journals_in(disk, root)) else "hub"
