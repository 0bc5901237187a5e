"""Origins (journals and the fields of their names) and slices (ranges of offsets in them).

Plain values that are sent from the driver to the tasks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sej.journal.directory import Directory
from sej.journal.identity import journal_id
from sej.journal.segment import Place

ID_BYTES: Final = 8
"""Bytes of a journal's identity in offsets and slices."""


class Origin(NamedTuple):
    """One SEJ directory of a read.

    Attributes:
        path: the directory.
        name: its name in options, offsets and log lines: the name below the root, or the path if several roots are
            read.
        client: the hub's client, or None.
        prefix: the shard's prefix, or None.
        bits: the shard's bits, or None.
        shard: the shard's index, or None.
    """

    path: str
    name: str
    client: str | None = None
    prefix: str | None = None
    bits: int | None = None
    shard: int | None = None


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


def short_id(directory: Directory) -> str:
    """Return the beginning of a journal's identity in hex, as offsets and slices contain it; empty if it has none.

    Raises:
        CorruptionError: the file does not hold an identity.
    """
    found = journal_id(directory)
    return found[:ID_BYTES].hex() if found else ""
