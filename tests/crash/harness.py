"""A test harness for random histories: it starts processes, kills some at random, and replaces each that ended."""

import functools
import itertools
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import pytest

import sej
from tests.forking import Forkserver, Program

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = [
    *("tests.crash.chaos", "tests.crash.consuming", "tests.queue.chaos", "tests.queue.workload"),
    *("tests.queue.waiter", "tests.shard.working"),
]


@functools.cache
def _forkserver() -> Forkserver:
    """Return the one server of a test run. It has imported everything, so a killed process is replaced quickly."""
    return Forkserver(*PROGRAMS, env={**os.environ, "PYTHONPATH": str(ROOT)})


def fork(command: list[str], output: Path) -> Program:
    """Start ``python -m COMMAND``. Its standard output goes to a file, which is still there after the process died."""
    with output.open("wb") as out, open(os.devnull) as nothing:
        return _forkserver().start(command, [nothing.fileno(), out.fileno(), 2])


SHORT_S = 1.5
"""So long is a history of processes in `make test`."""


def seeded_random() -> random.Random:
    """Return the random numbers of one history. Set SEJ_SEED to repeat an earlier one."""
    seed = int(os.environ.get("SEJ_SEED") or random.randrange(2**32))
    print(f"SEJ_SEED={seed}")
    return random.Random(seed)


SAME_OR_LONG = pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.torture)])
"""Of a test: the same few cases each time, and in ``make torture`` others for as long as there is time."""


def dice_of_cases(count: int, seconds: float, *, long: bool) -> Iterator[random.Random]:
    """Yield the random numbers of each case: for so many cases the same ones each time, or for some seconds others."""
    if not long:
        yield from itertools.repeat(random.Random(14), count)
        return
    dice, deadline = seeded_random(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield dice


def dead_letters_in(path: str) -> list[sej.DeadLetter]:
    """Return the dead letters of a journal, which does not exist before the first one."""
    try:
        return list(sej.dead_letters(path))
    except sej.JournalNotFoundError:
        return []


def require_sound(path: str | Path) -> None:
    """Check a journal, without the torn tail of a process that died in the last write of all."""
    sej.Writer(path).close()
    assert sej.Journal(path).verify() == []


class Harness:
    """The running processes, and the output of every process. A process that ends without a signal fails the test."""

    def __init__(self, folder: Path, dice: random.Random, *words: str | Path) -> None:
        """Start no process yet; words: the module that each runs, and its first arguments."""
        self.dice = dice
        self.words = [str(word) for word in words]
        self.output = folder / "output"
        self.output.mkdir()
        self.running: list[Program] = []
        self.started = 0

    def command(self, process: str) -> list[str]:
        """Return the module that a process runs, and its arguments. A seed is added to them."""
        return [*self.words, process]

    def start(self) -> None:
        process = f"w{self.started}"
        self.started += 1
        self.running.append(fork([*self.command(process), str(self.dice.randrange(2**32))], self.output / process))

    def kill(self, child: Program) -> None:
        child.kill()
        assert child.wait(30) < 0, "it failed"
        self.running.remove(child)

    def replace(self) -> None:
        self.kill(self.dice.choice(self.running))
        self.start()

    def wait(self) -> None:
        """Wait for a moment, and replace each process that died at a call of its disk."""
        with suppress(subprocess.TimeoutExpired):
            self.running[0].wait(self.dice.uniform(0.05, 0.4))
        for child in [child for child in self.running if child.poll() is not None]:
            self.kill(child)
            self.start()

    def run_processes(
        self, seconds: float, processes: int, enough: Callable[[], bool], *, replacing: float = 0.5
    ) -> None:
        """Run processes for some seconds, and until they have done enough. At the end all are killed.

        Args:
            seconds: how long at least, and not less than :data:`SHORT_S`.
            processes: how many run concurrently; 3 at most if there are fewer seconds than that.
            enough: whether they have done enough.
            replacing: the probability with which a process is killed and replaced after each wait.
        """
        with self:
            for _ in range(processes if seconds >= SHORT_S else min(processes, 3)):
                self.start()
            end = time.monotonic() + max(seconds, SHORT_S)
            while time.monotonic() < end or not enough():
                self.wait()
                if self.dice.random() < replacing:
                    self.replace()

    def lines(self) -> list[list[str]]:
        """Return the words of each line of output. A last line without its end is left out: its process was killed."""
        found = []
        for path in self.output.iterdir():
            text = path.read_text()
            found += [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Kill all processes. If the block raised no exception, none of them may have failed."""
        for child in list(self.running):
            if kind is None:
                self.kill(child)
            else:
                child.kill()
                child.wait(30)


# --- work in a child of its own that may take so much memory and time and no more


CPU_S = 20
"""An endless loop ends here, however loaded the machine is."""
WAIT_S = 60
"""A call that waits for something that never comes ends here."""


class Ended(NamedTuple):
    """How a child ended.

    Attributes:
        kinds: the names of the classes of the error, the narrowest first; none: it returned.
        text: the error, or what was returned.
        memory_bytes: how much its peak memory was above that at its start.
    """

    kinds: tuple[str, ...]
    text: str
    memory_bytes: int


def bounded(work: Callable[[], object], memory_bytes: int = 1 << 30, *, more_s: float = 0.0) -> Ended:
    """Run work in a child that may use so much more memory than this process; more_s: so many seconds more of time.

    Raises:
        AssertionError: the child was ended by a signal: it looped, waited, or crashed.
    """
    there, here = os.pipe()
    child = os.fork()
    if not child:
        os.close(there)
        try:
            os.write(here, _run(work, memory_bytes, int(more_s)))
        finally:
            os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0 and found, f"the child looped or waited: ended by signal {status & 0x7F}"
    kinds, memory, text = found.decode("utf-8", "replace").split("\n", 2)
    return Ended(tuple(kinds.split()), text, int(memory))


def _run(work: Callable[[], object], memory_bytes: int, more_s: int) -> bytes:
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (size + memory_bytes, size + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S + more_s, CPU_S + more_s))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(WAIT_S + 10 * more_s)
    try:
        text, kinds = str(work()), ""
    except BaseException as error:
        text, kinds = str(error), " ".join(kind.__name__ for kind in type(error).__mro__)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"{kinds}\n{grown << 10}\n{text[:2000]}".encode("utf-8", "replace")
