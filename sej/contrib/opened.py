"""What each process opens for itself: workers fork, and a queue belongs to the process that opened it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from sej.checks import require
from sej.errors import ClosedError
from sej.journal.retention import Retention
from sej.queue.interface.queue import WorkQueue
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import absolute_path


class _Closes(Protocol):
    def close(self) -> object: ...


_Resource = TypeVar("_Resource", bound=_Closes)
_SEGMENT_BYTES: Final = 16 << 20
PREFETCHED: Final = 1000
"""The default of ``max_attempts`` for libraries whose workers take messages before they have a task for them: a message
that was never begun loses an attempt with each worker that is killed."""
READER = "worker"
"""The name of each queue in its journal: ``sej queue ls DIRECTORY/QUEUE`` finds it by itself."""


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
        if not self.owned:  # the parent's lock may be held, and its objects refuse to work here
            self._pid, self._lock, self._found = os.getpid(), threading.Lock(), {}
        with self._lock:
            if name not in self._found:
                self._found[name] = self._open(name)
            return self._found[name]

    @property
    def owned(self) -> bool:
        """Return whether this process has opened what there is."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """Close what this process has opened; the next use opens it again."""
        if self.owned:
            with self._lock:
                found, self._found = self._found, {}
            for each in found.values():
                with suppress(ClosedError):
                    each.close()


def open_at(path: str, **options: Any) -> WorkQueue:
    """Open the work queue of a journal, which is created if it is missing.

    A worker holds an item until it ends it or dies: the tasks of these libraries may take any time. Segments whose
    messages are done are removed, except for 64 MiB.

    Args:
        path: the journal.
        options: of :func:`sej.open_queue`; they replace those above.
    """
    kept: dict[str, Any] = {"segment_bytes": _SEGMENT_BYTES, "retention": Retention(max_bytes=4 * _SEGMENT_BYTES)}
    return JournalQueue(path, READER, **{"lease_s": float("inf"), **kept, **options})


def queues_in(directory: str | os.PathLike[str], **options: Any) -> PerProcess[WorkQueue]:
    """Return the work queues of a directory, by their names; options are those of :func:`open_at`."""
    require(directory=directory)
    root = absolute_path(directory)
    return PerProcess(lambda name: open_at(os.path.join(root, name), **options))
