"""One process that supervises others, which run the same command: the workers of ``sej worker``, and the like.

It starts them, starts a new one for each that fails (after a pause if that happens again and again), and asks all of
them to end on SIGTERM and SIGINT. They also end if this process is killed: each of them reads from a pipe that then
ends.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from sej.system.signals import set_from_handler

__all__ = ["MAX_PROCESSES", "Supervised", "Supervisor", "is_supervised", "supervised"]

MAX_PROCESSES: Final = 1_000
"""The most processes of one command: more are a mistake, and could stop the machine."""
_VARIABLE: Final = "SEJ_SUPERVISED"
"""Set for a supervised process: what :class:`Supervised` has, as JSON."""
_LOOK_S: Final = 0.5
_EARLY_S: Final = 5.0
"""A process that fails sooner than this, twice in a row, is started again after a pause."""
_PAUSE_S: Final = 30.0
"""The longest pause."""
_START_LOOK_S: Final = 0.02
"""While servers start, so that the command reports early that they are ready."""
_PIPE_BYTES: Final = 4096
"""So many bytes are written to a pipe, or read from it, at one time, so that no line is cut."""


class Supervised(NamedTuple):
    """What a supervised process knows.

    Attributes:
        number: its number, from 0 on; the process that is started for one that failed has the same number.
        pipe: the descriptor of a pipe that ends with the supervisor.
        ready_pipe: the descriptor of a pipe that reports to the supervisor.
        given: what the supervisor gives to all of them.
    """

    number: int
    pipe: int
    ready_pipe: int
    given: Mapping[str, Any]

    @property
    def is_orphan(self) -> bool:
        """Whether the supervisor has ended. Its pipe ends before the system gives this process another parent."""
        return bool(select.select([self.pipe], [], [], 0)[0])

    def ready(self) -> None:
        """Report that this process has started well."""
        with suppress(BrokenPipeError, BlockingIOError):  # the supervisor has ended, or does not wait for it
            os.write(self.ready_pipe, b"%d\n" % self.number)


def is_supervised() -> bool:
    """Return whether a supervisor has started this process, which has not called :func:`supervised` yet."""
    return _VARIABLE in os.environ


def supervised() -> Supervised | None:
    """Return what this process knows if a supervisor has started it, otherwise None.

    From then on, SIGTERM is sent to this process as soon as its supervisor has ended.
    """
    text = os.environ.pop(_VARIABLE, None)  # not for the commands that this process starts
    if text is None:
        return None
    found = Supervised(**json.loads(text))
    threading.Thread(target=_end_with, args=(found.pipe,), daemon=True).start()
    return found


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class _Child:
    """A place for a process: the one that runs, or the time when the next one starts."""

    def __init__(self, told: Supervised) -> None:
        self._told = told
        self.process: subprocess.Popen[bytes] | None = None
        self.code = 0
        self.start_at = 0.0
        self._started_at = 0.0
        self._early = 0

    def start(self) -> None:
        """Start a process."""
        words = [sys.executable, "-m", "sej", *sys.argv[1:]]
        environment = {**os.environ, _VARIABLE: json.dumps(self._told._asdict())}
        pipes = [self._told.pipe, self._told.ready_pipe]
        self.process = subprocess.Popen(words, env=environment, pass_fds=pipes)
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

    def runs(self) -> bool:
        """Return whether there is a process, which has not ended."""
        return self.process is not None and self.process.poll() is None

    def end(self) -> int:
        """Let the process end; return its exit code, or that of the last one."""
        return self.code if self.process is None else self.process.wait()


class Supervisor:
    """Keeps a number of processes running: workers, which may end well, or servers, which may not end by themselves."""

    def __init__(
        self,
        count: int,
        log: logging.Logger,
        what: str,
        *,
        serves: bool = False,
        given: Mapping[str, Any] | None = None,
        expected_codes: Collection[int] = (),
        has_changed: Callable[[], bool] | None = None,
        on_ready: Callable[[], object] | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            count: how many processes.
            log: gets a line for each process that fails.
            what: what one of them is, such as ``"worker process"``.
            serves: these are servers: the first is started alone, the others when it is ready, and the command ends if
                one fails before that. Later each that ends is replaced, whatever its exit code.
            given: what they find in :attr:`Supervised.given`.
            expected_codes: exit codes after which another process is started without a pause.
            has_changed: asked repeatedly; if it returns True, all processes are restarted.
            on_ready: called once, when all of them are ready.
            stopped: an event that ends the run like a signal.
        """
        self._log = log
        self._what = what
        self._serves = serves
        self._expected_codes = expected_codes
        self._has_changed = has_changed
        self._on_ready = on_ready
        pipe, self._end_pipe = os.pipe()  # its other end is open as long as this process runs
        self._ready_pipe, ready_pipe = os.pipe()
        os.set_blocking(self._ready_pipe, False)
        os.set_blocking(ready_pipe, False)
        self._children = [_Child(Supervised(number, pipe, ready_pipe, given or {})) for number in range(count)]
        self._waiting = set(range(count)) if serves else set()
        """Servers that were never ready; empty as soon as all were, once."""
        self._stopped = stopped or threading.Event()

    def run(self) -> int:
        """Run until a signal, or until all processes have ended well; return the exit code."""
        with self._signals():
            for child in self._children[: 1 if self._serves else None]:
                child.start()
            while self._children and not self._stopped.wait(_START_LOOK_S if self._waiting else _LOOK_S):
                for child in list(self._children):
                    self._look(child)
                if self._waiting:
                    self._hear()
                if self._has_changed is not None and self._has_changed():
                    for child in self._children:
                        self._log.warning("a file has changed; starting a new %s", self._what)
                        child.restart()
            started_well = self._serves and not self._waiting  # then one that is about to be replaced does not count
            counted = [child for child in self._children if not started_well or child.runs()]
            for child in counted:
                if child.process is not None:
                    child.process.terminate()
            codes = [child.end() for child in counted]
        # One that the signal ended had not begun, and held nothing.
        return next((code for code in codes if code not in (0, -signal.SIGTERM)), 0)

    def _look(self, child: _Child) -> None:
        """Start another process if this one has failed and its pause is over."""
        code = None if child.process is None else child.process.poll()
        if code == 0 and not self._serves:
            self._children.remove(child)
        elif code is not None:
            pause_s = child.ended(code, expected=code in self._expected_codes)
            if self._waiting:  # it has said why, and another one would fail too
                self._stopped.set()
                return
            after = f" in {pause_s:.0f} s" if pause_s else ""
            self._log.warning("a %s ended with exit code %d; starting another one%s", self._what, code, after)
        is_first_ready = not (self._serves and 0 in self._waiting)
        if child.process is None and is_first_ready and time.monotonic() >= child.start_at:
            child.start()

    def _hear(self) -> None:
        """Read which processes are ready."""
        with suppress(BlockingIOError):
            self._waiting.difference_update(map(int, os.read(self._ready_pipe, _PIPE_BYTES).split()))
        if not self._waiting and self._on_ready is not None:
            self._on_ready()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: set_from_handler(self._stopped)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
