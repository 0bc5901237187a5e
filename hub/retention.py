"""Retention on the hub: every client's journal by its own readers.

What a reader with a kept offset still needs stays, and so does the last segment; see ``Journal.clean``. Merges keep
their offsets in every directory, so they count as readers too. One damaged directory does not keep the others from
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

__all__ = ["clean"]


def clean(root: str | os.PathLike[str], *, disk: Disk = OS, **limits: Any) -> dict[Source, Any]:
    """Remove what is too old or too much, in every directory.

    Args:
        root: the hub's.
        disk: the seam.
        limits: as for :meth:`sej.Journal.clean`: ``max_age_s``, ``max_bytes``, ``keep_segments``, ``dry_run``.

    Returns:
        What ``Journal.clean`` says for each directory, or the error that kept it from being cleaned.

    Raises:
        JournalNotFoundError: there is nothing at root.
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
            done[source] = SejError(str(error), path=error.filename or source_path(path, source))
            done[source].__cause__ = error
    return done
