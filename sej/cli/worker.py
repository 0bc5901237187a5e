"""``sej worker``: run a Python function for each item of a queue, in threads and processes.

With one process, and without ``--time-limit`` and ``--reload``, the function runs in this process. Otherwise this
process only supervises: it starts the workers, starts a new one for each that fails (after a pause if that happens
again and again), and asks all of them to end on SIGTERM and SIGINT. A worker whose item reaches the time limit ends
itself, because no thread can be stopped from outside. Workers also end if this process is killed: each of them reads
from a pipe that then ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final

import click

from sej.checks import HANDLER, POSITIVE_SECONDS
from sej.cli.options import DURATION, MAX_ATTEMPTS
from sej.cli.places import Place, placed_command
from sej.queue.work import work

__all__ = ["worker"]

_CHILD: Final = "SEJ_WORKER_CHILD"
"""Set for a worker process: the descriptor of the pipe that ends with the supervisor."""
_LOOK_S: Final = 0.5
_TOO_LATE: Final = 75
"""The exit code of a worker whose item reached its time limit."""
_EARLY_S: Final = 5.0
"""A worker that fails sooner than this, twice in a row, is started again after a pause."""
_PAUSE_S: Final = 30.0
"""The longest pause."""
_log: Final = logging.getLogger("sej.worker")  # not click.echo: the supervisor continues without standard error


@click.command
@placed_command
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads in each process.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--lease", type=DURATION, default="60s", show_default=True, help="How long an item stays leased; renewed meanwhile."
)
@MAX_ATTEMPTS
@click.option("--time-limit", type=DURATION, help="Retry an item, and start a new process, after this time, as in 5m.")
@click.option("--until-empty", is_flag=True, help="End as soon as no item is ready.")
@click.option("--reload", is_flag=True, help="For development: restart when a .py file below this directory changes.")
def worker(
    place: Place,
    target: str,
    threads: int,
    processes: int,
    lease: float,
    max_attempts: int,
    time_limit: float | None,
    until_empty: bool,
    reload: bool,
) -> None:
    """Call a Python function for each item: an item is done if the function returns, and retried if it raises.

    MODULE:FUNCTION is looked for in this directory too. The function gets the item: its value is item.value. Each
    failure is one line on standard error. SIGTERM ends the command after the items that are being handled.

    Example: sej worker mails tasks:send --threads 4
    """
    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    if time_limit is not None:
        POSITIVE_SECONDS("--time-limit", time_limit)  # here: a worker that refuses it would be started again and again
    supervised = processes > 1 or reload or time_limit is not None
    if supervised and _CHILD not in os.environ:
        _function(target)  # a wrong name ends this command, not each of its workers
        with place.open_existing(lease_s=lease, max_attempts=max_attempts):
            pass  # and so does a queue that cannot be opened
        raise SystemExit(_Supervisor(processes, reload).run())
    function = _function(target)
    if (pipe := os.environ.pop(_CHILD, None)) is not None:  # not for the commands that the function starts
        threading.Thread(target=_end_with, args=(int(pipe),), daemon=True).start()
    with place.open_existing(lease_s=lease, max_attempts=max_attempts) as opened:
        work(
            opened,
            function,
            threads,
            until_empty=until_empty,
            time_limit_s=time_limit,
            on_time_limit=lambda _: os._exit(_TOO_LATE),
        )


def _end_with(pipe: int) -> None:
    """Ask this process to end as soon as its supervisor has ended."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _function(target: str) -> Callable[[Any], Any]:
    """Return the function that ``module:function`` names."""
    module, colon, name = target.partition(":")
    if not colon or not module or module.startswith(".") or not name:
        raise click.UsageError(f"the function must be MODULE:FUNCTION, as in tasks:send, got {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise click.UsageError(f"module {module!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise click.UsageError(f"module {module!r} has no {name!r}: {error}") from error
    try:
        HANDLER(target, found)
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    function: Callable[[Any], Any] = found
    return function


class _Child:
    """A place for a worker process: the one that runs, or the time when the next one starts."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.process: subprocess.Popen[bytes] | None = None
        self.code = 0
        self.start_at = 0.0
        self._started_at = 0.0
        self._early = 0

    def start(self) -> None:
        """Start a process."""
        words = [sys.executable, "-m", "sej", *sys.argv[1:]]
        environment = {**os.environ, _CHILD: str(self._pipe)}
        self.process = subprocess.Popen(words, env=environment, pass_fds=[self._pipe])
        self._started_at = time.monotonic()

    def ended(self, code: int) -> float:
        """Keep the exit code; return the seconds until the next start, which grow with each early end."""
        now = time.monotonic()
        self.process = None
        self.code = code
        self._early = self._early + 1 if now - self._started_at < _EARLY_S and code != _TOO_LATE else 0
        pause_s = 0.0 if self._early < 2 else min(2.0 ** (self._early - 2), _PAUSE_S)
        self.start_at = now + pause_s
        return pause_s

    def restart(self) -> None:
        """Let the process finish its items, and start another one without a pause."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        self._early = 0
        self.start()

    def end(self) -> int:
        """Let the process finish its items; return its exit code, or that of the last one."""
        return self.code if self.process is None else self.process.wait()


class _Supervisor:
    """Keeps a number of worker processes running."""

    def __init__(self, count: int, reload: bool) -> None:
        self._reload = reload
        pipe, _ = os.pipe()  # open as long as this process runs
        self._children = [_Child(pipe) for _ in range(count)]
        self._stopped = threading.Event()
        self._stamps = _stamps() if reload else {}

    def run(self) -> int:
        """Run until a signal, or until all workers have ended well; return the exit code."""
        with self._signals():
            for child in self._children:
                child.start()
            while self._children and not self._stopped.wait(_LOOK_S):
                for child in list(self._children):
                    self._look(child)
                if self._reload and (stamps := _stamps()) != self._stamps:
                    self._stamps = stamps
                    for child in self._children:
                        _log.warning("a file has changed; starting a new worker process")
                        child.restart()
            for child in self._children:
                if child.process is not None:
                    child.process.terminate()
            codes = [child.end() for child in self._children]
        # One that the signal ended had not begun, and held nothing.
        return next((code for code in codes if code not in (0, -signal.SIGTERM)), 0)

    def _look(self, child: _Child) -> None:
        """Start another process if this one has failed and its pause is over."""
        code = None if child.process is None else child.process.poll()
        if code == 0:
            self._children.remove(child)
        elif code is not None:
            pause_s = child.ended(code)
            after = f" in {pause_s:.0f} s" if pause_s else ""
            _log.warning("a worker process ended with exit code %d; starting another one%s", code, after)
        if child.process is None and time.monotonic() >= child.start_at:
            child.start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: self._stopped.set()) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _stamps() -> dict[str, int]:
    """Return the Python files below this directory, with the times of their last changes."""
    found = {}
    for folder, folders, names in os.walk("."):  # leaves out a folder that is removed meanwhile
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not name.startswith("."):
                path = os.path.join(folder, name)
                with suppress(OSError):
                    found[path] = os.stat(path).st_mtime_ns
    return found
