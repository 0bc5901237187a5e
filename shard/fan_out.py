"""Operations of a sharded writer on many shards: several of them concurrently, and syncing in the background.

A thread for each of a thousand shards is too many. So under ``"interval"`` the shards are opened as under ``"os"``, and
one thread of the writer syncs them all.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from sej.checks import refuse_unknown
from sej.durations import seconds
from sej.errors import ClosedError, SejError
from sej.writing.writer import Writer as JournalWriter
from sej.writing.writer import check_options as check_writer_options

THREADS: Final = 8
_KNOWN: Final = {
    name: option
    for name, option in inspect.signature(JournalWriter).parameters.items()
    if option.kind is inspect.Parameter.KEYWORD_ONLY
}


def check_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Return the options for each shard's writer, and the seconds between two background syncs of all shards.

    Raises:
        TypeError: a writer has no such option.
        ValueError: durability or sync_interval_s is out of its range.
    """
    import concurrent.futures.thread  # noqa: F401  not when this module is loaded, as `sej --help` does, nor at the end

    refuse_unknown("a writer", given, _KNOWN)
    check_writer_options(**given)
    options = dict(given)
    if options.get("durability") != "interval":
        return options, None
    interval_s = float(seconds("sync_interval_s", options.pop("sync_interval_s", _KNOWN["sync_interval_s"].default)))
    return {**options, "durability": "os"}, interval_s


class BackgroundSync:
    """One thread that syncs all shards of a writer; a failed sync is raised when its shard is used."""

    def __init__(self, sync: Callable[[], dict[int, BaseException]], interval_s: float) -> None:
        """Begin.

        Args:
            sync: syncs all shards; returns which could not be synced, and why.
            interval_s: from the beginning of one round to that of the next, in seconds.
        """
        self._sync = sync
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._failed: dict[int, BaseException] = {}
        self._thread = threading.Thread(target=self._run, name="sej-shard-sync", daemon=True)
        self._thread.start()

    def stop(self) -> dict[int, BaseException]:
        """End, after the round that is under way; which shards could not be synced, and why."""
        self._stopped.set()
        self._thread.join()
        return self._failed

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.wait(max(began + self._interval_s - time.monotonic(), 0.0)):
            began = time.monotonic()
            with suppress(ClosedError):  # the writer is about to stop this thread
                self._failed = {**self._sync(), **self._failed}


def each(indexes: Iterable[int], do: Callable[[int], object], *, threads: int = THREADS) -> dict[int, BaseException]:
    """Do something to many shards, several at a time; return what went wrong, by shard."""
    errors: dict[int, BaseException] = {}
    left = dict.fromkeys(indexes)

    def one(index: int) -> None:
        left.pop(index)
        try:
            do(index)
        except Exception as error:
            errors[index] = error

    if threads > 1 and len(left) > 1:
        # At the interpreter's end, or at the user's limit, no thread can be had.
        from concurrent.futures import ThreadPoolExecutor  # here, because `sej --help` loads this module

        with suppress(RuntimeError), ThreadPoolExecutor(min(threads, len(left)), "sej-shard") as pool:
            list(pool.map(one, list(left)))
    for index in list(left):
        one(index)
    return errors


_OTHERS: Final = 64
"""Files for other uses in this process, if it has not more of them already."""
_ANY: Final = 1 << 20


def spare_files() -> int:
    """Return how many more files this process can open, at least 1; some are left for other uses."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = 0
    with contextlib.suppress(OSError):  # without /proc
        held = len(os.listdir("/proc/self/fd"))
    return _ANY if soft == resource.RLIM_INFINITY else max(soft - max(_OTHERS, held + _OTHERS // 2), 1)


def too_many(error: OSError, what: str) -> SejError | None:
    """Return a clear error if an error means that the process has too many files open, else None."""
    if error.errno != errno.EMFILE:
        return None
    return SejError(f"this process cannot open more files: {what}; raise its limit with ulimit -n", path=error.filename)
