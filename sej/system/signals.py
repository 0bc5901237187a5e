"""Stopping on a signal: what its handler may do."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from typing import Final

_SETTING_S: Final = 0.05
"""Far longer than a thread takes to begin."""
_LOOK_S: Final = 0.5


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or an interrupt sets from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: set_from_handler(stop))
    return stop


def wait_for_signal(stop: threading.Event) -> None:
    """Wait in the main thread, without a limit, for an event that a signal sets.

    A signal that is sent while the process is stopped (SIGSTOP, Ctrl-Z) is given to any of its threads when it
    continues. Only the main thread runs the handler, and nothing wakes it for that: so it wakes by itself.
    """
    while not stop.wait(_LOOK_S):
        pass


def set_from_handler(event: threading.Event) -> None:
    """Set an event from the handler of a signal.

    A handler runs between any two steps of the main thread. If that is about to wait for the same event, it holds the
    event's lock, and ``event.set()`` in the handler would wait for it forever. So another thread sets the event. In all
    other cases the event is set when this returns.
    """
    _thread.start_new_thread(event.set, ())  # threading.Thread takes locks too
    deadline = time.monotonic() + _SETTING_S
    while not event.is_set() and time.monotonic() < deadline:
        time.sleep(0)  # lets that thread run
