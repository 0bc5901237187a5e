"""A stream's progress in ``ofs/``, which tells retention what the stream still needs.

Spark calls ``commit`` for a batch only when the next one is built, and never for the last batch of a run. But each time
it asks how far a stream may read, it names the end of the last finished batch. That is committed here, immediately, in
a thread of its own, because a commit syncs the journal and Spark's batch must not wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress

from sej.errors import ClosedError, JournalNotFoundError, LockLostError, OffsetBeyondEndError, SejError
from sej.reading.offset import Offset

_log = logging.getLogger("pipeline")


class Progress:
    """Commits a reader's offsets in many journals; holds the reader's lock in each."""

    def __init__(self, reader: str) -> None:
        """Set the reader; no lock is taken yet."""
        self._reader = reader
        self._kept: dict[str, Offset] = {}
        self._ids: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._changed = threading.Condition()
        self._failure: SejError | OSError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

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
        if self._ids.get(path, identity) != identity:
            self._forget(path, self._kept.get(path))
        if path not in self._kept:
            kept = Offset(path, self._reader, default=offset, beyond_end="rewind")
            self._kept[path], self._ids[path] = kept, identity
            if kept.value < offset:
                self.keep({path: offset})
            elif kept.value > offset:
                kept.reset(offset)  # a new query starts before the old one's end and still needs those messages

    def keep(self, offsets: Mapping[str, int], *, wait: bool = False) -> None:
        """Commit offsets by path, soon; wait: before it returns. Raises the error of a failed commit."""
        if self._failure is not None:
            raise self._failure
        with self._changed:
            self._wanted.update(offsets)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"progress of {self._reader}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if wait:
                self._changed.wait_for(lambda: self._failure is not None or not self._due())
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Commit pending offsets, and release the locks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._due()))
                due = self._due()
                if not due and self._closed:
                    return
            for path, offset in due.items():
                kept = self._kept.get(path)
                try:
                    if kept is not None:
                        kept.commit(offset)
                except (ClosedError, FileNotFoundError, JournalNotFoundError, LockLostError) as error:
                    _log.warning("%s: the journal was removed, with the offset to commit there: %s", path, error)
                    self._forget(path, kept)
                    continue
                except OffsetBeyondEndError as error:  # truncated or re-created: the stream itself decides what to do
                    _log.warning("%s", error)
                except (SejError, OSError) as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return
                with self._changed:
                    if self._kept.get(path) is kept:  # and was not registered again in the meantime
                        self._done[path] = offset
                    self._changed.notify_all()

    def _forget(self, path: str, kept: Offset | None) -> None:
        """Unregister from a journal; if it was re-created, it is registered again."""
        with self._changed:
            if kept is not None and self._kept.get(path) is kept:
                del self._kept[path]
                kept.close()
            self._wanted.pop(path, None)
            self._done.pop(path, None)
            self._changed.notify_all()

    def _due(self) -> dict[str, int]:
        return {path: offset for path, offset in self._wanted.items() if self._done.get(path) != offset}
