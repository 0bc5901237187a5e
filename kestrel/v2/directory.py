"""Many Kestrel 2 queues of one directory: made when they are named, with the original's rules between them.

- ``cars+red`` is a fanout child of ``cars``: from its first mention on it gets what is put into ``cars``, and nothing
  that was there before. Children get an item before the parent does; a child that refuses does not stop the others.
- Expired items of a queue go to the queue that ``expire_to`` names.
- A queue that is empty for longer than its ``max_queue_age_s`` is deleted by :meth:`Queues.delete_stale`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from kestrel.errors import FullError, ShutError, TooLargeError
from kestrel.files import check_name
from kestrel.v2.listing import queue_names
from kestrel.v2.queue import Queue
from sej.checks import DISK, PATH, a, optional, options_of, refuse_unknown, require
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path

__all__ = ["Queues"]


class Queues:
    """The queues of a directory, by name.

    Example:
        >>> with Queues(directory, {"cars": {"expire_to": "late"}}) as queues:  # doctest: +SKIP
        ...     queues.open("cars+red")
        ...     queues.put("cars", b"item")
        ...     queues.open("cars+red").get()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        options: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        disk: Disk = OS,
        **defaults: Any,
    ) -> None:
        """Open the directory; queues are opened when they are named, and children of a queue with it.

        Args:
            directory: where the files are; made if missing.
            options: by queue, what differs from the defaults: options of ``Queue``, ``expire_to`` by name, and
                ``fanout_only`` (items go to the children alone). A child has its parent's, and its own on top.
            disk: the seam.
            defaults: options of every ``Queue``.
        """
        require(
            directory=(directory, PATH),
            options=(options, optional(a(Mapping))),
            disk=(disk, DISK),
        )
        known = [*options_of(Queue.__init__), "fanout_only"]
        for given in (defaults, *(options or {}).values()):
            refuse_unknown("a Kestrel queue", given, known)
        self.directory = directory = absolute_path(directory)
        self._options = {name: dict(one) for name, one in (options or {}).items()}
        self._defaults = defaults
        self._disk = disk
        self._guard = threading.RLock()
        self._open: dict[str, Queue] = {}
        self._closed = False
        disk.mkdir(directory)

    @property
    def names(self) -> list[str]:
        """The queues that are open or have files."""
        with self._guard:
            return sorted({*self._open, *queue_names(self.directory, self._disk)})

    def open(self, name: str) -> Queue:
        """The queue of that name, made if missing. Raises as :class:`Queue`, and ShutError once closed."""
        with self._guard:
            if self._closed:
                raise ShutError("the queues are closed; open them again", path=self.directory)
            return self._opened(check_name(name), ())

    def _opened(self, name: str, expiring: tuple[str, ...]) -> Queue:
        if name not in self._open:
            options = self._merged(name)
            options.pop("fanout_only", None)
            target = options.pop("expire_to", None)
            if target is not None:
                if target in (*expiring, name):
                    raise ValueError(
                        f"expire_to must not lead back to its own queue: {' > '.join((*expiring, name, target))}"
                    )
                options["expire_to"] = self._opened(target, (*expiring, name))
            self._open[name] = Queue(self.directory, name, disk=self._disk, **options)
        return self._open[name]

    def _merged(self, name: str) -> dict[str, Any]:
        parent = name.partition("+")[0]
        return {**self._defaults, **self._options.get(parent, {}), **self._options.get(name, {})}

    def children(self, name: str) -> list[str]:
        """The fanout children of a queue."""
        return [other for other in self.names if other.startswith(f"{name}+")]

    def put(self, name: str, data: bytes, *, expiry: int = 0) -> None:
        """Put an item into a queue: into its children first, then into itself. Raises as ``Queue.put``."""
        with self._guard:
            queue = self.open(name)
            for child in self.children(name):
                try:
                    self.open(child).put(data, expiry=expiry)
                except (FullError, TooLargeError):
                    continue
            if not self._merged(name).get("fanout_only"):
                queue.put(data, expiry=expiry)

    def delete(self, name: str) -> None:
        """Delete a queue with its files. A deleted child gets nothing more from its parent.

        If other queues expire into it, it is made again, empty.
        """
        with self._guard:
            self.open(name).delete()
            del self._open[name]
            heirs = [one for other, one in self._open.items() if self._merged(other).get("expire_to") == name]
            if heirs:  # what expires in these goes there from now on
                target = self.open(name)
                for heir in heirs:
                    heir.expire_into(target)

    def flush(self) -> int:
        """Flush all queues; returns how many items were removed."""
        return sum(self.open(name).flush() for name in self.names)

    def flush_expired(self) -> int:
        """Remove the expired items at the head of every queue; returns how many."""
        return sum(self.open(name).flush_expired() for name in self.names)

    def delete_stale(self) -> list[str]:
        """Delete the queues that are empty for longer than their ``max_queue_age_s``; returns their names."""
        with self._guard:
            stale = [name for name, queue in self._open.items() if queue.is_stale]
            for name in stale:
                self.delete(name)
            return stale

    def close(self) -> None:
        """Close all queues."""
        with self._guard:
            self._closed = True
            with contextlib.ExitStack() as closing:  # if one fails, the others are closed too
                while self._open:
                    closing.callback(self._open.popitem()[1].close)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
