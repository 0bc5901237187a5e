"""Which work queues are paused, for the overview: looked at in turns, within a limit of CPU time.

A queue whose state log is as it was is not read again. So a round over many idle queues costs a listing and a few calls
of ``stat``; busy queues take turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sej.errors import SejError
from sej.journal.directory import Directory
from sej.queue.disk.log import queue_names
from sej.queue.items.look import QueueLook
from sej.system.disk import OS, Status

_LOOK_S: Final = 0.02
"""CPU time for one round."""


class Pauses:
    """The paused queues of many journals. One thread calls :meth:`look`; any thread may call :meth:`of`."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[str, dict[str, tuple[Status, bool]]] = {}
        self._next = 0

    def look(self, paths: Sequence[str]) -> None:
        """Look at the queues of these journals, and forget the others; continue where the last round ended."""
        began = time.thread_time()
        first = self._next
        for step in range(len(paths)):
            at = (first + step) % len(paths)
            self._look_at(paths[at])
            self._next = at + 1
            if time.thread_time() - began > _LOOK_S:
                break
        for gone in self._known.keys() - set(paths):
            del self._known[gone]

    def of(self, path: str) -> list[str]:
        """Return the names of a journal's paused queues, in order."""
        return sorted(name for name, (_, paused) in self._known.get(path, {}).items() if paused)

    def _look_at(self, path: str) -> None:
        before = self._known.get(path, {})
        found: dict[str, tuple[Status, bool]] = {}
        try:
            directory = Directory(path, OS)
            for name in queue_names(directory):
                status = OS.status(directory.at("ofs", f"{name}.queue"))  # first: a change meanwhile is found later
                known = before.get(name)
                if status is not None and known is not None and known[0] == status:
                    found[name] = known
                elif status is not None:
                    found[name] = status, QueueLook(path, name).stats().paused
        except (SejError, OSError):
            found = before  # the journal's row and the page of the queue report it
        self._known[path] = found
