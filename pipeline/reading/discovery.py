"""From paths to origins: which SEJ directories a path has, and what their names mean.

A path is one SEJ directory, a sharded journal, or a hub's root; or a name for several of them: a glob, or a
directory that has them below it and no SEJ directory itself. The rules are the same in all packages: ``jnl/`` means
a SEJ directory, the marker ``.hub`` a hub's root. Without the marker, a directory whose names all parse as shards is a
sharded journal, and anything else a hub. ``layout`` forces one. Names that begin with a dot are ignored.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from hub.naming import is_root
from pipeline.options import OptionError
from pipeline.paths import local_path
from sej.errors import JournalNotFoundError, NotAJournalError, SejError
from sej.journal.directory import Directory, is_journal, journal_id, journals_in
from sej.journal.segment import Place
from sej.system.disk import OS, absolute_path
from shard.names import RECORDS_DIR, Found, Layout, entry, existing, find, recognize

_log = logging.getLogger("pipeline")


def discover(
    paths: Iterable[str],
    *,
    layout: Layout | None = None,
    pattern: str | None = None,
    may_be_empty: bool = False,
    may_be_gone: bool = False,
) -> list[Origin]:
    """Return the SEJ directories below paths, sorted by name in each.

    Args:
        paths: roots.
        layout: the layout of each; None: detect it.
        pattern: only names that match it; see :func:`matching`.
        may_be_empty: whether a directory without journals is accepted.
        may_be_gone: whether a path that does not exist, or has no journal, is skipped.

    Raises:
        JournalNotFoundError: a path does not exist.
        NotAJournalError: a path is a file, a directory without a journal in it, or one with a journal whose name is
            neither a shard's nor a client's.
        OptionError: the pattern matches none of the directories, or a path is passed twice.
    """
    given = [absolute_path(local_path(path)) for path in paths]
    roots = [root for path in given for root in roots_of(path)]
    if len(set(roots)) < len(roots):
        raise OptionError(f"a path is passed twice, leave one out: {', '.join(roots)}")
    is_one = len(given) == 1 and roots == given
    found: list[Origin] = []
    for root in roots:
        if may_be_gone and (OS.status(root) is None or (layout == "directory" and not is_journal(OS, root))):
            continue
        recognised = layout or layout_of(root, may_be_empty=may_be_empty)
        is_guess = recognised == "hub" and layout is None and not is_root(root)
        origins = _below(root, recognised, _matcher(pattern or "(?s).*") if is_guess else None)
        found += origins if is_one else [origin._replace(name=origin.path, source=root) for origin in origins]
    return matching(pattern, {origin: os.path.basename(origin.path) for origin in found}, may_be_empty=may_be_empty)


_Named = TypeVar("_Named")


def matching(pattern: str | None, names: Mapping[_Named, str], *, may_be_empty: bool = False) -> list[_Named]:
    """Return what has a name that a pattern matches as a whole: a regular expression, or else a glob (``*.orders.*``).

    Raises:
        OptionError: it matches none of them.
    """
    if pattern is None:
        return list(names)
    expression = _matcher(pattern)
    chosen = [each for each, name in names.items() if expression.fullmatch(name)]
    if names and not chosen and not may_be_empty:
        one = min(names.values())
        raise OptionError(f"pattern={pattern!r} matches none of {len(names)} names; one of them is {one!r}")
    return chosen


def _matcher(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(fnmatch.translate(pattern))


def roots_of(path: str) -> list[str]:
    """Return the roots that a path names: itself, the matches of a glob, or the roots below a directory.

    Raises:
        JournalNotFoundError: no journal matches a glob.
    """
    there = OS.status(path)
    if there is None and glob.has_magic(path):
        matches = dict.fromkeys(map(absolute_path, sorted(glob.glob(path))))
        if found := [match for match in matches if is_journal(OS, match) or _holds_journals(match)]:
            return found
        raise JournalNotFoundError("no journal matches this glob", path=path)
    if there is None or not there.is_dir or is_journal(OS, path) or _holds_journals(path):
        return [path]
    below = [os.path.join(path, name) for name in OS.list(path) if not name.startswith(".")]
    return [each for each in below if _holds_journals(each)] or [path]


def with_roots(paths: Sequence[str]) -> list[str]:
    """Return the paths, and after them the roots below them, which may have a kept schema, too."""
    return [*paths, *(root for path in paths for root in roots_of(path))]


def name_several(paths: Sequence[str]) -> bool:
    """Return whether a table of these paths needs the column that says which: it is not of one root."""
    return len(paths) > 1 or [root for path in paths for root in roots_of(path)] != list(paths)


def _holds_journals(root: str) -> bool:
    """Return whether a path is a hub's root, or a directory with SEJ directories or the records of shards in it."""
    there = OS.status(root)
    if there is None or not there.is_dir:
        return False
    known = is_root(root) or OS.status(os.path.join(root, RECORDS_DIR)) is not None
    return known or any(not name.startswith(".") and is_journal(OS, os.path.join(root, name)) for name in OS.list(root))


def layout_of(root: str, *, may_be_empty: bool = False) -> Layout:
    """Return the layout of a path.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: the path is a file, or a directory without a journal in it.
    """
    layout = recognize(existing(root, OS), OS)
    is_empty = layout == "shards" and not journals_in(OS, root)
    if is_empty and not may_be_empty and OS.status(os.path.join(root, RECORDS_DIR)) is None:
        raise NotAJournalError(
            "this directory has no jnl/ and holds no SEJ directories; expected a SEJ directory, a sharded journal"
            " or a hub's root",
            path=root,
        )
    return layout


def _below(root: str, layout: Layout, refused: re.Pattern[str] | None) -> Iterator[Origin]:
    """Yield the journals below a root; in a hub's, what is not a client's is left out, or refused by its name."""
    if layout != "hub":
        yield from map(_origin, find(root, layout=layout))
        return
    for name in journals_in(OS, root):
        try:
            yield _origin(entry(root, name, layout))
        except NotAJournalError:
            if refused is not None and refused.fullmatch(name):
                raise


def _origin(found: Found) -> Origin:
    return Origin(found.path, found.name, found.client, found.prefix or None, found.bits, found.index)


ID_BYTES: Final = 8
"""Bytes of a journal's identity in offsets and slices."""


class Origin(NamedTuple):
    """One SEJ directory of a read.

    Attributes:
        path: the directory.
        name: its name in options, offsets and log lines: the name below the root, or the path unless one root is
            read.
        client: the hub's client, or None.
        prefix: the shard's prefix, or None.
        bits: the shard's bits, or None.
        shard: the shard's index, or None.
        source: the root, unless one is read.
    """

    path: str
    name: str
    client: str | None = None
    prefix: str | None = None
    bits: int | None = None
    shard: int | None = None
    source: str | None = None


class Slice(NamedTuple):
    """The messages [start, stop) of an origin.

    Attributes:
        origin: the journal.
        start: the first offset.
        stop: the offset after the last.
        size: about how many bytes they take.
        place: where the first message is, if known.
        id: the journal's identity in hex, which a task compares with its own journal; empty if it is unknown.
    """

    origin: Origin
    start: int
    stop: int
    size: int
    place: Place | None = None
    id: str = ""


def lost(error: SejError, *, fail: bool) -> None:
    """Raise an error about lost messages, or log it."""
    if fail:
        raise error
    _log.warning("left out, because failOnDataLoss is false: %s", error)


def short_id(directory: Directory) -> str:
    """Return the beginning of a journal's identity in hex, as offsets and slices contain it; empty if it has none.

    Raises:
        CorruptionError: the file does not hold an identity.
    """
    found = journal_id(directory)
    return found[:ID_BYTES].hex() if found else ""
