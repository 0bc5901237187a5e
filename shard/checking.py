"""``shard.check``: what is odd about a root, said and never guessed. Looks at names only and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sej.disk import OS, Disk
from sej.errors import JournalNotFoundError, NotAJournalError
from shard.name_format import CLIENT, HUB_MARKER, JOURNAL_DIR
from shard.names import Path, split_name
from shard.records import read_record
from shard.trees import Layout, find, journals, look

__all__ = ["Problem", "check"]

_Kind = Literal["bit counts", "missing shard", "foreign directory", "foreign file", "bad name"]


class Problem(NamedTuple):
    """One thing that is odd.

    Attributes:
        kind: what sort of thing.
        path: the file or directory, there or missing.
        reason: what was found, what was expected and the way out.
    """

    kind: _Kind
    path: str
    reason: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.path}: {self.kind}: {self.reason}"


def check(root: str | os.PathLike[str], *, layout: Layout | None = None, disk: Disk = OS) -> list[Problem]:
    """Everything odd about a root: an empty list where all is well.

    A root with one SEJ directory among others whose name fits nothing is read as a tree of shards if any name is one.
    Missing shards are told from unused ones by the record that :class:`shard.Writer` keeps; trees without one have
    every shard that is not there reported. In a hub nothing is missing: a client may not have sent it yet.

    Args:
        root: what to look at.
        layout: read it as this, whatever it looks like.
        disk: the seam.

    Raises:
        JournalNotFoundError: there is nothing.
        NotAJournalError: it is a file.
    """
    path = os.fspath(root)
    there = disk.status(path)
    if there is None:
        raise JournalNotFoundError("there is nothing here", path=path)
    if not there.is_dir:
        raise NotAJournalError("this is a file; a SEJ directory or a root of several is due", path=path)
    if layout is None:
        layout = _layout(path, disk)
    if layout == "directory":
        find(path, layout="directory", disk=disk)
        return []
    found = journals(disk, path)
    problems = list(_names(path, found, layout))
    problems += _foreign(path, set(found), disk)
    if layout == "shards":
        problems += _trees(path, found, disk)
    return sorted(problems, key=lambda problem: (problem.path, problem.kind))


def _layout(root: str, disk: Disk) -> Layout:
    """As ``find`` has it, but one journal that fits nothing does not make a hub of a tree of shards."""
    if look(disk, root):
        return "directory"
    if disk.status(os.path.join(root, HUB_MARKER)) is not None:
        return "hub"
    names = journals(disk, root)
    others = [name for name in names if split_name(name) is None]
    if len(others) < len(names) or not all(_fits_hub(name) for name in others):
        return "hub" if others and all(_fits_hub(name) for name in names) else "shards"
    return "hub" if others else "shards"


def _fits_hub(name: str) -> bool:
    client, dot, journal = name.partition(".")
    return bool(dot and CLIENT.fullmatch(client) and JOURNAL_DIR.fullmatch(journal))


def _names(root: str, names: list[str], layout: Layout) -> Iterator[Problem]:
    for name in names:
        path = os.path.join(root, name)
        if layout == "shards" and split_name(name) is None:
            yield Problem(
                "bad name",
                path,
                "a SEJ directory whose name is no shard's ([prefix.]bit.index, index below 2**bit, or a prefix alone):"
                " rename it or move it out; `find` and readers refuse this root",
            )
        elif layout == "hub" and not _fits_hub(name):
            yield Problem(
                "bad name", path, "a SEJ directory in a hub's root is due to be named client.journal: move it out"
            )


def _foreign(root: str, found: set[str], disk: Disk) -> Iterator[Problem]:
    for name in disk.list(root):
        if name.startswith(".") or name in found:
            continue
        path = os.path.join(root, name)
        there = disk.status(path)
        if there is None:
            yield Problem("foreign file", path, "a symbolic link that leads nowhere: restore what it leads to")
        elif not there.is_dir:
            yield Problem("foreign file", path, "readers pass it over: only SEJ directories belong here; move it out")
        elif split_name(name) is not None and "." in name:
            yield Problem(
                "foreign directory", path, "it has a shard's name but no jnl/ in it: its messages are gone or elsewhere"
            )
        else:
            yield Problem(
                "foreign directory", path, "it has no jnl/ in it, so it is no SEJ directory and readers pass it over"
            )


def _trees(root: str, names: list[str], disk: Disk) -> Iterator[Problem]:
    trees: dict[tuple[str, int], set[int]] = {}
    for name in names:
        parts = split_name(name)
        if parts is not None:
            trees.setdefault(parts[:2], set()).add(parts[2])
    for prefix in sorted({prefix for prefix, _ in trees}):
        counts = sorted(bits for other, bits in trees if other == prefix)
        if len(counts) > 1:
            shown = " and ".join(f"{bits} ({len(trees[prefix, bits])} shards)" for bits in counts)
            yield Problem(
                "bit counts",
                os.path.join(root, prefix or f"{counts[0]:x}"),
                f"{f'prefix {prefix!r}' if prefix else 'the empty prefix'} has trees of {shown} bits: one key has two"
                " places; if a reshard is done, move the old tree away",
            )
    for (prefix, bits), there in sorted(trees.items()):
        tree = Path(root, prefix, bits)
        record = read_record(tree, disk)
        due = set(range(tree.count)) if record is None else record
        for index in sorted(due - there):
            why = (
                "not there, and no record says whether it ever was: no key may have met it, or it was lost"
                if record is None
                else "it was made once and is gone: bring it back, or its readers will never see its messages"
            )
            yield Problem("missing shard", tree.dir(index), why)
