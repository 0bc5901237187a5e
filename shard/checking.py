"""``shard.check``: what is odd about a root, reported and never guessed. Looks at names and at keys; changes nothing.

Where names alone do not tell a tree of shards from a hub, that is what it says, and how to make it plain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

from sej.checks import COUNT, DISK, PATH, one_of, optional, require
from sej.errors import CorruptionError, FileTypeError, JournalNotFoundError, NotAJournalError
from sej.journal.directory import Directory
from sej.system.disk import OS, Disk
from shard.name_format import CLIENT, HUB_MARKER, JOURNAL_DIR, RECORDS_DIR
from shard.names import Path, split_name
from shard.records import read_record
from shard.routes import sample as some_messages
from shard.trees import Layout, find, look

__all__ = ["Problem", "check"]

_Kind = Literal[
    "bit counts",
    "missing shard",
    "split keys",
    "foreign directory",
    "foreign file",
    "bad name",
    "layout",
    "unreadable",
    "record",
]
_SAMPLE: Final = 1000


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


def check(
    root: str | os.PathLike[str], *, layout: Layout | None = None, sample: int = _SAMPLE, disk: Disk = OS
) -> list[Problem]:
    """Everything odd about a root: an empty list where all is well.

    A root where some names are shards' and others are not is read as a tree of shards if a :class:`shard.Writer` ever
    worked there or if the others fit no hub; else as a hub, and that it is not plain is a problem of its own.
    Missing shards are told from unused ones by the record that :class:`shard.Writer` keeps; trees without one have
    every shard that is not there reported. In a hub nothing is missing: a client may not have sent it yet.

    Keys in two shards are reported if they are among the first or last messages of both: two programs routed them by
    two hashes, and their messages have no common order.

    Args:
        root: what to look at.
        layout: read it as this, whatever it looks like.
        sample: how many of the first and of the last messages of each shard are read for their keys; 0: none.
        disk: the seam.

    Raises:
        JournalNotFoundError: there is nothing.
        NotAJournalError: it is a file.
    """
    require(
        root=(root, PATH),
        layout=(layout, optional(one_of(get_args(Layout)))),
        sample=(sample, COUNT),
        disk=(disk, DISK),
    )
    path = os.fspath(root)
    there = disk.status(path)
    if there is None:
        raise JournalNotFoundError("there is nothing here", path=path)
    if not there.is_dir:
        raise NotAJournalError("this is a file; a SEJ directory or a root of several is due", path=path)
    if layout not in (None, "shards", "hub") or (layout is None and look(disk, path)):
        find(path, layout="directory", disk=disk)
        return [*_inside(path, disk)]
    found, problems = _journals(path, disk)
    closed = [os.path.basename(problem.path) for problem in problems]
    if layout is None:
        layout = _layout(path, found, disk)
        problems += _doubt(path, found, layout, disk)
    problems += _names(path, found, layout)
    problems += _foreign(path, {*found, *closed}, disk)
    for name in found:
        problems += _inside(os.path.join(path, name), disk)
    if layout == "shards":
        problems += _trees(path, [*found, *closed], disk)
        problems += _split_keys(path, found, sample, disk) if sample else []
    return sorted(problems, key=lambda problem: (problem.path, problem.kind))


def _journals(root: str, disk: Disk) -> tuple[list[str], list[Problem]]:
    """The names of the SEJ directories, and what could not be looked into."""
    found, problems = [], []
    for name in disk.list(root):
        path = os.path.join(root, name)
        try:
            if not name.startswith(".") and look(disk, path):
                found.append(name)
        except PermissionError as error:
            problems.append(_unreadable(path, error))
    return found, problems


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem("unreadable", path, f"this user may not look into it ({error.strerror}): readers stop here")


def _inside(path: str, disk: Disk) -> Iterator[Problem]:
    """What is in a SEJ directory's ``jnl/`` beside segments."""
    directory = Directory(path, disk)
    try:
        foreign = directory.foreign()
    except PermissionError as error:
        yield _unreadable(directory.jnl, error)
        return
    for name in foreign:
        yield Problem(
            "foreign file",
            os.path.join(directory.jnl, name),
            "no segment: the original's readers break on it; move it out",
        )


def _layout(root: str, names: list[str], disk: Disk) -> Layout:
    """As ``find`` has it, but one journal that fits nothing does not make a hub of a tree of shards."""
    if disk.status(os.path.join(root, HUB_MARKER)) is not None:
        return "hub"
    others = [name for name in names if split_name(name) is None]
    if not others or (len(others) < len(names) and disk.status(os.path.join(root, RECORDS_DIR)) is not None):
        return "shards"
    return "hub" if all(_fits_hub(name) for name in (others if len(others) == len(names) else names)) else "shards"


def _doubt(root: str, names: list[str], layout: Layout, disk: Disk) -> Iterator[Problem]:
    others = [name for name in names if split_name(name) is None]
    if layout == "hub" and 0 < len(others) < len(names) and disk.status(os.path.join(root, HUB_MARKER)) is None:
        yield Problem(
            "layout",
            root,
            f"{len(names) - len(others)} SEJ directories have shards' names and {len(others)} have not"
            f" ({others[0]!r} for one), so this is read as a hub: if it is one, say so by an empty file {HUB_MARKER!r}"
            " in it; if it is a tree of shards, move the others out",
        )


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


def _record(tree: Path, what: str) -> Problem:
    return Problem(
        "record",
        os.path.join(tree.root, RECORDS_DIR, tree.name),
        f"{what}: a shard that is gone may not be named; compare the shards with a copy, then remove this file",
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
        due = set(range(tree.count))
        record = None
        try:
            record = read_record(tree, disk)
        except (FileTypeError, CorruptionError) as error:
            yield _record(tree, error.reason)
        if record is not None:
            due = record.shards
            if record.damaged:
                yield _record(tree, f"{record.damaged} of its lines are damaged")
        for index in sorted(due - there):
            why = (
                "not there, and no record says whether it ever was: no key may have met it, or it was lost"
                if record is None
                else "it was made once and is gone: bring it back, or its readers will never see its messages"
            )
            yield Problem("missing shard", tree.dir(index), why)


def _split_keys(root: str, names: list[str], count: int, disk: Disk) -> Iterator[Problem]:
    """Keys that are in two shards of one sharded journal, as far as a sample tells."""
    shards: dict[tuple[str, int], dict[bytes, set[int]]] = {}
    for name in names:
        parts = split_name(name)
        if parts is not None and parts[1]:
            keys = shards.setdefault(parts[:2], {})
            for message in some_messages(os.path.join(root, name), count, disk):
                keys.setdefault(message.key, set()).add(parts[2])
    for (prefix, bits), keys in sorted(shards.items()):
        split = sorted(key for key, there in keys.items() if len(there) > 1)
        if split:
            shown = " and ".join(f"{index:03x}" for index in sorted(keys[split[0]]))
            yield Problem(
                "split keys",
                os.path.join(root, Path(root, prefix, bits).name),
                f"{len(split)} of {len(keys)} keys that were compared are in more than one shard ({split[0]!r} is in"
                f" {shown}): two programs routed them in two ways; let all writers use one route, then copy the"
                " messages into a new sharded journal with shard.reshard",
            )
