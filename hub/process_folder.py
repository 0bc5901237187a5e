"""The folder of one hub's processes, in the directory for temporary files: their sockets, and what they count together.

It is removed when the hub stops. If all of its processes are killed, it stays, and the next hub removes it: each
process holds a shared lock on a file in it, which ends with the process.

::

    made(): mkdtemp -> create `lock` -> lock it, shared -> it has a name? -> use
                |               |                              |
    a hub that starts meanwhile removes an empty folder, or one whose lock it gets: then made() begins again
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from sej.system.disk import OS

__all__ = ["made", "remove", "using"]

_PREFIX: Final = "sejhub-"
_LOCK: Final = "lock"
_TRIES: Final = 100
_RETRY_S: Final = 0.01


@contextmanager
def made() -> Iterator[str]:
    """Yield a new folder that only this user can enter, and remove it at the end."""
    _remove_left()
    with ExitStack() as stack:
        while True:
            folder = tempfile.mkdtemp(prefix=_PREFIX)
            with suppress(FileNotFoundError):
                stack.enter_context(using(folder))
                break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def using(folder: str) -> Iterator[None]:
    """Keep a folder from being removed by others.

    Raises:
        FileNotFoundError: it was removed.
    """
    file = OS.open(os.path.join(folder, _LOCK), "append")
    with file.closing():
        file.lock(exclusive=False, wait=True)
        if not file.extent()[1]:
            raise FileNotFoundError(folder)
        yield


def remove(folder: str, *, wait: bool = False) -> None:
    """Remove a folder unless a process uses it.

    Args:
        folder: the folder.
        wait: wait a second at most for the processes that use it.
    """
    with suppress(OSError):
        try:
            file = OS.open(os.path.join(folder, _LOCK), "edit")
        except FileNotFoundError:
            os.rmdir(folder)  # the process was killed before it locked the folder, or is about to
            return
        with file.closing():
            for _ in range(_TRIES if wait else 1):
                if file.lock():
                    shutil.rmtree(folder, ignore_errors=True)
                    break
                if wait:
                    time.sleep(_RETRY_S)


def _remove_left() -> None:
    """Remove the folders of this user's hubs that were killed."""
    place = tempfile.gettempdir()
    with suppress(OSError):
        for name in os.listdir(place):
            if not name.startswith(_PREFIX):
                continue
            folder = os.path.join(place, name)
            with suppress(FileNotFoundError):
                found = os.lstat(folder)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    remove(folder)
