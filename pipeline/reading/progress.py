"""A stream's progress in ``ofs/``, which tells retention what the stream still needs.

Spark calls ``commit`` for a batch only when the next one is built, and never for the last batch of a run. But each time
it asks how far a stream may read, it names the end of the last finished batch. That is committed here, immediately, in
a thread of its own, because a commit syncs the journal and Spark's batch must not wait for it. The thread is given
offsets and returns what became of them: only the caller's thread changes this object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from sej.errors import ClosedError, JournalNotFoundError, LockLostError, OffsetBeyondEndError, SejError
from sej.reading.offset import Offset

_log = logging.getLogger("pipeline")
_Commits = list[tuple[str, Offset, int | None]]
"""Path, reader and offset; as a result, the offset is None if the journal was removed."""


class Progress:
    """Commits a reader's offsets in many journals; holds the reader's lock in each."""

    def __init__(self, reader: str) -> None:
        """Set the reader; no lock is taken yet."""
        self._reader = reader
        self._kept: dict[str, Offset] = {}
        self._ids: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, f"progress of {reader}")
        self._running: Future[_Commits] | None = None

    def begin(self, places: Mapping[str, tuple[int, str]]) -> list[str]:
        """Register as the reader of journals: from now on retention waits for it.

        If a path has a journal of another identity now, its reader starts from scratch.

        Args:
            places: offset and identity of each journal, by path.

        Returns:
            The paths without those that were removed a moment ago.

        Raises:
            LockedError: another stream or process has this reader name.
        """
        begun = []
        for path, (offset, identity) in places.items():
            with suppress(JournalNotFoundError):
                self._begin(path, offset, identity)
                begun.append(path)
        return begun

    def _begin(self, path: str, offset: int, identity: str) -> None:
        if self._ids.get(path, identity) != identity and path in self._kept:
            self._forget(path)
        if path not in self._kept:
            kept = Offset(path, self._reader, default=offset, beyond_end="rewind")
            self._kept[path], self._ids[path] = kept, identity
            if kept.value < offset:
                self.keep({path: offset})
            elif kept.value > offset:
                kept.reset(offset)  # a new query starts before the old one's end and still needs those messages

    def keep(self, offsets: Mapping[str, int], *, wait: bool = False) -> None:
        """Commit offsets by path, soon; wait: before it returns. Raises the error of a failed commit."""
        self._wanted.update(offsets)
        while True:
            if self._running is not None and (wait or self._running.done()):
                self._note(self._running.result())  # a failed one stays, and is raised again
                self._running = None
            due: _Commits = [
                (path, self._kept[path], offset)
                for path, offset in self._wanted.items()
                if path in self._kept and self._done.get(path) != offset
            ]
            if self._running is None and due:
                self._running = self._thread.submit(_commit, due)
            if not wait or self._running is None:
                return

    def close(self) -> None:
        """Commit pending offsets, and release the locks."""
        with suppress(SejError, OSError):
            self.keep({}, wait=True)
        self._thread.shutdown()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def _note(self, found: _Commits) -> None:
        for path, kept, offset in found:
            if self._kept.get(path) is not kept:
                continue  # it was registered again in the meantime
            if offset is None:
                self._forget(path)
            else:
                self._done[path] = offset

    def _forget(self, path: str) -> None:
        """Unregister from a journal; if it was re-created, it is registered again."""
        self._kept.pop(path).close()
        self._wanted.pop(path, None)
        self._done.pop(path, None)


def _commit(due: _Commits) -> _Commits:
    found: _Commits = []
    for path, kept, offset in due:
        after = offset
        try:
            kept.commit(offset or 0)
        except (ClosedError, FileNotFoundError, JournalNotFoundError, LockLostError) as error:
            _log.warning("%s: the journal was removed, with the offset to commit there: %s", path, error)
            after = None
        except OffsetBeyondEndError as error:  # truncated or re-created: the stream itself decides what to do
            _log.warning("%s", error)
        found.append((path, kept, after))
    return found
