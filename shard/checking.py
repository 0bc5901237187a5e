"""``shard.check``: problems of a root, reported and never guessed. Reads names and keys; changes nothing.

If names alone do not distinguish a sharded journal from a hub, it reports that, and how to make it clear.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

from sej.checks import one_of, optional, require
from sej.errors import CorruptionError, FileTypeError
from sej.journal.directory import Directory, is_journal
from sej.system.disk import OS, Disk
from shard.names import HUB_MARKER, IN_HUB, RECORDS_DIR, Layout, Path, existing, find, split_name
from shard.records import read_record
from shard.records import sample as some_messages

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
    """One problem of a root.

    Attributes:
        kind: the kind of problem.
        path: the file or directory, existing or missing.
        reason: what was found, what was expected and what to do.
    """

    kind: _Kind
    path: str
    reason: str

    def __str__(self) -> str:
        """Format as one line."""
        return f"{self.path}: {self.kind}: {self.reason}"


def check(
    root: str | os.PathLike[str], *, layout: Layout | None = None, sample: int = _SAMPLE, disk: Disk = OS
) -> list[Problem]:
    """Return every problem of a root: an empty list if it is sound.

    A root in which only some names are shard names is read as a sharded journal if a :class:`shard.Writer` ever used it
    or if the others fit no hub; else as a hub, and the ambiguity is a problem of its own. The record of
    :class:`shard.Writer` distinguishes missing shards from unused ones; without a record every shard that does not
    exist is reported. In a hub nothing is missing: a client may not have sent it yet.

    Keys in two shards are reported if they are among the first or last messages of both: two programs routed them by
    two hashes, and their messages have no common order.

    Args:
        root: the directory to check.
        layout: read it as this layout, whatever its names are.
        sample: how many of the first and of the last messages of each shard are read for their keys; 0: none.
        disk: the disk.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: it is a file.
    """
    require(root=root, sample=sample, disk=disk, layout=(layout, optional(one_of(get_args(Layout)))))
    path = existing(root, disk)
    if layout == "directory" or (layout is None and is_journal(disk, path)):
        find(path, layout="directory", disk=disk)
        return [*_inside(path, disk)]
    found, closed, problems = list[str](), list[str](), list[Problem]()
    for name in disk.list(path):
        place = os.path.join(path, name)
        try:
            if name.startswith("."):
                continue
            if is_journal(disk, place):
                found.append(name)
                problems += _inside(place, disk)
            else:
                problems.append(_foreign(place, disk))
        except PermissionError as error:
            closed.append(name)
            problems.append(_unreadable(place, error))
    others = [name for name in found if split_name(name) is None]
    marked = disk.status(os.path.join(path, HUB_MARKER)) is not None
    if layout is None:
        layout = _layout(path, found, others, marked, disk)
        if layout == "hub" and not marked and 0 < len(others) < len(found):
            reason = (
                f"{len(found) - len(others)} SEJ directories have shard names and {len(others)} have not ({others[0]!r}"
                f" for one), so this is read as a hub; if it is one, create an empty file {HUB_MARKER!r} in it; if it"
                " is a sharded journal, move the others out"
            )
            problems.append(Problem("layout", path, reason))
    for name in found:
        if layout == "shards" and name in others:
            reason = (
                "this SEJ directory has no shard name ([prefix.]bit.index, index below 2**bit, or a prefix alone),"
                " and `find` and readers refuse this root; rename it or move it out"
            )
            problems.append(Problem("bad name", os.path.join(path, name), reason))
        elif layout == "hub" and not IN_HUB.fullmatch(name):
            reason = "a SEJ directory in a hub's root must be named client.journal; move it out"
            problems.append(Problem("bad name", os.path.join(path, name), reason))
    if layout == "shards":
        problems += _trees(path, [*found, *closed], disk)
        problems += _split_keys(path, found, sample, disk) if sample else []
    return sorted(problems, key=lambda problem: (problem.path, problem.kind))


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(
        "unreadable",
        path,
        f"this user cannot read this directory ({error.strerror}), and readers stop here; let the user read it",
    )


def _inside(path: str, disk: Disk) -> Iterator[Problem]:
    """Yield problems of files in a SEJ directory's ``jnl/`` that are not segments."""
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
            "this is not a segment, and the original's readers fail on it; move it out",
        )


def _layout(root: str, names: list[str], others: list[str], marked: bool, disk: Disk) -> Layout:
    """Return the layout like ``find``, but one journal with another name does not turn a sharded journal into a hub."""
    recorded = len(others) < len(names) and disk.status(os.path.join(root, RECORDS_DIR)) is not None
    if not marked and (not others or recorded):
        return "shards"
    return "hub" if marked or all(map(IN_HUB.fullmatch, names)) else "shards"


def _foreign(path: str, disk: Disk) -> Problem:
    there, name = disk.status(path), os.path.basename(path)
    if there is None:
        return Problem("foreign file", path, "this symbolic link is broken; restore its target")
    if not there.is_dir:
        return Problem("foreign file", path, "only SEJ directories belong here, and readers ignore it; move it out")
    if split_name(name) is not None and "." in name:
        return Problem("foreign directory", path, "it has a shard name but no jnl/: its messages are lost or elsewhere")
    return Problem("foreign directory", path, "it has no jnl/, so it is not a SEJ directory and readers ignore it")


def _record(tree: Path, what: str) -> Problem:
    return Problem(
        "record",
        os.path.join(tree.root, RECORDS_DIR, tree.name),
        f"{what}: a lost shard may be missing in it; compare the shards with a copy, then remove this file",
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
            known = " and ".join(map(str, counts))
            shards = " and ".join(str(len(trees[prefix, each])) for each in counts)
            yield Problem(
                "bit counts",
                os.path.join(root, prefix or f"{counts[0]:x}"),
                f"{f'prefix {prefix!r}' if prefix else 'the empty prefix'} has sharded journals of {known} bits"
                f" (with {shards} shards), so one key has two shards; if a reshard is complete, move the old one away",
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
                "it does not exist, and no record tells whether it ever did: it was never used, or it is lost"
                if record is None
                else "it existed and is lost: restore it, or its readers will never see its messages"
            )
            yield Problem("missing shard", tree.dir(index), why)


def _split_keys(root: str, names: list[str], count: int, disk: Disk) -> Iterator[Problem]:
    """Yield keys that are in two shards of one sharded journal, in a sample of its messages."""
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
                f"{len(split)} of {len(keys)} compared keys are in more than one shard ({split[0]!r} is in {shown}):"
                " two programs routed them by two hashes; let all writers use one route, then copy the messages"
                " into a new sharded journal with shard.reshard",
            )
