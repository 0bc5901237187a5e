"""Waits for a journal that does not exist yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sej.errors import JournalNotFoundError, NotAJournalError
from sej.journal.directory import Directory
from sej.system.watch import Watch

_LOOK_S: Final = 0.2
_SOON_S: Final = 0.01
_GRACE_S: Final = 1.0
"""A directory with other entries and without ``jnl/``, or without a segment, may be a journal that a writer is creating
at this moment."""


def wait_for_journal(
    directory: Directory, timeout: float | None, stopped: Callable[[], bool] = lambda: False
) -> bool | None:
    """Wait until a journal exists; return False if it was there already, None if the wait was stopped.

    A journal that appears usually has a segment when this returns, so that its first offset is known.

    Args:
        directory: the journal; its parent directories may be missing too.
        timeout: seconds to wait; 0 does not wait, None waits without a limit.
        stopped: called at least five times in a second; it returns whether to stop waiting.

    Raises:
        JournalNotFoundError: the journal did not appear within the timeout.
        NotAJournalError: the path is a file, or a directory of something else.

    Example:
        >>> import tempfile, sej
        >>> from sej.system.disk import OS
        >>> path = tempfile.mkdtemp()
        >>> sej.Writer(path).close()
        >>> wait_for_journal(Directory(path, OS), timeout=None)
        False
    """
    start = time.monotonic()
    odd_since: float | None = None
    waited = False
    with Watch(directory.path) as watch:
        while True:
            now = time.monotonic()
            pause = _LOOK_S
            try:
                directory.require()
                odd_since = now if odd_since is None else odd_since
                if not waited or directory.segments() or now - odd_since >= _GRACE_S:
                    return waited
                pause = _SOON_S
            except JournalNotFoundError:
                if timeout is not None and now - start >= timeout:
                    raise
                if timeout is not None:
                    pause = min(start + timeout - now, _LOOK_S)
                odd_since = None
            except NotAJournalError:
                odd_since = now if odd_since is None else odd_since
                there = directory.disk.status(directory.path)
                if (there is not None and not there.is_dir) or now - odd_since >= _GRACE_S:
                    raise
            if stopped():
                return None
            waited = True
            watch.wait(pause)
