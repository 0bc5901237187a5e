"""Retention on the hub: every client's journal by its own readers.

A segment that a reader with a kept offset still needs is kept, and so is the last one; see ``Journal.clean``. Merges
keep their offsets in every directory, so they count as readers too. One damaged directory does not keep the others from
being cleaned.
"""

from __future__ import annotations

import os
from typing import Any

from hub.naming import Source, find_sources, require_root, source_path
from sej.checks import DISK, PATH, require
from sej.errors import SejError
from sej.journal.view import Journal
from sej.system.disk import OS, Disk


def clean(root: str | os.PathLike[str], *, disk: Disk = OS, **limits: Any) -> dict[Source, Any]:
    """Remove segments that exceed the limits, in every directory.

    Args:
        root: the hub's root.
        disk: the disk.
        limits: as for :meth:`sej.Journal.clean`: ``max_age_s``, ``max_bytes``, ``keep_segments``, ``dry_run``.

    Returns:
        For each directory the result of ``Journal.clean``, or the error that prevented it.

    Raises:
        JournalNotFoundError: the root does not exist.
    """
    require(root=(root, PATH), disk=(disk, DISK))
    path = os.fspath(root)
    require_root(path, disk=disk)
    done: dict[Source, Any] = {}
    for source in find_sources(path, disk=disk):
        try:
            done[source] = Journal(source_path(path, source), disk=disk).clean(**limits)
        except SejError as error:
            done[source] = error
        except OSError as error:
            done[source] = SejError(error.strerror or str(error), path=error.filename or source_path(path, source))
            done[source].__cause__ = error
    return done
