"""One process that supervises others, which run the same command: the workers of ``sej worker``.

It starts them, starts a new one for each that fails (after a pause if that happens again and again), and asks all of
them to end on SIGTERM and SIGINT. They also end if this process is killed: each of them reads from a pipe that then
ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from sej.system.signals import set_from_handler

MAX_PROCESSES: Final = 1_000
"""The most processes of one command: more are a mistake, and could stop the machine."""
_VARIABLE: Final = "SEJ_SUPERVISED"
"""Set for a supervised process: the descriptor of a pipe that ends with the supervisor."""
_LOOK_S: Final = 0.5
_EARLY_S: Final = 5.0
"""A process that fails sooner than this, twice in a row, is started again after a pause."""
_PAUSE_S: Final = 30.0
"""The longest pause."""


def is_supervised() -> bool:
    """Return whether a supervisor has started this process, which has not called :func:`supervised` yet."""
    return _VARIABLE in os.environ


def supervised() -> None:
    """Send SIGTERM to this process as soon as its supervisor has ended, if a supervisor has started it."""
    pipe = os.environ.pop(_VARIABLE, None)  # not for the commands that this process starts
    if pipe is not None:
        threading.Thread(target=_end_with, args=(int(pipe),), daemon=True).start()


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class _Child:
    """A place for a process: the one that runs, or the time when the next one starts."""

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
        environment = {**os.environ, _VARIABLE: str(self._pipe)}
        self.process = subprocess.Popen(words, env=environment, pass_fds=[self._pipe])
        self._started_at = time.monotonic()

    def ended(self, code: int, *, expected: bool) -> float:
        """Keep the exit code; return the seconds until the next start, which grow with each early end."""
        now = time.monotonic()
        self.process = None
        self.code = code
        self._early = self._early + 1 if now - self._started_at < _EARLY_S and not expected else 0
        pause_s = 0.0 if self._early < 2 else min(2.0 ** min(self._early - 2, 60), _PAUSE_S)
        self.start_at = now + pause_s
        return pause_s

    def restart(self) -> None:
        """Let the process end, and start another one without a pause."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        self._early = 0
        self.start()

    def end(self) -> int:
        """Let the process end; return its exit code, or that of the last one."""
        return self.code if self.process is None else self.process.wait()


class Supervisor:
    """Keeps a number of workers running, which may end well."""

    def __init__(
        self,
        count: int,
        log: logging.Logger,
        what: str,
        *,
        expected_codes: Collection[int] = (),
        has_changed: Callable[[], bool] | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            count: how many processes.
            log: gets a line for each process that fails.
            what: what one of them is, such as ``"worker process"``.
            expected_codes: exit codes after which another process is started without a pause.
            has_changed: asked repeatedly; if it returns True, all processes are restarted.
            stopped: an event that ends the run like a signal.
        """
        self._log = log
        self._what = what
        self._expected_codes = expected_codes
        self._has_changed = has_changed
        pipe, self._end_pipe = os.pipe()  # its other end is open as long as this process runs
        self._children = [_Child(pipe) for _ in range(count)]
        self._stopped = stopped or threading.Event()

    def run(self) -> int:
        """Run until a signal, or until all processes have ended well; return the exit code."""
        with self._signals():
            for child in self._children:
                child.start()
            while self._children and not self._stopped.wait(_LOOK_S):
                for child in list(self._children):
                    self._look(child)
                if self._has_changed is not None and self._has_changed():
                    for child in self._children:
                        self._log.warning("a file has changed; starting a new %s", self._what)
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
            pause_s = child.ended(code, expected=code in self._expected_codes)
            after = f" in {pause_s:.0f} s" if pause_s else ""
            self._log.warning("a %s ended with exit code %d; starting another one%s", self._what, code, after)
        if child.process is None and time.monotonic() >= child.start_at:
            child.start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: set_from_handler(self._stopped)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
