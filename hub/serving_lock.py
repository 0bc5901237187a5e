"""The lock of a hub's root: the servers of one process serve it.

With two hubs on one root, each would refuse what the other one has open. So a server holds a lock on ``.serving.lck``
in the root. The lock ends with its process. The servers of one process share it. Programs that read the root, or write
to it without a server, do not need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sej.mutex import notice_fork, watch_forks
from sej.system.disk import OS, Disk
from sej.system.locks import Lock

_NAME: Final = ".serving.lck"


class _Roots:
    """The roots that this process serves, each with its lock and the number of its servers."""

    def __init__(self) -> None:
        self._after_fork()

    def _after_fork(self) -> None:
        """Serve nothing: the locks are the parent's."""
        self.changing = threading.Lock()
        self.served: dict[str, tuple[Lock, int]] = {}


_roots: Final = _Roots()


@contextmanager
def serving(root: str, disk: Disk = OS) -> Iterator[None]:
    """Hold the lock of a root until the block ends.

    Raises:
        LockedError: another process serves this root.
    """
    name = os.path.realpath(root)
    watch_forks(_roots)
    with _roots.changing:
        lock, servers = _roots.served.get(name, (None, 0))
        lock = lock or Lock(os.path.join(name, _NAME), what="this hub's root", disk=disk)
        if not servers:
            lock.acquire()
        _roots.served[name] = lock, servers + 1
    try:
        yield
    finally:
        notice_fork()
        with _roots.changing:
            lock, servers = _roots.served.pop(name, (lock, 0))  # 0: this is a forked child
            if servers > 1:
                _roots.served[name] = lock, servers - 1
            elif servers:
                lock.release()
