"""How much a hub accepts: bytes for each client, and bytes that must stay free on its disk.

Both are checked before a batch is written, so that a refused batch leaves nothing and the disk never fills up. A
client's bytes, in its segments and in the rows of its jobs, are counted once and then updated by addition. Before a
refusal they are counted again, because retention may have removed some, once the bytes that were admitted are written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from hub.errors import DiskLowError, QuotaError
from hub.naming import STAGING, Source, find_sources, source_path
from sej.journal.view import Journal
from sej.system.disk import Disk

_SETTLE_S: Final = 1.0


class _Count:
    """The bytes of a client.

    Attributes:
        used: the bytes that were admitted; None: they were not counted yet.
        writing: the number of writes in progress of bytes that were admitted.
        changed: its lock is held by the thread that reads or changes the count.
    """

    def __init__(self) -> None:
        self.used: int | None = None
        self.changed = threading.Condition()
        self.writing = 0

    def is_settled(self) -> bool:
        """Wait until all admitted bytes are in files, at most _SETTLE_S; return whether they are."""
        return self.changed.wait_for(lambda: not self.writing, _SETTLE_S)


class Limits:
    """Decides whether a batch may be written."""

    def __init__(
        self, root: str, max_client_bytes: int | Mapping[str, int] | None, min_free_bytes: int, disk: Disk
    ) -> None:
        """Set the limits.

        Args:
            root: the hub's root.
            max_client_bytes: one number for all clients, or one by client id (``"*"``: the others); None: no quota.
            min_free_bytes: bytes that must stay free on the disk.
            disk: the disk.
        """
        self._root = root
        self._quota = max_client_bytes
        self._min_free_bytes = min_free_bytes
        self._disk = disk
        self._counts: dict[str, _Count] = {}

    @contextmanager
    def admitting(self, client: str, size: int) -> Iterator[None]:
        """Admit ``size`` bytes of a client, and count them; the caller writes them before it leaves the context.

        Raises:
            DiskLowError: too little disk space would stay free.
            QuotaError: the client would exceed its quota.
        """
        if self._min_free_bytes:
            free = self._disk.free_bytes(self._root)
            if free - size < self._min_free_bytes:
                raise DiskLowError(
                    f"the hub's disk has {free} bytes free, {size} were sent, and {self._min_free_bytes} must stay"
                    " free; make room on the hub (`sej hub clean`) or lower its --min-free, and try again later",
                    path=self._root,
                )
        quota = self.quota(client)
        if quota is None:
            yield
            return
        count = self._counts.setdefault(client, _Count())
        with count.changed:
            # Bytes that are still being written are not in the files, so a count of the files would leave them out.
            if count.used is None or (count.used + size > quota and count.is_settled()):
                count.used = self.count(client)
            if count.used + size > quota:
                raise QuotaError(
                    f"client {client!r} would exceed its quota: {count.used} of {quota} bytes used, {size} more sent;"
                    " raise the quota, or let readers catch up so that retention can remove segments",
                    path=self._root,
                )
            count.used += size
            count.writing += 1
        try:
            yield
        finally:
            with count.changed:
                count.writing -= 1
                count.changed.notify_all()

    def quota(self, client: str) -> int | None:
        """Return how many bytes a client may have; None: no quota."""
        if isinstance(self._quota, Mapping):
            return self._quota.get(client, self._quota.get("*"))
        return self._quota

    def count(self, client: str) -> int:
        """Return how many bytes a client's segments and the rows that its jobs have staged hold."""
        return sum(self._staged(client)) + sum(
            segment.size
            for source in find_sources(self._root, client=client, disk=self._disk)
            for segment in Journal(source_path(self._root, source), disk=self._disk).segments
        )

    def _staged(self, client: str) -> Iterator[int]:
        """Yield the size of each file that a task has staged; a job may be removed meanwhile."""
        staging, tasks = os.path.join(self._root, STAGING), f"task-{Source(client, '')}"
        if self._disk.status(staging) is None:
            return
        for task in self._disk.list(staging):
            if task.startswith(tasks):
                with suppress(FileNotFoundError):
                    for name in self._disk.list(os.path.join(staging, task)):
                        if not name.endswith(".rows"):
                            continue
                        status = self._disk.status(os.path.join(staging, task, name))
                        yield 0 if status is None else status.size
