"""Work in a child of its own that may take so much memory and time and no more."""

import os
import resource
import signal
from collections.abc import Callable
from typing import NamedTuple

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
