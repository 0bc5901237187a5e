"""A disk that tells a test what is about to happen, children that run a script, and waiting without sleeping."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sej.system.disk import OS, Disk, File, Mode, OsDisk, OsFile, Status
from tests.crash.disk import FaultyDisk

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0
Hook = Callable[[str, File | None, bytes], None]


class HookedDisk(FaultyDisk):
    """Calls a hook before every call that changes something; what the hook raises is what the call raises."""

    def __init__(self, hook: Hook, inner: Disk = OS) -> None:
        super().__init__(inner, 0)
        self.hook = hook

    def before(self, verb: str, file: File | None = None, data: bytes | None = None) -> None:
        self.calls += 1
        self.hook(verb, file, data or b"")


def dying(dice: random.Random, odds: float = 1.0) -> HookedDisk:
    """Return a disk that kills its process between calls far more often than a kill at a random moment would."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if dice.random() < odds * (0.002 if verb == "write" else 0.02):
            # Bytes that go to a position are not split: written by write(), they would land at the file's beginning.
            if verb == "write" and file is not None and data and dice.random() < 0.5:
                file.write(data[: dice.randrange(len(data))])
            os.kill(os.getpid(), signal.SIGKILL)

    return HookedDisk(hook)


class ReadOnlyDisk(OsDisk):
    """The real disk of a user who may read files whose path contains this part, and not write them."""

    def __init__(self, part: str) -> None:
        self.part = part

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode != "read" and self.part in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return super().open(path, mode)


class WrappingDisk(OsDisk):
    """The real disk, whose open files are of another class, which knows the disk."""

    kind: type[OsFile]

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        file = super().open(path, mode)
        wrapped: Any = self.kind(os.dup(file.fileno()), file.path)
        file.close()
        wrapped.disk = self
        return wrapped  # type: ignore[no-any-return]


class _LookedAtFile(OsFile):
    disk: Any

    def read(self, size: int, position: int) -> bytes:
        self.disk.look("read", self.path)
        data = super().read(size, position)
        self.disk.bytes_read += len(data)
        return data

    def read_into(self, buffer: memoryview, position: int) -> int:
        self.disk.look("read", self.path)
        count = super().read_into(buffer, position)
        self.disk.bytes_read += count
        return count

    def size(self) -> int:
        self.disk.look("size", self.path)
        return super().size()

    def status(self) -> Status:
        self.disk.look("size", self.path)
        return super().status()


class LookingDisk(WrappingDisk):
    """The real disk: it counts the calls that look at something, and calls a hook before each.

    Attributes:
        looks: how many calls of each verb there were: ``open``, ``list``, ``status``, ``size`` and ``read`` (of files).
        bytes_read: how much was read.
    """

    kind = _LookedAtFile

    def __init__(self, hook: Callable[[str, str], object] = lambda verb, path: None) -> None:
        self.hook = hook
        self.looks: Counter[str] = Counter()
        self.bytes_read = 0

    def look(self, verb: str, path: str | os.PathLike[str]) -> None:
        self.looks[verb] += 1
        self.hook(verb, os.fspath(path))

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        self.look("open", path)
        return super().open(path, mode)

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        self.look("list", path)
        return super().list(path)

    def status(self, path: str | os.PathLike[str]) -> Status | None:
        self.look("status", path)
        return super().status(path)


class MeanwhileDisk(LookingDisk):
    """The real disk; another process acts just before the k-th call that looks at something."""

    def __init__(self, k: int, act: Callable[[], object]) -> None:
        super().__init__(self._meanwhile)
        self._k, self._act = k, act

    def _meanwhile(self, *_: str) -> None:
        if self.calls == self._k:
            self.act()

    @property
    def calls(self) -> int:
        return self.looks.total()

    def act(self) -> None:
        """Act now, unless it has happened."""
        act, self._act = self._act, lambda: None
        act()


class Script(subprocess.Popen[str]):
    """A process with pipes."""

    stdin: IO[str]
    stdout: IO[str]


def script(code: str, *arguments: object) -> Script:
    """Python code in a process of its own, with pipes; the arguments are in sys.argv[1:]."""
    return Script(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def output(code: str, *arguments: object) -> str:
    """What a script prints; it must end well."""
    with script(code, *arguments) as child:
        try:
            found, _ = child.communicate(timeout=PATIENCE_S * 2)
        finally:
            child.kill()
    assert child.returncode == 0
    return found.strip()


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as a condition that another thread or process brings about holds."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    wait_s = 0.001
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        pause.wait(wait_s)
        wait_s = min(wait_s * 1.2, 0.01)  # the other side needs the processor, too


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Allow so many bytes of memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


class Worker(threading.Thread):
    """A thread whose result :meth:`result` returns, or whose error it raises."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._found: object = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> object:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error
        return self._found
