"""The lock of a hub's root: one hub serves it.

Two hubs on one root would take journals from each other, and each would refuse what the other one has open. So the
server of a store holds a lock on ``.serving.lck`` in the root, and its supervisor does if several processes serve
together. The lock ends with its process. Programs that read the root, or write to it without a server, do not need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sej.system.disk import OS, Disk
from sej.system.locks import Lock

__all__ = ["ServingLock"]

_NAME: Final = ".serving.lck"


class ServingLock:
    """The lock, shared by the servers of one store."""

    def __init__(self, root: str, disk: Disk = OS) -> None:
        """Set the root; nothing is locked yet."""
        self._lock = Lock(os.path.join(root, _NAME), what="this hub's root", disk=disk)
        self._changing = threading.Lock()
        self._holders = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock until the block ends.

        Raises:
            LockedError: another hub serves this root.
        """
        with self._changing:
            if not self._holders:
                self._lock.acquire()
            self._holders += 1
        try:
            yield
        finally:
            with self._changing:
                self._holders -= 1
                if not self._holders:
                    self._lock.release()
