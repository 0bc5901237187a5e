"""The messages of a batch read: start and end by offset, by time, by filter, compared with what exists.

The values are the Kafka source's: ``earliest``, ``latest``, JSON by directory with -2 and -1; a time takes precedence
over an offset. Messages that were deleted or do not exist yet are data loss: an error, or with ``failOnDataLoss=false``
a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from pipeline.options import OptionError, Options
from pipeline.reading.extents import Extent
from pipeline.reading.places import Origin, Slice
from pipeline.reading.remote import RemoteExtent
from sej.errors import OffsetBeyondEndError, OffsetTooSmallError

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_log = logging.getLogger("pipeline")


def by_directory(given: str | dict[str, int], origins: Sequence[Origin], option: str, rest: int) -> dict[str, int]:
    """Return an option's value for each origin, by its name; ``rest`` for those missing in its JSON.

    Raises:
        OptionError: the JSON names a directory that is not read.
    """
    if isinstance(given, str):
        return dict.fromkeys((origin.name for origin in origins), _WORDS[given])
    names = {name: origin.name for origin in origins for name in (origin.name, origin.path)}
    unknown = [name for name in given if name not in names]
    if unknown:
        there = ", ".join(sorted(origin.name for origin in origins)[:10])
        raise OptionError(
            f"option {option} names {unknown[0]!r}, which is not read; the directories are {there or 'none'}"
        )
    found = dict.fromkeys((origin.name for origin in origins), rest)
    found.update({names[name]: offset for name, offset in given.items()})
    return found


def slices(
    extents: Iterable[Extent | RemoteExtent], options: Options, low: int = 0, high: int | None = None
) -> list[Slice]:
    """Return the messages to read, one slice for each origin, without empty ones.

    Args:
        extents: the existing messages.
        options: of a batch read.
        low: a filter on offset: the lowest.
        high: a filter on offset: the first one beyond.

    Raises:
        OffsetTooSmallError: the start was deleted, and failOnDataLoss is true.
        OffsetBeyondEndError: start or end are past the last message, and failOnDataLoss is true.
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
                f"{option} requests message {offset}, which was deleted; start from {extent.first}, the first"
                " existing message, or set failOnDataLoss=false",
                first_available=extent.first,
                path=path,
                offset=offset,
            )
        _log.warning("%s: messages %d to %d were deleted and are left out", path, offset, extent.first - 1)
    if offset > extent.end:
        if fail:
            raise OffsetBeyondEndError(
                f"{option} requests offset {offset}, but the journal ends at {extent.end}; use latest, or set"
                " failOnDataLoss=false",
                path=path,
                offset=offset,
            )
        _log.warning("%s: %s is %d, but the journal ends at %d", path, option, offset, extent.end)
    return min(max(offset, extent.first), extent.end)
