"""Workers of a framework, which are killed while they run tasks; and the files in which the tasks leave their marks."""

import hashlib
import os
import random
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from tests.crash.harness import ROOT
from tests.forking import Forkserver, Piped
from tests.sej.hooks import until

PLACE = "SEJ_TEST_PLACE"
"""The variable with the directory of a test, for the application of a framework."""
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


@cache
def forkserver(*modules: str) -> Forkserver:
    """One for all tests of a run that use these modules."""
    return Forkserver(*modules, env=ENV)


def work(name: object) -> None:
    """Compute for some milliseconds, so that a kill finds tasks at work; then record that the task has run."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)
    with open(Path(os.environ[PLACE], "marks"), "ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


def marks(place: Path) -> Counter[str]:
    """How often each task has run."""
    file = place / "marks"
    return Counter(file.read_text().split()) if file.exists() else Counter()


class Workers:
    """Workers of one application; each is a process, with the processes that it forks."""

    def __init__(self, forks: Forkserver, place: Path, *words: str, count: int = 2) -> None:
        self._start: Callable[[], Piped] = lambda: forks.pipe(
            ["tests.contrib.killing", *words], env={PLACE: str(place)}
        )
        self._place = place
        self._running = [self._start() for _ in range(count)]

    def run(self, wanted: set[str], kills: int, seed: int = 7) -> Counter[str]:
        """Kill a worker after every few tasks and start another one, until all tasks have run; return how often."""
        dice = random.Random(seed)
        try:
            for _ in range(kills):
                enough = min(marks(self._place).total() + dice.randrange(1, 8), len(wanted))
                until(partial(self._has, enough))
                _kill(self._running.pop(dice.randrange(len(self._running))))
                self._running.append(self._start())
            while (count := len(marks(self._place))) < len(wanted):
                until(partial(self._has_other, count))
        finally:
            self.close()
        return marks(self._place)

    def _has(self, total: int) -> bool:
        return marks(self._place).total() >= total

    def _has_other(self, count: int) -> bool:
        return len(marks(self._place)) > count

    def close(self) -> None:
        """Kill them."""
        while self._running:
            _kill(self._running.pop())


def _kill(worker: Piped) -> None:
    """Kill a worker and its children."""
    worker.kill()
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


if __name__ == "__main__":
    os.setpgid(0, 0)  # so that its children can be killed with it
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
