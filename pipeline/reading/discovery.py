"""From paths to origins: which SEJ directories are meant, and what their names say.

A path is one SEJ directory, a tree of shards, or a hub's root. It is recognised as everywhere in this house: ``jnl/``
makes a SEJ directory, the marker ``.hub`` a hub's root; without it a tree whose names all parse as shards is a tree of
shards, and anything else a hub. ``layout`` forces one. Dot folders are nobody's.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable
from typing import Final, Literal

from hub.naming import find_sources, is_root
from pipeline.options import OptionError
from pipeline.reading.places import Origin
from sej.errors import JournalNotFoundError, NotAJournalError
from sej.system.disk import OS
from shard.name_format import RECORDS_DIR
from shard.names import split_name

__all__ = ["Layout", "discover", "layout_of", "matcher"]

Layout = Literal["directory", "shards", "hub"]
_LAYOUTS: Final = ("directory", "shards", "hub")


def discover(
    paths: Iterable[str],
    *,
    layout: Layout | None = None,
    pattern: str | None = None,
    may_be_empty: bool = False,
    may_be_gone: bool = False,
) -> list[Origin]:
    """The SEJ directories below paths, sorted by name in each.

    Args:
        paths: roots.
        layout: what each of them is; None: look.
        pattern: only names that match it; see :func:`matcher`.
        may_be_empty: whether a directory without journals may still become something.
        may_be_gone: whether a path where nothing is, or no journal any more, is passed over.

    Raises:
        JournalNotFoundError: nothing is at a path.
        NotAJournalError: a path is a file, or a directory without a journal in it.
        OptionError: the pattern matches none of the directories, or a path comes twice.
    """
    roots = [os.path.abspath(path) for path in paths]
    if len(set(roots)) < len(roots):
        raise OptionError(f"a path is given twice: {', '.join(roots)}")
    found = []
    for root in roots:
        if may_be_gone and (OS.status(root) is None or (layout == "directory" and not _is_journal(root))):
            continue
        origins = _below(root, layout or layout_of(root, may_be_empty=may_be_empty))
        found += [origin._replace(name=origin.path) for origin in origins] if len(roots) > 1 else origins
    if pattern is None:
        return found
    matches = matcher(pattern)
    chosen = [origin for origin in found if matches(os.path.basename(origin.path))]
    if found and not chosen and not may_be_empty:
        raise OptionError(f"pattern={pattern!r} matches none of {len(found)} directories; one is {found[0].name!r}")
    return chosen


def matcher(pattern: str) -> Callable[[str], bool]:
    """A test of a directory's whole name: by regular expression, or by glob where it is none (``*.orders.*``)."""
    try:
        expression = re.compile(pattern)
    except re.error:
        expression = re.compile(fnmatch.translate(pattern))
    return lambda name: expression.fullmatch(name) is not None


def layout_of(root: str, *, may_be_empty: bool = False) -> Layout:
    """What a path is.

    Raises:
        JournalNotFoundError: nothing is there.
        NotAJournalError: a file, or a directory without a journal in it.
    """
    there = OS.status(root)
    if there is None:
        raise JournalNotFoundError(
            "nothing is here: a SEJ directory, a tree of shards or a hub's root is due", path=root
        )
    if not there.is_dir:
        raise NotAJournalError("this is a file; a SEJ directory, a tree of shards or a hub's root is due", path=root)
    if _is_journal(root):
        return "directory"
    if is_root(root):
        return "hub"
    journals = _journals(root)
    if not journals and not may_be_empty and OS.status(os.path.join(root, RECORDS_DIR)) is None:
        raise NotAJournalError(
            "this directory has no jnl/ and holds no SEJ directories: it is no journal, no tree of shards and no hub",
            path=root,
        )
    return "shards" if all(split_name(name) is not None for name in journals) else "hub"


def _below(root: str, layout: Layout) -> list[Origin]:
    if layout not in _LAYOUTS:
        raise OptionError(f"layout={layout!r}: one of {', '.join(_LAYOUTS)} is due")
    if layout == "directory":
        if not _is_journal(root):
            raise NotAJournalError("this is no SEJ directory: it has no jnl/", path=root)
        return [Origin(root, os.path.basename(root))]
    if layout == "shards":
        found = []
        for name in _journals(root):
            shard = split_name(name)
            if shard is None:
                raise NotAJournalError(f"{name!r} is no shard's name; layout='hub' reads it as a client's", path=root)
            found.append(_named(Origin(os.path.join(root, name), name), shard))
        return sorted(found, key=lambda origin: (origin.prefix or "", origin.bits, origin.shard))
    return [
        _named(Origin(os.path.join(root, source.name), source.name, source.client), split_name(source.journal_dir))
        for source in find_sources(root)
    ]


def _named(origin: Origin, shard: tuple[str, int, int] | None) -> Origin:
    """An origin with what its shard's name says; a tree without a prefix has none."""
    if shard is None:
        return origin
    prefix, bits, index = shard
    return origin._replace(prefix=prefix or None, bits=bits, shard=index)


def _journals(root: str) -> list[str]:
    return [name for name in OS.list(root) if not name.startswith(".") and _is_journal(os.path.join(root, name))]


def _is_journal(path: str) -> bool:
    inside = OS.status(os.path.join(path, "jnl"))
    return inside is not None and inside.is_dir
