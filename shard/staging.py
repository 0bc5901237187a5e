"""Staged rows: the files that tasks write, for the driver to commit.

A task writes one file for each shard, in a folder of its own below the staging folder::

    ROOT/.staging/                      next to the shards; in a single SEJ directory: tmp/staging/
        task-<job>-<uuid>/owner.json    the job's driver: host, process and start of Spark's driver
        task-<job>-<uuid>/005.rows      encoded messages, offsets counted from 0
        job-<job>.json                  the decision: these files will be in the journals
        done.json                       the last number of each name that is in the journals
        commit.lck                      one commit at a time
        id, id.lck                      16 random bytes, which show a task that it sees the driver's disk

A job is decided as soon as its ``job-`` file exists, and not before. The files of a failed job belong to no message,
and the next job removes them once their driver is dead. Rows are synced before a task reports them, because a decision
relies on them, after a power loss too.

The driver and all executors need this folder on one disk. A task compares ``id`` with the driver's before it writes a
byte. The driver compares size and checksum of each file with what its task reported before it decides.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sej.codec import Buffer, renumber
from sej.errors import CorruptionError, LockedError, SejError
from sej.journal.segment import SegmentReader
from sej.system.checksum import crc32c
from sej.system.disk import OS, File
from sej.system.locks import Lock, is_running, process_host, process_start
from sej.system.sealed import SealedFile, seal, whole

_BATCH_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 18
"""The bytes of one read: each chunk is still in the processor's cache when its messages are counted."""
_FOREIGN_AGE_S: Final = 86_400.0
"""A job of another host is considered dead if none of its tasks has written for so long."""
_CHECK_THREADS: Final = 8
_LOCK_S: Final = 60.0
_SHARED: Final = "executors need the same disk, or use a hub"


class StagedRowsError(SejError):
    """A process cannot read the staged rows of a job, so the job cannot be committed."""


class Owner(NamedTuple):
    """Spark's driver: the process that a job depends on."""

    host: str
    pid: int
    start: int | None

    @classmethod
    def here(cls) -> Owner:
        """Return the driver of this process: Spark's JVM is the parent of the daemon that forked it."""
        parent = os.getppid()
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{parent}/stat", encoding="ascii") as file:
            parent = int(file.read().rpartition(")")[2].split()[1]) or parent  # the first process has no parent
        return cls(process_host(), parent, process_start(parent))

    def is_gone(self, age_s: float) -> bool:
        """Return whether the driver is dead; for another host, only its age decides."""
        if self.host != process_host():
            return age_s > _FOREIGN_AGE_S
        return self.start is None or not is_running(self.pid, self.start)


class Rows(NamedTuple):
    """A file of encoded messages for one shard, in the staging folder.

    Attributes:
        shard: the shard's index.
        path: the file.
        messages: how many messages it has.
        size: its bytes.
        crc32c: the CRC32C of its bytes.
        task: the task that wrote it and its host, for errors.
    """

    shard: int
    path: str
    messages: int
    size: int
    crc32c: int
    task: str = "?"


def prepare_task(folder: str, owner: Owner) -> None:
    """Create the folder of a task with its owner's note, unless it exists."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "owner.json")
    if OS.status(path) is None:
        with OS.open(path, "temp") as file:
            file.write(seal(path, owner._asdict()))


class Stage:
    """The files of one task."""

    def __init__(self, folder: str, job: str, owner: Owner, task: str = "?") -> None:
        """Create the task's folder."""
        self._task = task
        self._folder = os.path.join(folder, f"task-{job}-{uuid.uuid4().hex}")
        prepare_task(self._folder, owner)
        self._files: dict[int, tuple[File, RowsBuffer]] = {}

    def append(self, shard: int, values: list[bytes], keys: list[bytes], types: Any, timestamps: Any) -> None:
        """Encode messages for a shard.

        Raises:
            InvalidMessageError: a field is out of its range.
        """
        if shard not in self._files:
            file = OS.open(self._path(shard), "temp")
            self._files[shard] = file, RowsBuffer(file.write, _BATCH_BYTES)
        self._files[shard][1].append(values, keys, types, timestamps)

    def finish(self) -> list[Rows]:
        """Sync and close; return the files that have rows."""
        found = []
        for shard, (file, rows) in self._files.items():
            with file:
                rows.flush()
                file.sync()
            found.append(Rows(shard, self._path(shard), rows.messages, rows.size, rows.crc32c, self._task))
        if found:
            OS.sync_dir(self._folder)
            OS.sync_dir(os.path.dirname(self._folder))
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
        return found

    def drop(self) -> None:
        """Remove the task's files."""
        for file, _ in self._files.values():
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, shard: int) -> str:
        return os.path.join(self._folder, f"{shard:03x}.rows")


class RowsBuffer:
    """Encodes the messages of one file, and passes on its bytes in parts.

    Attributes:
        append: adds messages, as ``append_many`` of a buffer of the codec does.
        flush: passes on the rest.
        size: how many bytes were passed on.
        crc32c: their checksum.
    """

    def __init__(self, send: Callable[[memoryview], object], part_bytes: int) -> None:
        """Set where a part goes, and its usual size."""
        from threading import Lock

        self.size = self.crc32c = 0
        self._send = send
        self._buffer = Buffer(0, self._drain, Lock())
        self._buffer.limit = self._buffer.batch_limit = part_bytes
        self.append, self.flush = self._buffer.append_many, self._buffer.flush

    @property
    def messages(self) -> int:
        """How many messages were appended."""
        return self._buffer.offset

    def _drain(self) -> None:
        with self._buffer.pending() as view:
            self._send(view)
            self.size += len(view)
            self.crc32c = crc32c(view, self.crc32c)
        self._buffer.clear()


def identity(folder: str, *, create: bool = False) -> str | None:
    """Return the identity of a staging folder, 32 hexadecimal digits; None if it has none and ``create`` is False."""
    path = os.path.join(folder, "id")
    file = SealedFile(OS, path, "the identity of a staging folder", "remove it, and run the job again")
    found = file.load()
    if found is None and not create:
        return None
    if found is None:
        OS.mkdir(folder, parents=True)
        with Lock(os.path.join(folder, "id.lck"), what="the identity of the staging folder").acquire(timeout=_LOCK_S):
            found = file.load() or {"id": uuid.uuid4().hex}
            file.store(found)
    with file.checking():
        return str(found["id"])


def require_identity(folder: str, expected: str, task: str) -> None:
    """Check in a task that its staging folder is the driver's; if not, remove what dead jobs left in it.

    Raises:
        StagedRowsError: this host sees another disk.
    """
    if identity(folder) == expected:
        return
    if os.path.isdir(folder):
        with suppress(LockedError), Lock(os.path.join(folder, "commit.lck"), what="the commit of a job").acquire():
            sweep(folder, keep=decided(folder))
    raise StagedRowsError(f"task {task} cannot see the driver's disk: {_SHARED}", path=folder)


def check_rows(rows: Collection[Rows]) -> None:
    """Check that the files of a job are here as its tasks wrote them, and have whole messages.

    Raises:
        StagedRowsError: one is missing, has another size or checksum, or has other messages than its task reported.
    """
    with ThreadPoolExecutor(_CHECK_THREADS) as threads:
        for _ in threads.map(_check, rows):
            pass


def _check(rows: Rows) -> None:
    if OS.status(rows.path) is None:
        raise StagedRowsError(f"the driver cannot see the rows of task {rows.task}: {_SHARED}", path=rows.path)
    crc = messages = 0
    with SegmentReader(OS, rows.path, 0, 0, chunk_bytes=_CHUNK_BYTES) as reader:
        with suppress(CorruptionError):  # the rest is not a message
            while (found := reader.read_encoded(_CHUNK_BYTES))[1]:
                crc = crc32c(found[0], crc)
                messages += found[1]
        size = reader.status().size
    if (messages, size, crc) != (rows.messages, rows.size, rows.crc32c):
        raise StagedRowsError(
            f"the staged rows of task {rows.task} differ from what it reported: expected {rows.messages} messages in"
            f" {rows.size} bytes with checksum {rows.crc32c:08x}, got {messages} in {size} bytes with {crc:08x}; check"
            " the disk, then run the job again",
            path=rows.path,
        )


def renumbered(files: list[Rows], first: int) -> Iterator[bytearray]:
    """Yield the messages of files one after the other, in chunks, with consecutive offsets from ``first`` on.

    Raises:
        CorruptionError: a file does not hold the messages that its task reported.
    """
    for rows in files:
        with SegmentReader(OS, rows.path, 0, 0, chunk_bytes=_CHUNK_BYTES) as reader:
            while (found := reader.read_encoded(_CHUNK_BYTES))[1]:
                chunk, staged = bytearray(found[0]), reader.due - found[1]
                renumber(chunk, 0, len(chunk), staged, first + staged)
                yield chunk
        if reader.due != rows.messages:
            raise CorruptionError(
                f"{rows.messages} messages were staged here, but only {reader.due} can be read, so the job cannot be"
                " finished; run it again",
                path=rows.path,
                position=reader.position,
            )
        first += reader.due


def forget(folder: str, job: str) -> None:
    """Remove everything that the tasks of a job left, including failed attempts."""
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.startswith(f"task-{job}-"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def decided(folder: str) -> list[str]:
    """Return the jobs in a staging folder that are decided and not finished.

    The holder of the lock knows that they are dead.
    """
    names = OS.list(folder) if os.path.isdir(folder) else []
    return [name[len("job-") : -len(".json")] for name in names if name.startswith("job-") and name.endswith(".json")]


def sweep(folder: str, keep: Collection[str] = ()) -> int:
    """Remove the files of dead jobs in a staging folder; return how many folders there were.

    Args:
        folder: the staging folder; the caller holds its commit lock.
        keep: jobs whose files are still needed.
    """
    gone = 0
    with suppress(FileNotFoundError):
        names = [name for name in os.listdir(folder) if name.startswith("task-")]
        used: dict[str, float] = {}
        for name in names:  # while a task of a job writes, the rows of its other tasks are needed
            used[_job_of(name)] = max(used.get(_job_of(name), 0.0), _last_use(os.path.join(folder, name)))
        for name in names:
            path = os.path.join(folder, name)
            needed = any(name.startswith(f"task-{job}-") for job in keep)
            if not needed and _owner_is_gone(path, time.time() - used[_job_of(name)]):
                shutil.rmtree(path, ignore_errors=True)
                gone += 1
    return gone


def _job_of(name: str) -> str:
    return name.rpartition("-")[0]


def _last_use(path: str) -> float:
    """Return when a task last wrote to its folder, in seconds since the epoch; 0: it is removed meanwhile."""
    last = 0.0
    with suppress(FileNotFoundError):
        last = os.stat(path).st_mtime
        with os.scandir(path) as files:
            last = max([last, *(file.stat().st_mtime for file in files)])
    return last


def _owner_is_gone(path: str, age_s: float) -> bool:
    with suppress(FileNotFoundError):
        try:
            note = SealedFile(OS, os.path.join(path, "owner.json"), "the note of a driver", "remove it")
            with note.checking():
                found = note.load() or {}
                owner = Owner(str(found["host"]), whole(found["pid"]), found["start"])
        except CorruptionError:
            return age_s > _FOREIGN_AGE_S
        return owner.is_gone(age_s)
    return False
