"""Exclusive access to a queue file during an edit, also against programs that do not use the queue's lock.

The kernel grants a lease (``sej.system.locks.lease``) only if no other process has the file open. An editor that is
saving has it open for a moment, so an edit waits for it briefly. Another program may have it open for hours, so after a
failed wait, edits do not wait again for a while.
"""

from __future__ import annotations

import time
from typing import Final

from sej.system.disk import File
from sej.system.locks import leasable, lease

_LEASE_WAIT_S: Final = 0.02
"""How long an edit waits for a program that has the file open."""
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After a failed wait: how long edits do not wait again. It doubles each time."""
_PAUSE_S: Final = 0.000_2


class Exclusive:
    """Takes leases, and remembers failed waits."""

    def __init__(self) -> None:
        """Begin without a failed wait."""
        self._backoff_until = 0.0
        self._backoff_s = _BACKOFF_FIRST_S

    def take(self, file: File) -> bool:
        """Take a lease, and return whether it was granted. It ends when the file is closed."""
        if lease(file):
            self._backoff_s = _BACKOFF_FIRST_S
            return True
        now = time.monotonic()
        if now < self._backoff_until or not leasable(file):
            return False
        while time.monotonic() - now < _LEASE_WAIT_S:
            time.sleep(_PAUSE_S)
            if lease(file):
                return True
        self._backoff_until = time.monotonic() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)
        return False
