"""Names of shards: constants, building, parsing, validating. No I/O.

Source: the SEJ document, "Sharding" and "Hub"::

    [prefix].[shard-bit].[shard-index]     orders.3.005
             [shard-bit].[shard-index]     3.005            no prefix
    [prefix]                               orders           bit 0: one shard, named by its prefix
    [client-id].[any of the above]         berlin.orders.3.005, in a hub's root

A name must match in full: what the original accepts by accident (``../x``, a space, an accent) is refused here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from sej.checks import PATH, TEXT, Rule, between, instance_of, require
from sej.errors import InvalidNameError
from sej.system.paths import Resolved, absolute_path
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
        require(root=(root, PATH), prefix=(prefix, TEXT), bits=(bits, between(0, MAX_BITS)))
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
