"""A stream's progress in ``ofs/``, so that retention knows what is still needed.

Spark calls ``commit`` for a batch only when the next one is built, and for the last batch of a run never. But whenever
it asks how far a stream may go, it names the end of the last finished batch: that is kept here, at once, in a thread of
its own, because keeping an offset syncs the journal and Spark's batch must not wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from sej.errors import ClosedError, JournalNotFoundError, LockLostError, OffsetBeyondEndError, SejError
from sej.reading.offset import Offset

__all__ = ["Progress"]

_log = logging.getLogger("pipeline")


class Progress:
    """Keeps a reader's offsets in many journals; holds the reader's lock in each."""

    def __init__(self, reader: str) -> None:
        """Name the reader; no lock is taken yet."""
        self._reader = reader
        self._kept: dict[str, Offset] = {}
        self._ids: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._changed = threading.Condition()
        self._failure: SejError | OSError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, path: str, offset: int, identity: str = "") -> None:
        """Become the reader of a journal that the stream starts at offset: from now on retention counts it.

        Where a journal of another identity stands at the path by now, its reader begins anew.

        Raises:
            LockedError: another stream or process is this reader.
        """
        if self._ids.get(path, identity) != identity:
            self._forget(path, self._kept.get(path))
        if path not in self._kept:
            kept = Offset(path, self._reader, default=offset, beyond_end="rewind")
            self._kept[path], self._ids[path] = kept, identity
            if kept.value < offset:
                self.keep({path: offset})
            elif kept.value > offset:
                kept.reset(offset)  # a new query that starts before the old one's end: it still needs those

    def keep(self, offsets: Mapping[str, int], *, wait: bool = False) -> None:
        """Keep offsets by path, soon; wait: before it returns. Raises what went wrong."""
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
        """Keep what is due, and let go of the locks."""
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
                    _log.warning("%s: the journal is gone, and what was to be kept there: %s", path, error)
                    self._forget(path, kept)
                    continue
                except OffsetBeyondEndError as error:  # truncated or made anew: the stream itself decides about it
                    _log.warning("%s", error)
                except (SejError, OSError) as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return
                with self._changed:
                    if self._kept.get(path) is kept:  # and was not begun anew meanwhile
                        self._done[path] = offset
                    self._changed.notify_all()

    def _forget(self, path: str, kept: Offset | None) -> None:
        """Be the reader of a journal no more; it may have been made anew, and then it is begun with again."""
        with self._changed:
            if kept is not None and self._kept.get(path) is kept:
                del self._kept[path]
                kept.close()
            self._wanted.pop(path, None)
            self._done.pop(path, None)
            self._changed.notify_all()

    def _due(self) -> dict[str, int]:
        return {path: offset for path, offset in self._wanted.items() if self._done.get(path) != offset}
