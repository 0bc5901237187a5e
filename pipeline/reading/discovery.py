"""What is read: from paths to origins, and from the conditions of a query to offsets, times and origins.

A path is one SEJ directory, a sharded journal, or a hub's root; or a name for several of them: a glob, or a
directory that has them below it and no SEJ directory itself. The rules are the same in all packages: ``jnl/`` means
a SEJ directory, the marker ``.hub`` a hub's root. Without the marker, a directory whose names all parse as shards is a
sharded journal, and anything else a hub. ``layout`` forces one. Names that begin with a dot are ignored.

The conditions are an AND-list. One that is fully answered here needs no further test. A condition on time does: the
index finds the first message that is new enough, and readers return only messages within the bounds, which include the
whole last microsecond. Timestamps may be unordered, so only the beginning is skipped.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from hub.naming import is_root
from pipeline.connection import Remote
from pipeline.options import OptionError, ns_of
from pipeline.paths import local_path
from sej.errors import JournalNotFoundError, NotAJournalError, SejError
from sej.journal.directory import Directory, is_journal, journal_id, journals_in
from sej.journal.segment import Place
from sej.system.disk import OS, absolute_path
from shard.names import RECORDS_DIR, Found, Layout, entry, existing, find, recognize

if TYPE_CHECKING:
    from pipeline.values import ValueFormat

_log = logging.getLogger("pipeline")

CHUNK_BYTES: Final = 1 << 20


class Way(NamedTuple):
    """How journals are found, planned and read; it is sent to the tasks.

    Attributes:
        layout: the layout of each path; None: detect it.
        pattern: only names that match it, see :func:`matching`; None: all.
        clients: only these clients of a hub; None: all.
        remote: the hub to read through; None: files.
        on_corruption: raise, or skip and report.
        fail_on_data_loss: raise if messages were deleted since the plan was made, or log it.
        verify: check blocks against their checksums.
        report: a directory for reports of skipped messages, or None.
        values: what columns the values become that a journal does not have itself.
        chunk_bytes: how much of a segment is read in one step; a batch is made of it.
    """

    layout: Layout | None = None
    pattern: str | None = None
    clients: tuple[str, ...] | None = None
    remote: Remote | None = None
    on_corruption: Literal["raise", "skip"] = "raise"
    fail_on_data_loss: bool = True
    verify: bool = False
    report: str | None = None
    values: ValueFormat | None = None
    chunk_bytes: int = CHUNK_BYTES


def discover(paths: Iterable[str], way: Way, *, may_be_empty: bool = False, may_be_gone: bool = False) -> list[Origin]:
    """Return the SEJ directories below paths, sorted by name in each; of all clients.

    Args:
        paths: roots.
        way: layout and pattern.
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
    layout, pattern = way.layout, way.pattern
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


OF_ORIGIN: Final = {"source": "source", "client": "client", "prefix": "prefix", "shard_bits": "bits", "shard": "shard"}
"""The columns that are attributes of an origin."""
_NEVER_NULL: Final = ("offset", "timestamp_ns", "type", "key", "value")
_US_NS: Final = 1000
OLDEST, NEWEST = -(2**63), 2**63 - 1
"""The limits of timestamps, in ns."""


class Condition(NamedTuple):
    """A comparison of a column with a value.

    Attributes:
        column: its name.
        test: how it is compared; ``"<=>"`` is equality that is true for two nulls.
        value: the value; a list with ``"in"``.
    """

    column: str
    test: Literal["=", "!=", "<=>", "<", "<=", ">", ">=", "in", "is null", "is not null"]
    value: Any = None


class Chosen(NamedTuple):
    """What conditions leave to read.

    Attributes:
        low: no offset below.
        high: no offset from here on.
        since: no message older than this, ns.
        until: no message newer than this, ns.
        origins: pairs of an origin's attribute and its accepted values.
    """

    low: int = 0
    high: int = 2**63
    since: int = OLDEST
    until: int = NEWEST
    origins: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def takes(self, origin: Origin) -> bool:
        """Return whether an origin must be read."""
        return all(getattr(origin, name) in values for name, values in self.origins)

    @property
    def is_timed(self) -> bool:
        """Whether the time of each message decides."""
        return self.since > OLDEST or self.until < NEWEST


EVERYTHING: Final = Chosen()


def narrow(chosen: Chosen, given: Condition) -> tuple[Chosen, bool]:
    """Return what one more condition leaves to read, and whether each message then fulfils it."""
    column, test, value = given
    if test == "is not null" and column in _NEVER_NULL:
        return chosen, True
    if column in OF_ORIGIN:
        if test == "in":
            values = tuple(each for each in value if each is not None)
        elif test in ("is null", "<=>") or (test == "=" and value is not None):
            values = (value,)
        else:
            return chosen, False
        return chosen._replace(origins=(*chosen.origins, (OF_ORIGIN[column], values))), True
    if column not in ("offset", "timestamp", "timestamp_ns") or value is None:
        return chosen, False
    first, last = value, value
    if column == "timestamp":  # columns cut a timestamp to microseconds, so the whole microsecond counts
        first, last = ns_of(value), ns_of(value) + _US_NS - 1
    low, high = OLDEST, NEWEST
    if test in ("=", "<=>"):
        low, high = first, last
    elif test in (">", ">="):
        low = first if test == ">=" else last + 1
    elif test in ("<", "<="):
        high = last if test == "<=" else first - 1
    else:
        return chosen, False
    if column == "offset":
        return chosen._replace(low=max(chosen.low, low), high=min(chosen.high, high + 1)), True
    if low > NEWEST or high < OLDEST:
        return chosen._replace(high=0), False
    return chosen._replace(since=max(chosen.since, low), until=min(chosen.until, high)), False
