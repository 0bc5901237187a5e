"""The terminal and the pipes of a command: keys, a bar of progress, and a reader that closes our output."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.live import Live

_KEYS: Final = 64
_INTERVAL_MIN_S: Final = 0.05
CHROME_LINES: Final = 6
"""Lines that a table which fills the screen takes in addition to its rows."""
_left: Final = threading.Event()
_GRACE_S: Final = 0.2
"""A write that is under way ends the command itself: an interrupt would only hit its clean-up."""


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Read keys as they are pressed, without echo, until the block ends."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def screen() -> Iterator[Live]:
    """Fill the terminal until the block ends; rich honours NO_COLOR."""
    from rich.live import Live

    with quiet_keys(), Live(screen=True, auto_refresh=False) as live:
        yield live


def wait(seconds: float) -> bool:
    """Wait for the next sample, at least 0.05 seconds; return False if q was pressed in a terminal."""
    seconds = max(seconds, _INTERVAL_MIN_S)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        time.sleep(seconds)
        return True
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), _KEYS)
            if not pressed or b"q" in pressed:
                return False
    return True


@contextmanager
def progress_bar(what: str, *, size: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar if standard error is a terminal: the block gets a function of (done, total), None if unknown.

    Args:
        what: the label of the bar.
        size: True if it counts bytes.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress as bars
    from rich.console import Console

    many = bars.DownloadColumn(binary_units=True) if size else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), many, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield show


@contextmanager
def until_reader_leaves(ask: Callable[[], object] | None = None) -> Iterator[None]:
    """End a wait when the reader of standard output has closed the pipe, as the next write would.

    Without it ``sej tail -f DIR | head -1`` would wait for one more message after ``head`` has ended. The wait ends by
    an interrupt; :func:`reader_left` says whether the pipe caused it. If standard output is not a pipe, nothing is
    done. Only the main thread may use it.

    Args:
        ask: called in another thread instead of the interrupt, for a wait that checks for a reason to stop.
    """
    try:
        fd = sys.stdout.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):
        yield
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, 0)
        poll.poll()  # no event is requested, so only an error or a hang-up ends it
        if not over.wait(_GRACE_S):
            _left.set()
            if ask is None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                ask()

    ignored = ask is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # started in the background by a shell
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
    """Handle SIGINT in a process that ignores it, except for the closed pipe."""
    if _left.is_set():
        raise KeyboardInterrupt


def reader_left() -> bool:
    """Return whether an interrupt came because the reader of standard output has closed the pipe."""
    return _left.is_set()
