"""How many files a process may have open: a tree of many shards needs more than a shell usually allows at first.

The soft limit is raised as far as the hard one goes and as is needed, as Go's runtime does at its start; it stays so.
"""

from __future__ import annotations

import errno
import sys
from typing import Final

from sej.errors import SejError

__all__ = ["OTHERS", "make_room", "too_many"]

OTHERS: Final = 64
"""So many are left for whatever else the process has open."""
_ANY: Final = 1 << 20


def make_room(files: int) -> int:
    """Make sure, as far as may be, that so many files can be open beside the others; how many can be.

    Example:
        >>> make_room(8) >= 8
        True
    """
    if sys.platform == "win32":
        return _ANY
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
    """A clear error where one says that the process has too many files open, or None where it says something else."""
    if error.errno != errno.EMFILE:
        return None
    return SejError(f"this process may not open more files: {what}; allow it more, with ulimit -n", path=error.filename)
