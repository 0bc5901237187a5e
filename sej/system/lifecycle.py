"""What happens to open objects when the process forks.

A forked child has copies of the parent's objects and descriptors, but not its threads. A copied descriptor keeps a lock
of the parent alive, and a mutex that another thread held is never released. So every object that holds either one is in
one registry, and the child calls its ``_after_fork``: it closes the copies without unlocking, and makes new mutexes.
The objects are independent of each other here, so their order does not matter.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "forget_forked", "watch_forks"]


class Forkable(Protocol):
    """An object that belongs to the process that opened it."""

    def _after_fork(self) -> None:
        """In a forked child: close copies of descriptors, without unlocking; make new mutexes."""


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(opened: Forkable) -> None:
    """Let a forked child call ``_after_fork`` of an object that was opened, for as long as it lives."""
    _open.add(opened)


def forget_forked(closed: Forkable) -> None:
    """Leave out an object that was closed."""
    _open.discard(closed)


def _in_child() -> None:
    for found in list(_open):
        found._after_fork()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
