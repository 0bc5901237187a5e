"""How many files a process may open: many shards need more than a shell usually allows by default.

The soft limit is raised as needed, up to the hard one, as Go's runtime does at its start; it is not lowered again.
"""

from __future__ import annotations

import errno
from typing import Final

from sej.errors import SejError

__all__ = ["OTHERS", "make_room", "too_many"]

OTHERS: Final = 64
"""Files left for other uses in this process."""
_ANY: Final = 1 << 20


def make_room(files: int) -> int:
    """Raise the limit, if possible, so that this many files can be open in addition to others; return how many can be.

    Example:
        >>> make_room(8) >= 8
        True
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ANY
    due = files + OTHERS
    most = due if hard == resource.RLIM_INFINITY else min(due, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(soft - OTHERS, 1)


def too_many(error: OSError, what: str) -> SejError | None:
    """Return a clear error if an error means that the process has too many files open, else None."""
    if error.errno != errno.EMFILE:
        return None
    return SejError(f"this process cannot open more files: {what}; raise its limit with ulimit -n", path=error.filename)
