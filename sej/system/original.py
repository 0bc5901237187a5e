"""The original's trace in ``jnl.lck``, and the extra checks of a writer after it.

The original opens the lock file with O_TRUNC. When it closes, it unlocks, closes and only then unlinks the name. So the
name may be removed at any moment after a writer here has locked the file, and the next original locks a new one:

    the original            this writer               the next original
    unlock
                            lock, the name exists
    unlink
                                                      new file, lock, reads the end
                            append                    writes at the end that it has read

A lock file that an original has opened is empty, and one that it has closed is missing. A writer here signs the file
and leaves it in place. So an empty file, or a missing one next to segments, is an original's trace. The signature
records the trace (``original=``, a time) for :data:`_TRUST_S`.

After a trace every message is a write of its own, between two checks (:mod:`sej.writing.last_segment`): the
path is still the locked file, and the segment ends where this writer left it. No writer here ever puts the same file
back under the path. So a good check *after* the write proves that the path has been this file from the locking to this
check, and that no original has read the end before the message was there. Hence: **an acknowledged message precedes
everything that an original appends**. A message that fails the second check is not acknowledged.

What remains is the time between the first check and the write. If an original unlinks, and another one opens and reads
the end in this time, the unacknowledged message is a second one with its offset. The next opening refuses the journal,
and ``sej repair`` keeps the messages of the first writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from sej.system.disk import Disk, Status

_NOTE: Final = b"original="
_DOUBT: Final = b"?"
_TRUST_S: Final = 86_400
"""An original that was stopped between its unlock and its unlink for longer than this is no longer expected."""
_RECENT_NS: Final = 2_000_000_000
_WAIT_S: Final = 0.01
_LOOK_S: Final = 0.0002


class Trace(NamedTuple):
    """The trace of an original.

    Attributes:
        at: when it was found, in seconds since the epoch.
        certain: whether its own lock file was found; a missing lock file may be missing because of a copy.
    """

    at: int
    certain: bool

    def line(self) -> bytes:
        """Return its line in a signature."""
        return b"%s%d%s\n" % (_NOTE, self.at, b"" if self.certain else _DOUBT)


def _trace_in(content: bytes) -> Trace | None:
    """Return the trace in a signature, or None if it has none or is too old."""
    if _NOTE not in content:
        return None
    for line in content.split(b"\n"):
        stamp = line.removeprefix(_NOTE).removesuffix(_DOUBT)
        if line.startswith(_NOTE) and stamp.isdigit() and time.time() - int(stamp) < _TRUST_S:
            return Trace(int(stamp), not line.endswith(_DOUBT))
    return None


def find_trace(content: bytes, *, missing: bool, written: bool) -> Trace | None:
    """Return the trace in the content of a lock file that was just locked.

    Args:
        content: the content of the file.
        missing: whether there was no file.
        written: whether the journal has segments.
    """
    if content:
        return _trace_in(content)
    return Trace(int(time.time()), not missing) if written else None


def is_current(disk: Disk, identity: tuple[int, int], path: str) -> bool:
    """Return whether a path is still the file with this identity, which the caller has open."""
    there = disk.status(path)
    return there is not None and there.identity == identity


def pause(status: Status, current: Callable[[], bool]) -> None:
    """Give an original that has just closed the time to unlink: the lock is then taken on the next file.

    This is not needed for safety. It is short, and only for a file that was emptied moments ago.
    """
    if abs(time.time_ns() - status.mtime_ns) > _RECENT_NS:
        return
    deadline = time.monotonic() + _WAIT_S
    while current() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
