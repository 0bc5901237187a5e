"""Recorded gaps: stretches of offsets that a repair found lost, so that readers may pass them and say so.

``gaps/<first>.gap`` holds one gap as JSON: first missing offset, the next one that is there, where the damaged bytes
were kept. The original cannot pass a gap.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sej.directory import Directory
from sej.disk import replace_file
from sej.errors import CorruptionError

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

    def __str__(self) -> str:
        """One line for people."""
        lost = f"message {self.start} is" if self.missing == 1 else f"messages {self.start} to {self.stop - 1} are"
        return f"{lost} lost: {self.reason}"


def read_gaps(directory: Directory) -> list[Gap]:
    """The recorded gaps of a journal, by offset.

    Raises:
        CorruptionError: a file of a gap is damaged.
    """
    if directory.disk.status(directory.at("gaps")) is None:
        return []
    found = []
    for name in directory.disk.list(directory.at("gaps")):
        if name.endswith(".gap"):
            path = directory.at("gaps", name)
            file = directory.disk.open(path, "read")
            try:
                row = json.loads(file.read(file.status().size, 0))
                found.append(Gap(int(row["start"]), int(row["stop"]), str(row["reason"]), row.get("kept")))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CorruptionError(
                    "no gap can be read from this file; move it to kept/ and run `sej repair`, which records it anew",
                    path=path,
                    position=0,
                ) from error
            finally:
                file.close()
    return sorted(found, key=lambda gap: gap[:2])


def record_gap(directory: Directory, gap: Gap) -> None:
    """Keep a gap, durably."""
    for name in ("gaps", "tmp"):
        directory.disk.mkdir(directory.at(name))
    name = f"{gap.start:016x}.gap"
    data = json.dumps(gap._asdict(), indent=1).encode() + b"\n"
    replace_file(directory.disk, directory.at("tmp", name), directory.at("gaps", name), data)
