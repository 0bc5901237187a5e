"""Notifications of changes by the library watchdog, on systems without inotify: FSEvents, kqueue.

There :mod:`sej.system.watch` polls at growing intervals; a notification wakes it. One observer serves the process and
starts with the first directory. Notifications may be late, repeated or missing; polling finds every change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import ObservedWatch

__all__ = ["Observers"]


class Observers:
    """The directories of this process that are watched, with the functions to call."""

    def __init__(self) -> None:
        """Create it; nothing is started yet."""
        self._lock = threading.Lock()
        self._observer = Observer()
        self._observer.daemon = True
        self._watches: dict[str, tuple[ObservedWatch, _Teller]] = {}

    def add(self, directory: str, tell: Callable[[], object]) -> Callable[[], None]:
        """Call ``tell`` at changes in a directory, not below its entries; return a function that ends this."""
        with self._lock:
            if directory not in self._watches:
                if not self._observer.is_alive():
                    self._observer.start()
                teller = _Teller()
                try:
                    self._watches[directory] = self._observer.schedule(teller, directory), teller
                except OSError:
                    return lambda: None  # it is missing, or there are too many: polling must suffice
            self._watches[directory][1].told.append(tell)
        return lambda: self._remove(directory, tell)

    def _remove(self, directory: str, tell: Callable[[], object]) -> None:
        with self._lock:
            watch, teller = self._watches[directory]
            teller.told.remove(tell)
            if not teller.told:
                del self._watches[directory]
                self._observer.unschedule(watch)


class _Teller(FileSystemEventHandler):
    """Passes changes on; opening, reading and closing are not changes."""

    def __init__(self) -> None:
        self.told: list[Callable[[], object]] = []

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in ("opened", "closed_no_write"):
            for tell in list(self.told):
                tell()
