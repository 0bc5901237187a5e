"""Readers of the original that follow a journal, found in ``/proc``.

The original's scanner watches ``jnl/`` by inotify and has one segment open. It acts on two events only: a name was
created (also by a rename into ``jnl/``), or a name was deleted. Then it opens its segment again and reads it from the
first byte, although it expects a later offset. So it ends with an error, unless the segment is a new one.

==========================  ================  ===============================
change in ``jnl/``          event             reader of the original
==========================  ================  ===============================
append to a segment         IN_MODIFY         reads on
segment renamed out of it   IN_MOVED_FROM     reads on
segment deleted             IN_DELETE         ends
file renamed into it        IN_MOVED_TO       ends
==========================  ================  ===============================

Hence a segment is removed by renaming it out of ``jnl/`` and deleting it there, which ends no reader. A merge cannot
avoid a rename into ``jnl/``, so it can look for readers first.

Readers of this library watch ``jnl/`` too, but without IN_DELETE_SELF (:mod:`sej.system.watch`), which the original's
watch has. A process of another user is visible to root only, and a process outside this container to none in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Final

from sej.errors import UnsupportedError

_DELETE_SELF: Final = 0x400
_WATCH: Final = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) .*?mask:([0-9a-f]+)", re.MULTILINE)
_INOTIFY: Final = "anon_inode:inotify"


def find_followers(folder: str, files: Collection[tuple[int, int]]) -> list[str]:
    """Return the processes that follow a journal as the original does, each as ``pid=123 (program)``.

    Args:
        folder: the journal's ``jnl/``.
        files: the (device, inode) of its segments.

    Raises:
        UnsupportedError: the system has no ``/proc`` as Linux has it.
    """
    if not os.path.isdir("/proc/self/fdinfo"):
        raise UnsupportedError("other processes cannot be examined: this needs /proc as on Linux", path=folder)
    inode = os.stat(folder).st_ino
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [
        f"pid={pid} ({_program(pid)})" for pid in sorted(pids) if pid != os.getpid() and _follows(pid, inode, files)
    ]


def _follows(pid: int, inode: int, files: Collection[tuple[int, int]]) -> bool:
    watches = reads = False
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            target = _target(f"/proc/{pid}/fd/{fd}")
            if target == _INOTIFY:
                watches = watches or _watches(f"/proc/{pid}/fdinfo/{fd}", inode)
            elif target.endswith(".jnl"):
                reads = reads or _identity(f"/proc/{pid}/fd/{fd}") in files
    except OSError:  # it has ended, or belongs to another user
        return False
    return watches and reads


def _watches(info: str, inode: int) -> bool:
    """Return whether an inotify instance watches a directory as the original does."""
    try:
        with open(info, encoding="ascii") as lines:
            found = _WATCH.findall(lines.read())
    except OSError:  # closed since it was listed
        return False
    return any(int(ino, 16) == inode and int(mask, 16) & _DELETE_SELF for ino, mask in found)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _identity(link: str) -> tuple[int, int] | None:
    try:
        there = os.stat(link)
    except FileNotFoundError:
        return None
    return there.st_dev, there.st_ino


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return name.read().strip()
    except OSError:
        return "ended"
