"""Which process has claimed the messages of a file, for the server. The file itself is not changed."""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from typing import NamedTuple

from sej.errors import SejError
from sej.system.disk import OS, Mode, OsDisk, OsFile
from textqueue.format.grammar import MessageStatus
from textqueue.format.parser import digest, essence
from textqueue.ledger.sidecar import Sidecars
from textqueue.queue import TextQueue
from textqueue.reading.details import details


class _Reading(OsDisk):
    """A disk for a user who may only read: otherwise a look would mark messages again that a save has reverted."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode != "read":
            raise PermissionError(errno.EACCES, "the server writes no file", os.fspath(path))
        return super().open(path, mode)


class Held(NamedTuple):
    """A claim: the process, and for how many seconds."""

    holder: str
    age_s: float


def holders(path: str) -> dict[str, list[Held]]:
    """Return the claims of a file by the digest of the message: one for each of several equal messages, in order."""
    found: dict[str, list[Held]] = defaultdict(list)
    try:
        with TextQueue(path, disk=_Reading()) as queue:
            for one in details(queue.messages({MessageStatus.queued}), now_ns=time.time_ns()):
                if one.holder is not None:
                    found[digest(essence(one.message.raw)).decode()].append(Held(one.holder, one.age_s))
    except (OSError, SejError):  # the buffer was never saved, or another program has the file
        return {}
    return found


def state_of(path: str) -> tuple[int, int] | None:
    """Return what changes whenever a program edits the file: size and time of its ledger; None without a ledger."""
    try:
        status = os.stat(Sidecars(path, disk=OS).path(".log"))
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
