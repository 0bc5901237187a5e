"""What an open queue of either format does with its mutex, its end and its waiting calls."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kestrel.hot import Fuse, Signal
from kestrel.tail import Tail
from sej.checks import refuse_pickling
from sej.fork import notice_fork


class BaseQueue:
    """An open queue; its threads share it.

    Attributes:
        name: the queue's name.
        directory: where its files are.
    """

    name: str
    directory: str
    _signal: Signal
    _tail: Tail
    _fuse: Fuse

    __reduce__ = refuse_pickling

    def sync(self) -> None:
        """Sync all writes to disk, items before commits."""
        with self._signal.guard:
            if not self._fuse.shut:
                self.sync_all()

    def evict_waiters(self) -> None:
        """Let every call that waits for an item return None now."""
        self._signal.evict()

    def close(self) -> None:
        """Sync and close. What is taken or reserved is delivered again after the next opening."""
        self._shut(erase=False)

    def delete(self) -> None:
        """Remove the queue's files and close it; its lock file remains."""
        self._shut(erase=True)

    def _shut(self, *, erase: bool) -> None:
        notice_fork()
        with self._signal.guard:
            if self._tail.closed:
                return
            self._fuse.shut = True
            self._signal.changed.notify_all()
        self._tail.stop()  # outside the mutex, which the sync thread takes
        with self._signal.guard:
            if not self._tail.closed:
                self._leave(erase=erase)

    def sync_all(self) -> None:
        """As :meth:`sync`, also while the queue is closed; under the mutex."""
        self._tail.sync()

    def _leave(self, *, erase: bool) -> None:
        """Close the files, or remove them; under the mutex."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
