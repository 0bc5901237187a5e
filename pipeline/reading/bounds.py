"""Which messages a batch read means: start and end by offset, by time, by filter, against what is really there.

The words are the Kafka source's: ``earliest``, ``latest``, JSON by directory with -2 and -1; a time wins over an
offset. What was deleted, and what is not there yet, is data loss: an error, or with ``failOnDataLoss=false`` a line
in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from pipeline.options import OptionError, Options
from pipeline.reading.extents import Extent
from pipeline.reading.places import Origin, Slice
from pipeline.reading.remote import RemoteExtent
from sej.errors import OffsetBeyondEndError, OffsetTooSmallError

__all__ = ["EARLIEST", "LATEST", "by_directory", "slices"]

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_log = logging.getLogger("pipeline")


def by_directory(given: str | dict[str, int], origins: Sequence[Origin], option: str, rest: int) -> dict[str, int]:
    """What an option says for each origin, by its name; rest for those that its JSON leaves out.

    Raises:
        OptionError: JSON names a directory that is not read.
    """
    if isinstance(given, str):
        return dict.fromkeys((origin.name for origin in origins), _WORDS[given])
    names = {name: origin.name for origin in origins for name in (origin.name, origin.path)}
    unknown = [name for name in given if name not in names]
    if unknown:
        there = ", ".join(sorted(origin.name for origin in origins)[:10])
        raise OptionError(f"option {option} names {unknown[0]!r}, which is not read; there are {there or 'none'}")
    found = dict.fromkeys((origin.name for origin in origins), rest)
    found.update({names[name]: offset for name, offset in given.items()})
    return found


def slices(
    extents: Iterable[Extent | RemoteExtent], options: Options, low: int = 0, high: int | None = None
) -> list[Slice]:
    """The messages that are meant, one slice an origin; empty ones are left out.

    Args:
        extents: what is there.
        options: of a batch read.
        low: a filter on offset: none below.
        high: a filter on offset: none from here on.

    Raises:
        OffsetTooSmallError: the start was deleted, and failOnDataLoss is true.
        OffsetBeyondEndError: start or end lie behind the last message, and failOnDataLoss is true.
    """
    extents = list(extents)
    origins = [extent.origin for extent in extents]
    starts = by_directory(options["startingOffsets"] or "earliest", origins, "startingOffsets", EARLIEST)
    stops = by_directory(options["endingOffsets"], origins, "endingOffsets", LATEST)
    found = []
    for extent in extents:
        start, stop = starts[extent.origin.name], stops[extent.origin.name]
        if options["startingTimestamp"] is not None:
            start = extent.find_time(options["startingTimestamp"])
        if options["endingTimestamp"] is not None:
            stop = extent.find_time(options["endingTimestamp"])
        start = _resolve(extent, start, "startingOffsets", fail=options["failOnDataLoss"])
        stop = _resolve(extent, stop, "endingOffsets", fail=options["failOnDataLoss"])
        part = extent.slice(max(start, low), stop if high is None else min(stop, high))
        if part.start < part.stop:
            found.append(part)
    return found


def _resolve(extent: Extent | RemoteExtent, offset: int, option: str, *, fail: bool) -> int:
    if offset == EARLIEST:
        return extent.first
    if offset == LATEST:
        return extent.end
    path = extent.origin.path
    if offset < extent.first and option == "startingOffsets":
        if fail:
            raise OffsetTooSmallError(
                f"{option} asks for message {offset}, which was deleted; the first one that is there is {extent.first}:"
                " start from there, or give failOnDataLoss=false",
                first_available=extent.first,
                path=path,
                offset=offset,
            )
        _log.warning("%s: messages %d to %d were deleted and are left out", path, offset, extent.first - 1)
    if offset > extent.end:
        if fail:
            raise OffsetBeyondEndError(
                f"{option} asks for offset {offset}, but the journal ends at {extent.end}: take latest, or give"
                " failOnDataLoss=false",
                path=path,
                offset=offset,
            )
        _log.warning("%s: %s is %d, but the journal ends at %d", path, option, offset, extent.end)
    return min(max(offset, extent.first), extent.end)
