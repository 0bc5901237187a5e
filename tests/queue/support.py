"""What the queue's tests share: a clock that is moved, a queue that dies, a journal of values."""

import fcntl
import itertools
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.offset_check import keep_offset
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import OS, Disk, File
from tests.crash.disk import Crash, CrashDisk, Fault, FaultyDisk
from tests.sej.hooks import HookedDisk

NS = 1_000_000_000
SMALL_FILE_SYSTEM = ["unshare", "--mount", "--map-root-user", "sh", "-c",
                     'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"']  # fmt: skip
"""Before a directory and a command: the command runs with 4 MiB of its own mounted there."""


FAKETIME = Path(f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketime.so.1")


class FakeClock:
    """Both clocks and the boot id, moved by hand."""

    def __init__(self) -> None:
        self.boot = 1000 * NS
        self.wall = 1_700_000_000 * NS
        self.id = b"1" + bytes(15)
        self.read: threading.Event | None = None  # in random histories a handler might interrupt its set()

    def boot_ns(self) -> int:
        now = self.boot
        if self.read is not None:
            self.read.set()
        return now

    def wall_ns(self) -> int:
        return self.wall

    def boot_id(self) -> bytes:
        return self.id

    def move(self, seconds: float) -> None:
        self.boot += int(seconds * NS)
        self.wall += int(seconds * NS)

    def reboot(self, set_by_s: float = 0) -> None:
        """Start the boot-time clock again. The wall clock continues, or is set in the meantime."""
        self.boot = 10 * NS
        self.wall += int(set_by_s * NS)
        self.id = (int.from_bytes(self.id, "big") + (1 << 64)).to_bytes(16, "big")


def opened(path: str | Path, clock: FakeClock, disk: Disk = OS, name: str = "worker", **options: Any) -> JournalQueue:
    return JournalQueue(path, name, clock=clock, disk=disk, **options)


def take(q: sej.WorkQueue) -> Any:
    """Return the next item; there must be one."""
    item = q.get(timeout=0)
    assert item is not None
    return item


def taken(q: sej.WorkQueue, n: int = 99) -> list[bytes]:
    """Take the items that can be taken now, and return their values."""
    return [item.value for item in q.get_many(n, timeout=0)]


def fail_all(q: sej.WorkQueue, *values: bytes) -> None:
    """Put items, and turn them into dead letters."""
    q.put_many(values)
    for item in q.get_many(len(values), timeout=0):
        item.fail("why")


def crashes(
    disk: CrashDisk, q: JournalQueue, clock: FakeClock, since: int = 0, *, more_than: int = 20, set_by_s: float = 0
) -> Iterator[Crash]:
    """The process dies and the power fails; yield every state in which the disk may be."""
    kill(q)
    clock.move(1)
    clock.reboot(set_by_s)
    count = 0
    for crash in disk.crash_states(since=since):
        count += 1
        yield crash
    assert count > more_than


def failing(
    prepared: Callable[[], CrashDisk], fault: Fault = "eio", *, sticky: bool = False
) -> Iterator[tuple[CrashDisk, FaultyDisk]]:
    """Yield a disk, and one over it whose first call fails; then others, until no call is left that could fail."""
    for at in itertools.count(1):
        inner = prepared()
        disk = FaultyDisk(inner, at, fault, sticky=sticky)
        yield inner, disk
        if disk.calls < at:
            break
    assert at > 10


class DiedError(BaseException):
    """The process is gone."""


def dies_before_the_message() -> HookedDisk:
    """Whatever the queue's log says, the journal never gets it."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "write" and file is not None and file.path.endswith(".jnl") and "/jnl/" in file.path:
            raise DiedError

    return HookedDisk(hook)


@contextmanager
def dying(path: str | Path, clock: FakeClock) -> Iterator[JournalQueue]:
    """A process that dies in the block, after it has written records, and before it writes their messages."""
    q = opened(path, clock, dies_before_the_message())
    with pytest.raises(DiedError):
        yield q
    kill(q)


@contextmanager
def interrupted_before_the_message(q: JournalQueue) -> Iterator[None]:
    """Interrupt the block after it has written records, and before it appends their messages."""
    with (
        patch.object(q._core.writer, "append_encoded", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        yield


def values(q: sej.WorkQueue) -> list[bytes]:
    """Take and end every item, and return their values."""
    found = []
    for item in q:
        found.append(item.value)
        item.done()
    return found


def taken_after_waiting(queue: JournalQueue, clock: FakeClock, seconds: float) -> sej.Item:
    """Take an item with a call that has read the clock, and then waits this long for the queue's lock."""
    with open(f"{queue.path}/ofs/{queue.name}.queue.lck", "rb") as file, ThreadPoolExecutor() as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        clock.read = threading.Event()
        taking = pool.submit(queue.get, 0)
        clock.read.wait()
        clock.move(seconds)
        fcntl.flock(file, fcntl.LOCK_UN)
        item = taking.result()
    assert item is not None
    return item


def move(path: str | Path, offset: int, name: str = "worker") -> None:
    """Write another kept offset, as `sej reset` does if the present one cannot be right."""
    keep_offset(Directory(path, OS), name, offset, strict=True)


def kill(queue: JournalQueue) -> None:
    """Do what the kernel does when a process dies: every descriptor is closed, and nothing is written."""
    queue._core.life.shut()
    queue._core.syncer.close()
    queue._core.holders.release()
    queue._core.log.close()
    queue._core.reader_lock.release()
    queue._core.close_readers()
    queue._core.writer.life.shut()
    queue._core.writer._syncer.close()
    queue._core.writer._appender.lock.release()
