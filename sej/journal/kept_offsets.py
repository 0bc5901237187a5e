"""The kept offsets of all readers of a journal, without their locks."""

from __future__ import annotations

import re
from typing import Final

from sej.errors import InvalidNameError
from sej.journal.directory import Directory, check_name
from sej.journal.twin import read_kept

_OFS: Final = re.compile(r"(.+)\.ofs", re.DOTALL)  # a reader of the original may have a name with a line break


def kept_offsets(directory: Directory) -> dict[str, int | None]:
    """Return the kept offsets of all readers, by name."""
    if directory.disk.status(directory.at("ofs")) is None:
        return {}
    found = {}
    for entry in directory.disk.list(directory.at("ofs")):
        match = _OFS.fullmatch(entry)
        if match:
            found[match[1]] = read_kept(directory, match[1])
    return found


def check_reader(directory: Directory, name: str) -> str:
    """Accept the name of a reader: one that may be created here, or one whose file is there.

    Programs of the original use other names too, such as ``host:1`` or ``a b``.

    Raises:
        InvalidNameError: no such file is there, and the name has other characters than a new reader's may have; or it
            could leave ``ofs/``.
        TypeError: it is not a str.
    """
    try:
        return check_name(name, "a reader's name")
    except InvalidNameError:
        if not name or "/" in name or "\0" in name:
            raise
        try:
            there = directory.disk.status(directory.at("ofs", f"{name}.ofs"))
        except OSError:  # a longer name than the file system takes
            there = None
        if there is None:
            raise
        return name
