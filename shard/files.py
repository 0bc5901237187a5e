"""How many files a process may open: many shards need more than a shell usually allows by default."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from sej.errors import SejError

_OTHERS: Final = 64
"""Files for other uses in this process, if it has not more of them already."""
_ANY: Final = 1 << 20


def spare_files() -> int:
    """Return how many more files this process can open, at least 1; some are left for other uses."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = 0
    with contextlib.suppress(OSError):  # without /proc
        held = len(os.listdir("/proc/self/fd"))
    return _ANY if soft == resource.RLIM_INFINITY else max(soft - max(_OTHERS, held + _OTHERS // 2), 1)


def too_many(error: OSError, what: str) -> SejError | None:
    """Return a clear error if an error means that the process has too many files open, else None."""
    if error.errno != errno.EMFILE:
        return None
    return SejError(f"this process cannot open more files: {what}; raise its limit with ulimit -n", path=error.filename)
