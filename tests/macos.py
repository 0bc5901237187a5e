"""Pretend to be macOS: what only Linux has is removed, and ``F_FULLFSYNC`` is there.

Import it before ``sej``, or pass ``-p tests.macos`` to pytest. The lock is the same call on both systems. The file
system, the scheduler and the notifications remain those of Linux. So this proves nothing for macOS, but it runs the
code that only macOS runs.
"""

import asyncio
import concurrent.futures.process
import ctypes.util
import fcntl
import multiprocessing.context
import multiprocessing.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

import watchdog.observers
import watchdog.observers.polling

__all__ = ["full_syncs"]

# Imported first: these look at the system when they are imported.
_OF_LINUX = (
    asyncio, concurrent.futures.process, ctypes.util, multiprocessing.context, multiprocessing.util, platform, shutil,
    socket, subprocess, tempfile, watchdog.observers,
)  # fmt: skip
sysconfig.get_config_vars()  # of this Python: its file has the name of the system
_F_FULLFSYNC = 51
_fcntl = fcntl.fcntl
full_syncs: list[int] = []
"""The descriptor of each full sync."""


def _with_full_sync(fd: Any, command: int, argument: Any = 0) -> Any:
    if command != _F_FULLFSYNC:
        return _fcntl(fd, command, argument)
    full_syncs.append(fd)
    os.fsync(fd)
    return 0


for module, names in (
    (os, ("fdatasync", "posix_fadvise", "posix_fallocate", "O_DIRECT", "O_NOATIME", "memfd_create", "copy_file_range")),
    (fcntl, ("F_SETLEASE", "F_GETLEASE", "F_SETSIG", "F_GETSIG", "F_NOTIFY", "F_OFD_SETLK")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
fcntl.F_FULLFSYNC = _F_FULLFSYNC  # type: ignore[attr-defined, unused-ignore]
fcntl.fcntl = _with_full_sync
sys.platform = "darwin"
