"""Recorded gaps: stretches of offsets that a repair found lost, so that readers may pass them and say so.

``gaps/<first>.gap`` holds one gap as JSON: first missing offset, the next one that is there, where the damaged bytes
were kept. The original cannot pass a gap.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sej.directory import Directory
from sej.disk import replace_file

__all__ = ["Gap", "read_gaps", "record_gap"]


class Gap(NamedTuple):
    """Offsets that are lost.

    Attributes:
        start: the first missing offset.
        stop: the next offset that is there.
        reason: what was found.
        kept: where the damaged bytes are, or None.
    """

    start: int
    stop: int
    reason: str
    kept: str | None = None

    @property
    def missing(self) -> int:
        """How many messages are missing."""
        return self.stop - self.start


def read_gaps(directory: Directory) -> list[Gap]:
    """The recorded gaps of a journal, by offset."""
    if directory.disk.status(directory.at("gaps")) is None:
        return []
    found = []
    for name in directory.disk.list(directory.at("gaps")):
        if name.endswith(".gap"):
            file = directory.disk.open(directory.at("gaps", name), "read")
            try:
                row = json.loads(file.read(file.status().size, 0))
            finally:
                file.close()
            found.append(Gap(row["start"], row["stop"], row["reason"], row.get("kept")))
    return sorted(found)


def record_gap(directory: Directory, gap: Gap) -> None:
    """Keep a gap, durably."""
    for name in ("gaps", "tmp"):
        directory.disk.mkdir(directory.at(name))
    name = f"{gap.start:016x}.gap"
    data = json.dumps(gap._asdict(), indent=1).encode() + b"\n"
    replace_file(directory.disk, directory.at("tmp", name), directory.at("gaps", name), data)
