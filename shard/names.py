"""Names of shards: constants, building, parsing, validating; and what a root has by its names, which creates nothing.

Source: the SEJ document, "Sharding" and "Hub"::

    [prefix].[shard-bit].[shard-index]     orders.3.005
             [shard-bit].[shard-index]     3.005            no prefix
    [prefix]                               orders           bit 0: one shard, named by its prefix
    [client-id].[any of the above]         berlin.orders.3.005, in a hub's root

A name must match in full: what the original accepts by accident (``../x``, a space, an accent) is refused here.

A root with ``jnl/`` in it is one SEJ directory. A root with the marker ``.hub`` is a hub's. Without it, a root whose
SEJ directories all have shard names holds sharded journals, anything else is a hub's. Names that begin with a dot are
ignored, and so are files and directories without ``jnl/``, which :func:`shard.check` reports.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from sej.checks import Rule, Seconds, between, instance_of, one_of, optional, require, seconds
from sej.errors import ClosedError, InvalidNameError, JournalNotFoundError, NotAJournalError
from sej.journal.directory import is_journal, journals_in
from sej.system.disk import OS, Disk, Resolved, absolute_path
from sej.system.watch import Watch, wait_any
from shard.routing import MAX_BITS, BytesLike, Hash, index_of

INDEX_DIGITS: Final = 3
PREFIX: Final = re.compile(r"[A-Za-z0-9_\-]*")
SHARD: Final = re.compile(r"(?:([A-Za-z0-9_\-]+)\.)?([1-9a])\.([0-9a-f]{3})")
"""prefix or nothing, bit, index; a name with bit 0 is a prefix and nothing else."""

IN_HUB: Final = re.compile(r"([0-9A-Za-z_\-]+(?:~[0-9A-Za-z_\-]+)*)\.((?!.*\.\.)[0-9A-Za-z_.\-]+)")
"""Client and journal in a hub's directory name; a dot of the client's id is ``~`` there."""

HUB_MARKER: Final = ".hub"
"""A hub's root has this file: names alone cannot distinguish it from a sharded journal."""
WORKERS_DIR: Final = ".workers"
RESHARD_DIR: Final = ".reshard"
RECORDS_DIR: Final = ".shards"
"""The record of a sharded journal, one file: the shards that were ever created.

An unused shard does not exist, and is not missing.
"""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Path:
    """A sharded journal: ``2**bits`` SEJ directories. Only its name; reads nothing. Immutable.

    Attributes:
        root: the directory that holds them.
        prefix: the beginning of their names.
        bits: 0 to 10.

    Example:
        >>> p = Path("data", prefix="orders", bits=3)
        >>> p.count, p.dir(5), p.index(b"alice")
        (8, 'data/orders.3.005', 3)
        >>> Path.parse("data/orders.3.005")
        (shard.Path('data', prefix='orders', bits=3), 5)
    """

    root: str
    prefix: str
    bits: int

    def __init__(self, root: str | os.PathLike[str], prefix: str = "", bits: int = 0) -> None:
        """Set the name.

        Args:
            root: the directory that holds the shards.
            prefix: letters, digits, ``_`` and ``-``; may be empty, but not with 0 bits.
            bits: 0 to 10.

        Raises:
            InvalidNameError: the prefix does not fully match, or is empty with 0 bits.
            ValueError: bits is out of range.
        """
        require(root=root, prefix=prefix, bits=(bits, between(0, MAX_BITS)))
        path = os.fspath(root)
        if not PREFIX.fullmatch(prefix):
            raise InvalidNameError(f"prefix must be ASCII letters, digits, '_' and '-', got {prefix!r}")
        if not bits and not prefix:
            raise InvalidNameError("bits 0 needs a prefix: it is the whole name of the single shard")
        for name, value in (("root", path), ("prefix", prefix), ("bits", bits)):
            object.__setattr__(self, name, value)

    @property
    def count(self) -> int:
        """The number of shards."""
        return 1 << self.bits

    @property
    def name(self) -> str:
        """The common part of the shards' names, as in ``orders.3``, ``3`` or ``orders``."""
        if not self.bits:
            return self.prefix
        return f"{self.prefix}.{self.bits:x}" if self.prefix else f"{self.bits:x}"

    def dir(self, index: int) -> str:
        """Return the SEJ directory of a shard, whether or not it exists."""
        instance_of(int)("index", index)
        if not 0 <= index < self.count:
            raise ValueError(f"index must be 0 to {self.count - 1}, the shards of {self.name}, got {index}")
        path = os.path.join(self.root, f"{self.name}.{index:0{INDEX_DIGITS}x}" if self.bits else self.prefix)
        return Resolved(path) if type(self.root) is Resolved else path

    def index(self, key: BytesLike, route: Hash = "xxh64") -> int:
        """Return the shard of a key, like :func:`shard.index_of`."""
        return index_of(key, self.bits, route)

    def dirs(self) -> list[str]:
        """Return the SEJ directories of all shards, whether or not they exist."""
        return [self.dir(index) for index in range(self.count)]

    def absolute(self) -> Path:
        """Return the same sharded journal by an absolute path, in which shards are not links to other directories."""
        return Path(Resolved(absolute_path(self.root)), self.prefix, self.bits)

    @staticmethod
    def parse(path: str | os.PathLike[str]) -> tuple[Path, int]:
        """Return the sharded journal and the index from the name of a shard's directory.

        Raises:
            InvalidNameError: the last part of the path is not a shard name.
        """
        instance_of(str, os.PathLike)("path", path)
        root, name = os.path.split(os.fspath(path).rstrip(os.sep))
        found = split_name(name)
        if found is None:
            raise InvalidNameError(
                f"{name!r} is not a shard name; expected prefix.bit.index, with bit 1 to a and index 000 to 3ff"
                " below 2**bit, or a prefix alone",
                path=path,
            )
        prefix, bits, index = found
        return Path(root or os.curdir, prefix, bits), index

    def __repr__(self) -> str:
        """Show the arguments."""
        return f"shard.Path({self.root!r}, prefix={self.prefix!r}, bits={self.bits})"


def split_name(name: str) -> tuple[str, int, int] | None:
    """Return a shard's name as (prefix, bits, index), or None if it is not one.

    Example:
        >>> split_name("orders.a.3ff"), split_name("orders"), split_name("orders.1.002")
        (('orders', 10, 1023), ('orders', 0, 0), None)
    """
    if name and PREFIX.fullmatch(name):
        return name, 0, 0
    match = SHARD.fullmatch(name)
    if match is None:
        return None
    bits, index = int(match[2], 16), int(match[3], 16)
    return (match[1] or "", bits, index) if index < 1 << bits else None


def _tree(name: str, value: object) -> None:
    if not isinstance(value, Path):
        raise TypeError(f"{name} must be a shard.Path, got {type(value).__name__}; use shard.Path(root, prefix, bits)")


TREE: Final[Rule] = _tree
"""The :class:`Path` of a sharded journal, for :func:`sej.checks.require`."""


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


@dataclass(frozen=True, slots=True, repr=False)
class Tree:
    """All SEJ directories under a root, in the order of their names: a sequence of :class:`Found`.

    Attributes:
        root: the directory that was read.
        layout: ``"directory"``, ``"shards"`` or ``"hub"``.
        entries: the directories.
    """

    root: str
    layout: Layout
    entries: tuple[Found, ...]

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
    require(root=root, disk=disk, layout=(layout, optional(one_of(get_args(Layout)))))
    path = existing(root, disk)
    if layout is None:
        layout = recognize(path, disk)
    if layout == "directory":
        if not is_journal(disk, path):
            raise NotAJournalError(
                "this directory has no jnl/, so it is not a SEJ directory; leave layout out", path=path
            )
        return Tree(path, layout, (Found(path, None, None, None, None),))
    return Tree(path, layout, tuple(entry(path, name, layout) for name in journals_in(disk, path)))


def existing(root: str | os.PathLike[str], disk: Disk) -> str:
    """Return the path of a root.

    Raises:
        JournalNotFoundError: it does not exist.
        NotAJournalError: it is a file.
    """
    path = os.fspath(root)
    there = disk.status(path)
    if there is None:
        raise JournalNotFoundError(
            "the path does not exist; expected a SEJ directory or a directory of them", path=path
        )
    if not there.is_dir:
        raise NotAJournalError("this is a file; expected a SEJ directory or a directory of them", path=path)
    return path


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
    match = IN_HUB.fullmatch(name)
    if match is None:
        raise NotAJournalError(
            "this journal's name is neither a shard's ([prefix.]bit.index) nor a client's (client.journal): pass the"
            " journal itself, or move it elsewhere, see shard.check",
            path=path,
        )
    return Found(path, match[1].replace("~", "."), *(split_name(match[2]) or (None, None, None)))


def recognize(root: str, disk: Disk) -> Layout:
    """Return the layout of a directory, by the names in it."""
    if is_journal(disk, root):
        return "directory"
    if disk.status(os.path.join(root, HUB_MARKER)) is not None:
        return "hub"
    return "shards" if all(split_name(name) for name in journals_in(disk, root)) else "hub"


class Arrivals:
    """Notices directories below a root that become SEJ directories.

    A directory may exist for a moment without its ``jnl/``. Then it is watched, so that the wait ends with ``jnl/``.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        """Begin to watch the root."""
        self._root = root
        self._disk = disk
        self._root_watch = Watch(root)
        self._growing: dict[str, Watch] = {}

    @property
    def watches(self) -> list[Watch]:
        """What a wait for new directories waits for."""
        return [self._root_watch, *self._growing.values()]

    def look(self, names: Iterable[str]) -> list[str]:
        """Return those of the directories that are SEJ directories now."""
        found, growing = [], dict[str, Watch]()
        for name in names:
            path = os.path.join(self._root, name)
            there = self._disk.status(path)
            if there is None or not there.is_dir:
                continue
            if not is_journal(self._disk, path):
                growing[name] = self._growing.pop(name) if name in self._growing else Watch(path)
            if name not in growing or is_journal(self._disk, path):  # it may have been created before the watch
                found.append(name)
        self._close_growing()
        self._growing = growing
        return found

    def wake(self) -> None:
        """End a wait in another thread."""
        self._root_watch.wake()

    def close(self) -> None:
        """Stop watching."""
        self._root_watch.close()
        self._close_growing()

    def _close_growing(self) -> None:
        for watch in self._growing.values():
            watch.close()
        self._growing = {}


class TreeWatch:
    """Iterates over the SEJ directories that appear under a root after this object was created; :meth:`stop` ends it.

    Use it from one thread; :meth:`stop` and :meth:`close` may be called from any. After :meth:`close` reading raises
    :class:`~sej.ClosedError`.

    Attributes:
        tree: the directories at the start; each directory is either in it or returned later.
        timeout: seconds without a new one after which iterating ends; None: never.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        layout: Layout | None = None,
        timeout: Seconds | None = None,
        disk: Disk = OS,
    ) -> None:
        """Read a root and watch it.

        Args:
            root: the directory of the shards, or of a hub's clients; must exist.
            layout: read it as this layout, whatever its names are; needed for a hub's root that is still empty.
            timeout: seconds without a new directory after which iterating ends; None: it waits until :meth:`stop`.
            disk: the disk.

        Raises:
            JournalNotFoundError: the path does not exist.
            NotAJournalError: it is a file, or it holds a SEJ directory whose name fits no layout.
        """
        timeout = seconds("timeout", timeout)
        require(root=root, timeout=timeout, disk=disk)
        path = absolute_path(root)
        existing(path, disk)
        self._disk = disk
        self._arrivals = Arrivals(path, disk)
        self._stopped = self._closed = False
        self._refused: list[NotAJournalError] = []
        self.timeout = timeout
        try:
            self.tree: Tree = find(path, layout=layout, disk=disk)
        except BaseException:
            self._arrivals.close()
            raise
        self._known = {found.name for found in self.tree}
        self._layout: Layout = self.tree.layout

    def read(self, timeout: Seconds | None = 0.0) -> list[Found]:
        """Return the new directories, as soon as there is one.

        Args:
            timeout: seconds to wait; None waits until :meth:`stop`.

        Returns:
            Directories that appeared since; an empty list after the timeout, or if it was stopped.

        Raises:
            NotAJournalError: a new SEJ directory's name fits no layout; raised once, and the next call continues.
        """
        timeout = seconds("timeout", timeout)
        if self._closed:
            raise ClosedError("the watch is closed; open another one", path=self.tree.root)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            new = self._look()
            if not new and self._refused:
                raise self._refused.pop(0)
            if new or self._stopped:
                return [] if self._stopped else new
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            wait_any(self._arrivals.watches, left)

    def __iter__(self) -> Iterator[Found]:
        """Yield new directories, until :meth:`stop` or the timeout."""
        while new := self.read(self.timeout):
            yield from new

    def stop(self) -> None:
        """End a wait and the iteration, from any thread."""
        self._stopped = True
        self._arrivals.wake()

    def close(self) -> None:
        """Stop watching."""
        self.stop()
        self._closed = True
        self._arrivals.close()

    def __enter__(self) -> Self:
        """Return the watch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the watch."""
        self.close()

    def _look(self) -> list[Found]:
        if self._layout == "directory":
            return []
        found: list[Found] = []
        names = self._disk.list(self.tree.root)
        self._known.intersection_update(names)  # a removed and re-created one is new
        for name in self._arrivals.look(name for name in names if name not in self._known and not name.startswith(".")):
            self._known.add(name)
            try:
                found.append(entry(self.tree.root, name, self._layout))
            except NotAJournalError as error:
                self._refused.append(error)
        return found


def watch(
    root: str | os.PathLike[str], *, layout: Layout | None = None, timeout: Seconds | None = None, disk: Disk = OS
) -> TreeWatch:
    """Report new shards, or a hub's new client directories, as they appear; see :class:`TreeWatch`.

    Example:
        >>> import tempfile, sej, shard
        >>> root = tempfile.mkdtemp()
        >>> with watch(root, timeout=0.0) as new:
        ...     sej.Writer(shard.Path(root, "orders", 1).dir(1)).close()
        ...     [found.name for found in new]
        ['orders.1.001']
    """
    return TreeWatch(root, layout=layout, timeout=timeout, disk=disk)
