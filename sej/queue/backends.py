"""Open a work queue: the list of backends, and the function that opens one.

A backend is a package's storage for a queue: a SEJ directory (here), a ``.tq`` file, a Kestrel journal. It is a
function ``(path, name, **options) -> WorkQueue``, registered in the entry-point group ``sej.backends`` under the name
that ``open_queue(..., backend=)`` takes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

from sej.checks import FLAG, PATH, TEXT, optional, require
from sej.queue.interface.queue import WorkQueue
from sej.queue.interface.values import serializer as serializer_of
from sej.system.disk import OS

_TEXT: Final = ".tq"
BACKENDS: Final = {
    "journal": "sej.queue.journal_queue:open_backend",
    "kestrel": "kestrel.backend:open_kestrel",
    "libkestrel": "kestrel.backend:open_libkestrel",
    "textqueue": "textqueue.backend:open_backend",
}
"""The backends of this distribution, as in its entry points.

Listed here because reading the metadata of all installed packages takes longer than opening a queue.
"""


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
        path: a SEJ directory (created if missing), a ``.tq`` file, or the path of another backend.
        name: the queue's name: several queues over one journal each get every message.
        backend: None: a ``.tq`` file, or a directory of them that is not a journal, is ``"textqueue"``. Everything else
            is ``"journal"``.
        serializer: ``"json"``, ``"msgspec"``, ``"pickle"``, or None: values are bytes.
        create: whether to create a missing queue. None: only if the journal has no queue yet, because every message is
            delivered again to a second queue; True: create it; False: create nothing.
        options: the backend's own: ``lease_s``, ``max_attempts`` and others; see
            :class:`sej.queue.journal_queue.JournalQueue` for the journal's.

    Raises:
        TypeError: an argument has the wrong type, or the backend has no such option.
        ValueError: an argument is out of its range, or there is no such backend or serializer.
        ImportError: the serializer's package is not installed.
        QueueNotFoundError: there is no queue of this name, and ``create`` does not allow creating it.
        SejError: as the backend.
    """
    require(path=(path, PATH), name=(name, TEXT), backend=(backend, optional(TEXT)), create=(create, optional(FLAG)))
    if create is not None:
        options["create"] = create  # not passed to a backend that may not have the option
    kind = backend or ("textqueue" if _is_text(os.fspath(path)) else "journal")
    found = serializer_of(serializer)
    queue = _factory(kind)(os.fspath(path), name, **options)
    queue.serializer = found
    return queue


def _is_text(path: str) -> bool:
    """Whether it is a ``.tq`` file, or a directory of them."""
    if path.endswith(_TEXT):
        return True
    status = OS.status(path)
    if status is None or not status.is_dir:
        return False
    names = OS.list(path)
    return "jnl" not in names and any(name.endswith(_TEXT) and not name.startswith(".") for name in names)


def _factory(kind: str) -> Callable[..., WorkQueue]:
    target = BACKENDS.get(kind)
    if target is None:
        from importlib.metadata import entry_points

        registered = {point.name: point.value for point in entry_points(group="sej.backends")}
        target = registered.get(kind)
        if target is None:
            known = ", ".join(sorted({*BACKENDS, *registered}))
            raise ValueError(f"backend must be one of {known}, or one of an installed package, got {kind!r}")
    module, _, function = target.partition(":")
    factory: Callable[..., WorkQueue] = getattr(importlib.import_module(module), function)
    return factory
