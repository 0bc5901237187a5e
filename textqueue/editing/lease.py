"""Keeping everybody else out of a queue file for the microseconds of an edit, also those who know no lock of ours.

The kernel's lease (``sej.system.locks.lease``) is granted when no other process has the file open. So it is worth
waiting a moment for an editor that is saving, and not worth waiting each time for a program that keeps the file open
for hours.
"""

from __future__ import annotations

import time
from typing import Final

from sej.system.disk import File
from sej.system.locks import leasable, lease

__all__ = ["Exclusive"]

_LEASE_WAIT_S: Final = 0.02
"""How long an edit waits for somebody who has the file open right now."""
_FUTILE_FIRST_S: Final = 0.02
_FUTILE_MAX_S: Final = 1.0
"""After waiting in vain: how long edits do not wait again; doubled each time."""
_PAUSE_S: Final = 0.000_2


class Exclusive:
    """Takes leases, and remembers when that was in vain."""

    def __init__(self) -> None:
        """Nothing was tried."""
        self._futile_until = 0.0
        self._futile_s = _FUTILE_FIRST_S

    def take(self, file: File) -> bool:
        """Whether the file is this process' alone until it is closed."""
        if lease(file):
            self._futile_s = _FUTILE_FIRST_S
            return True
        now = time.monotonic()
        if now < self._futile_until or not leasable(file):
            return False
        while time.monotonic() - now < _LEASE_WAIT_S:
            time.sleep(_PAUSE_S)
            if lease(file):
                return True
        self._futile_until = time.monotonic() + self._futile_s
        self._futile_s = min(self._futile_s * 2, _FUTILE_MAX_S)
        return False
