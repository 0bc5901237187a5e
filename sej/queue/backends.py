"""The door to the work queues: which backends there are, and opening one.

A backend is a package's way to keep a queue: a SEJ directory (here), a ``.tq`` file, a Kestrel journal. It is a
function ``(path, name, **options) -> WorkQueue``, registered in the entry-point group ``sej.backends`` under the name
that ``open_queue(..., backend=)`` takes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

from sej.checks import FLAG, PATH, TEXT, optional, require
from sej.queue.interface import WorkQueue
from sej.queue.serializers import serializer as serializer_of

__all__ = ["BACKENDS", "open_queue"]

BACKENDS: Final = {
    "journal": "sej.queue.journal_queue:open_backend",
    "kestrel": "kestrel.backend:open_kestrel",
    "libkestrel": "kestrel.backend:open_libkestrel",
    "textqueue": "textqueue.backend:open_backend",
}
"""The backends of this distribution, as their entry points name them: known without asking the metadata of everything
that is installed, which costs more than opening a queue."""


def open_queue(
    path: str | os.PathLike[str],
    name: str = "queue",
    *,
    backend: str | None = None,
    serializer: str | None = None,
    create: bool | None = None,
    **options: Any,
) -> WorkQueue:
    """Open a work queue.

    Args:
        path: a SEJ directory (made if missing), a ``.tq`` file, or what the backend named takes.
        name: the queue's: several queues over one journal each get every message.
        backend: None: ``.tq`` files are ``"textqueue"``, everything else is ``"journal"``.
        serializer: ``"json"``, ``"msgspec"``, ``"pickle"``, or None: values are bytes.
        create: whether to make a missing queue. None: only if the journal has no queue yet, because a second queue is
            handed every message again; True: make it; False: make nothing.
        options: the backend's own: ``lease_s``, ``max_attempts`` and others; see
            :class:`sej.queue.journal_queue.JournalQueue` for the journal's.

    Raises:
        TypeError: an argument has another type, or the backend has no such option.
        ValueError: an argument is out of its range, or there is no such backend or serializer.
        ImportError: the serializer's package is not installed.
        QueueNotFoundError: there is no queue of this name, and create does not allow to make it.
        SejError: as the backend.
    """
    require(path=(path, PATH), name=(name, TEXT), backend=(backend, optional(TEXT)), create=(create, optional(FLAG)))
    if create is not None:
        options["create"] = create  # a backend that has no such option need not know of it
    kind = backend or ("textqueue" if os.fspath(path).endswith(".tq") else "journal")
    found = serializer_of(serializer)
    queue = _factory(kind)(os.fspath(path), name, **options)
    queue.serializer = found
    return queue


def _factory(kind: str) -> Callable[..., WorkQueue]:
    target = BACKENDS.get(kind)
    if target is None:
        from importlib.metadata import entry_points

        registered = {point.name: point.value for point in entry_points(group="sej.backends")}
        target = registered.get(kind)
        if target is None:
            known = ", ".join(sorted({*BACKENDS, *registered}))
            raise ValueError(f"backend must be one of {known}, or what an installed package registers, got {kind!r}")
    module, _, function = target.partition(":")
    factory: Callable[..., WorkQueue] = getattr(importlib.import_module(module), function)
    return factory
