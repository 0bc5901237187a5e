"""The kept offsets of all readers of a journal, without their locks."""

from __future__ import annotations

import re
from typing import Final

from sej.journal.directory import Directory
from sej.journal.twin import read_kept

__all__ = ["kept_offsets"]

_OFS: Final = re.compile(r"(.+)\.ofs")


def kept_offsets(directory: Directory) -> dict[str, int | None]:
    """The kept offsets of all readers, by name."""
    if directory.disk.status(directory.at("ofs")) is None:
        return {}
    found = {}
    for entry in directory.disk.list(directory.at("ofs")):
        match = _OFS.fullmatch(entry)
        if match:
            found[match[1]] = read_kept(directory, match[1])
    return found
