"""Copies of appended messages, ``.jobs.tq.copies``: what a save of an old buffer may remove.

The ledger has only a digest of each message. With ``on_lost="restore"``, each append also writes the message into this
file, before it is written into the queue. So after a save that removed it, any program can append it again.

The file is a queue file itself, without the status of the messages: the ledger has that. A copy is found by its digest,
so a torn or damaged one is never found. The copies of messages that are not waiting any more are dropped when the file
is four times as large as after the last drop. The caller holds the lock of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from typing import Final

from sej.system.disk import Disk, read_small
from textqueue.format.parser import chunks, digest
from textqueue.hot import essence
from textqueue.ledger.sidecar import Sidecars, open_sidecar, replace_sidecar

_ENDING: Final = ".copies"
_LIMIT_BYTES: Final = 1 << 30
_SMALL_BYTES: Final = 1 << 16
_GROWTH: Final = 4


class Copies:
    """The copies for one queue file. Nothing is written before the first append."""

    def __init__(self, sidecars: Sidecars, *, disk: Disk, queue: str) -> None:
        """Take the names of the files next to the queue, and the queue file, whose owner and mode a new file gets."""
        self._sidecars = sidecars
        self._disk = disk
        self._queue = queue
        self._dropped_bytes = 0  # the size after the last drop

    @property
    def are_many(self) -> bool:
        """Whether it is time to drop those that are not needed."""
        there = self._disk.status(self._path)
        return there is not None and there.size > max(_SMALL_BYTES, _GROWTH * self._dropped_bytes)

    def append(self, raws: Sequence[bytes]) -> None:
        """Add copies."""
        file = open_sidecar(self._disk, self._path, self._queue)
        try:
            size = file.size()
            torn = size and file.read(1, size - 1) != b"\n"
            file.write(b"\n" * bool(torn) + b"".join(raws))
        finally:
            file.close()

    def find(self, wanted: Set[bytes]) -> dict[bytes, bytes]:
        """Return the copies of messages, by digest, of those that have one."""
        return {name: raw for raw in self._read() if (name := digest(essence(raw))) in wanted} if wanted else {}

    def drop(self, waiting: Collection[bytes]) -> None:
        """Keep the copies of these messages only, given by their digests."""
        self._keep(lambda name: name in waiting)

    def forget(self, names: Collection[bytes]) -> None:
        """Drop the copies of these messages, given by their digests."""
        self._keep(lambda name: name not in names)

    def _keep(self, wanted: Callable[[bytes], bool]) -> None:
        kept = {name: raw for raw in self._read() if wanted(name := digest(essence(raw)))}
        data = b"".join(kept.values())
        replace_sidecar(self._disk, self._path, data, self._queue)
        self._dropped_bytes = len(data)

    @property
    def _path(self) -> str:
        return self._sidecars.path(_ENDING)

    def _read(self) -> list[bytes]:
        try:
            return chunks(read_small(self._disk, self._path, _LIMIT_BYTES))
        except FileNotFoundError:
            return []
