"""The check that notices a fork, in one place.

A forked child has copies of the parent's objects and descriptors, but not its threads. A copied descriptor shares the
lock and the place in the file with the parent, and a mutex that another thread held is never released. So every object
that holds either one is in one registry, and the child calls ``_after_fork`` of each before it does anything with one
of them: that closes the copies without unlocking, and makes new mutexes. The objects are independent of each other
here, so their order does not matter.

No hook has to run for that, because a program written in C that embeds Python, such as uWSGI, forks without Python's
hooks. Each way to an effect asks :func:`notice_fork` first, which compares the pid. The compiled codec has a page that
the kernel clears in each child (``MADV_WIPEONFORK``), and asks only if it is clear. If Python forks, its one hook asks
immediately, so that the child does not keep the parent's locks alive.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that belongs to the process that opened it."""

    def _after_fork(self) -> None:
        """In a forked child: close copies of descriptors, without unlocking; make new mutexes."""


_open: set[weakref.ref[Forkable]] = set()
"""What a WeakSet is, but with calls into C only: each journal that is opened adds two objects."""
_telling = threading.RLock()
_pid = os.getpid()


def notice_fork() -> None:
    """If this is a forked child that does not know it yet, tell every object of the parent."""
    if os.getpid() != _pid:
        _in_child()


def watch_forks(opened: Forkable) -> None:
    """Let a forked child call ``_after_fork`` of an object that was opened, for as long as it lives."""
    if os.getpid() != _pid:  # first: the objects that are registered by then are the parent's
        _in_child()
    _open.add(weakref.ref(opened, _open.discard))


def forget_forked(closed: Forkable) -> None:
    """Leave out an object that was closed."""
    _open.discard(weakref.ref(closed))


def _in_child() -> None:
    global _pid
    with _telling:  # another thread of the child waits until all objects know it
        while _open:
            reference = _open.pop()
            try:
                if (found := reference()) is not None:
                    found._after_fork()
            except BaseException:
                _open.add(reference)  # for the next call, if a signal handler raised this
                raise
        _pid = os.getpid()


os.register_at_fork(after_in_child=_in_child)
