"""What each process opens for itself: workers fork, and a queue belongs to the process that opened it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sej.checks import PATH, require
from sej.errors import ClosedError
from sej.queue.interface.queue import WorkQueue
from sej.queue.journal_queue import JournalQueue
from sej.system.paths import absolute_path

_Resource = TypeVar("_Resource")
READER = "worker"
"""The name of each queue in its journal: ``sej queue show DIRECTORY/QUEUE`` finds it by itself."""


class PerProcess(Generic[_Resource]):
    """Objects by name, each opened at its first use in a process."""

    def __init__(self, open_: Callable[[str], _Resource]) -> None:
        """Set what opens an object; nothing is opened."""
        self._open = open_
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._found: dict[str, _Resource] = {}

    def __getitem__(self, name: str) -> _Resource:
        """Return the object of this process."""
        if self._pid != os.getpid():  # the parent's lock may be held, and its objects refuse to work here
            self._pid, self._lock, self._found = os.getpid(), threading.Lock(), {}
        with self._lock:
            if name not in self._found:
                self._found[name] = self._open(name)
            return self._found[name]

    def close(self) -> None:
        """Close what this process has opened; the next use opens it again."""
        if self._pid == os.getpid():
            with self._lock:
                found, self._found = self._found, {}
            for each in found.values():
                with suppress(ClosedError):
                    each.close()  # type: ignore[attr-defined]


def queues_in(directory: str | os.PathLike[str], **options: Any) -> PerProcess[WorkQueue]:
    """Return the work queues of a directory: a journal for each, which is created at its first use.

    A worker holds an item until it ends it or dies: the tasks of these libraries may take any time.

    Args:
        directory: the directory of the journals.
        options: of :func:`sej.open_queue`, such as ``durability`` and ``max_attempts``.
    """
    require(directory=(directory, PATH))
    root = absolute_path(directory)
    options = {"lease_s": float("inf"), **options}
    return PerProcess(lambda name: JournalQueue(os.path.join(root, name), READER, **options))
