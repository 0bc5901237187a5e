"""Standard output as a pipe: noticing that its reader has gone while there is nothing to write."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["reader_left", "until_reader_leaves"]

_left: Final = threading.Event()


@contextmanager
def until_reader_leaves(ask: Callable[[], object] | None = None) -> Iterator[None]:
    """A wait inside ends when nobody reads standard output any more, as the next write would.

    Without it ``sej tail -f DIR | head -1`` would wait for one more message after ``head`` is gone. It ends as by an
    interrupt, of which :func:`reader_left` says whose it was. Where standard output is no pipe, nothing is done; it is
    for the main thread alone.

    Args:
        ask: called instead of the interrupt, in another thread: for a wait that looks for a reason to stop.
    """
    try:
        fd = sys.stdout.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):
        yield
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not hasattr(select, "poll"):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, 0)
        poll.poll()  # nothing was asked for, so only an error or a hang-up ends it
        if not over.is_set():
            _left.set()
            if ask is None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                ask()

    ignored = ask is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a shell's background job
    if ignored:
        signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(*_: object) -> None:
    """Handle SIGINT where it is ignored but for a reader that left."""
    if _left.is_set():
        raise KeyboardInterrupt


def reader_left() -> bool:
    """Whether an interrupt came because nobody reads standard output any more."""
    return _left.is_set()
