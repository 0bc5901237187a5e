"""Jobs that write through the hub: their tasks stage rows on its disk, and one call commits them, once.

The steps of a job, with Spark's words: each task stages its rows in files, one for each shard, and seals them. Then the
driver commits the job: :mod:`shard.committing` decides it with one file and appends the rows to the client's
journals. Every step may be repeated after a lost answer:

======  =================================================  ========================================================
step    a repeat                                           a crash of the hub after it
======  =================================================  ========================================================
stage   bytes below the file's size are not written again  the file is shorter, which the next step notices
seal    compares the file again                            the rows are on the disk
commit  a committed number, or job, is dropped             before the decision: nothing; after it: the next start of
                                                           the hub, or the next commit, appends the rest
abort   removes nothing                                    the rest is removed a day after the job's last stage
======  =================================================  ========================================================

A task may outlive the abort of its job: what it sends then is refused, as long as the hub remembers the job.

The staged rows are in ``.staging/`` below the root, which no reader sees.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from zlib import crc32

from hub.errors import GapError
from hub.naming import STAGING, Source, check_client, check_journal
from hub.store import Store
from sej.errors import InvalidNameError, SejError
from sej.journal.directory import Directory
from sej.system.disk import OS, Disk
from sej.writing.writer import Writer
from shard.committing import ANONYMOUS, Job, Target, check_job_name, commit, drop, finish_dead_jobs
from shard.names import Path
from shard.staging import Owner, Rows, StagedRowsError, check_rows, prepare_task

_log = logging.getLogger(__name__)

_ALL: Final = ""
"""In the place of a client: the jobs of all clients."""
_NONE: Final = "."
"""In the place of a client: of none, so that a job that cannot be finished stops no other."""
_ID: Final = re.compile(r"[0-9a-f]{1,64}")
_LOCKS: Final = 64
_ABORTED: Final = 256
"""How many aborted jobs are remembered: their last tasks end within seconds."""
_REMOTE: Final = Owner("another host", 0, None)
"""The owner of staged rows: a driver that this host cannot look at, so that only its age counts."""


class Staged(NamedTuple):
    """A file that a task staged.

    Attributes:
        task: the attempt of the task, in hexadecimal digits.
        shard: the shard's index.
        messages: how many messages it has.
        size: its bytes.
        crc32c: the CRC32C of its bytes.
    """

    task: str
    shard: int
    messages: int
    size: int
    crc32c: int


class _Target(NamedTuple):
    """A client's journals, as a target of a commit."""

    store: Store
    client: str
    prefix: str
    bits: int
    lock_timeout: float = 60.0
    open_max: int = 0

    @property
    def root(self) -> str:
        return self.store.root

    @property
    def staging(self) -> str:
        return os.path.join(self.store.root, STAGING)

    @property
    def tree(self) -> Path:
        return Path(self.store.root, self.prefix, self.bits)

    def source(self, shard: int) -> Source:
        return check_journal(self.client, os.path.basename(self.tree.dir(shard)))

    def key(self, name: str) -> str:
        return f"{Source(self.client, self.tree.name)}/{name}"

    def described(self) -> dict[str, Any]:
        return {"client": self.client, "prefix": self.prefix, "bits": self.bits}

    def again(self, found: dict[str, Any]) -> _Target:
        return self._replace(**{name: found.pop(name) for name in ("client", "prefix", "bits")})

    def waits_for(self, job: str) -> bool:
        """Return whether the job is of the same client: a job of another one may be out of this caller's hands."""
        return self.client == _ALL or job.startswith(str(Source(self.client, "")))

    def existing(self) -> list[int]:
        return [shard for shard in range(self.tree.count) if OS.status(self.directory(shard).jnl) is not None]

    def directory(self, shard: int) -> Directory:
        return self.store.directory(self.source(shard))

    def prepare(self) -> None:
        with self.open(0):
            pass

    @contextmanager
    def open(self, shard: int) -> Iterator[Writer]:
        with self.store.writing(self.source(shard)) as writer:
            yield writer


def target_of(store: Store) -> Target:
    """Return the target with which all jobs of a store are finished or discarded."""
    return _Target(store, _ALL, "unknown", 0)


class Jobs:
    """The jobs of a store; threads may share it."""

    def __init__(self, store: Store, disk: Disk = OS) -> None:
        """Finish the jobs that were decided when the hub stopped.

        An error is logged, and the next commit of the same client raises it.
        """
        self._store = store
        self._disk = disk
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._aborted: deque[str] = deque(maxlen=_ABORTED)
        try:
            finish_dead_jobs(_Target(store, _NONE, "unknown", 0))
        except (SejError, OSError) as error:
            _log.error("a job is not finished: %s", error)

    def stage(self, client: str, job: str, task: str, shard: int, position: int, data: bytes | memoryview) -> int:
        """Write a part of a file of rows; return the file's size. Bytes that are there are not written again.

        Args:
            client: the client whose journals the job writes.
            job: the job's id, in hexadecimal digits.
            task: the attempt of the task, in hexadecimal digits.
            shard: the shard's index.
            position: where in the file the bytes begin.
            data: whole messages; in each file the offsets count from 0.

        Raises:
            GapError: bytes before them are missing, because the hub lost them: the task must start from scratch.
            QuotaError: the client has used up its bytes.
            DiskLowError: the disk is nearly full.
            InvalidNameError: a name has characters that are not allowed.
            StagedRowsError: the job was aborted.
        """
        path = self._path(client, job, task, shard)
        with self._locks[crc32(path.encode()) % _LOCKS]:
            if self._id(client, job) in self._aborted:
                raise StagedRowsError("this job was aborted, and its rows are removed; run the job again", path=path)
            there = OS.status(path)
            size = 0 if there is None else there.size
            if position > size:
                raise GapError(
                    f"the hub has {size} bytes of these rows, but these begin at byte {position}; run the task again",
                    expected=size,
                )
            new = memoryview(data)[size - position :]
            if len(new):
                self._store.admit(client, len(new))
                if there is None:
                    prepare_task(os.path.dirname(path), _REMOTE)
                    OS.open(path, "append").close()  # created
                with OS.open(path, "edit") as file:
                    file.write_at(new, size)
                    file.start_sync(len(new), size)  # while the task encodes the next part
            return size + len(new)

    def seal(self, client: str, job: str, files: Iterable[Staged]) -> None:
        """Compare a task's files with what it reports, and make them durable.

        If a sync fails, the files are removed: a second sync of the same bytes could succeed without writing them.

        Raises:
            StagedRowsError: a file is missing, or has other bytes: the task must start from scratch.
            OSError: a sync failed.
        """
        rows = [self._rows(client, job, file) for file in files]
        check_rows(rows)
        try:
            for each in rows:
                with self._disk.open(each.path, "edit") as file:
                    file.sync()
            for folder in {os.path.dirname(each.path) for each in rows}:
                self._disk.sync_dir(folder)
                self._disk.sync_dir(os.path.dirname(folder))
        except OSError:
            for each in rows:
                self._disk.unlink(each.path)
            raise

    def commit(
        self, client: str, job: str, prefix: str, bits: int, name: str | None, number: int, files: Iterable[Staged]
    ) -> bool:
        """Append the rows of a job to the client's journals; return False if they are there already.

        Args:
            client: the client.
            job: the job's id.
            prefix: prefix of the shards.
            bits: bits of the shards; 0: one journal with the prefix as its name.
            name: the application whose jobs are numbered; None: none.
            number: the job's number under that name.
            files: what its tasks staged, in order.

        Raises:
            StagedRowsError: a file is missing, or has other bytes; nothing was written.
            InvalidNameError: a name has characters that are not allowed, or is the one of jobs without a name.
            ValueError: there is no such shard.
        """
        check_client(client)
        target = _Target(self._store, client, prefix, bits)
        target.source(target.tree.count - 1)
        rows = [self._rows(client, job, file) for file in files]
        for each in rows:
            target.source(each.shard)
        named = ANONYMOUS if name is None else check_job_name(name, "the job's name")
        return commit(target, Job(self._id(client, job), named, None if name is None else number, rows))

    def abort(self, client: str, job: str) -> None:
        """Remove what the tasks of a job staged, unless it is decided; what a task stages later is refused."""
        self._aborted.append(self._id(client, job))
        for lock in self._locks:
            with lock:
                pass  # a part that is just being written ends, and is removed with the others
        drop(target_of(self._store), self._id(client, job))  # a commit whose caller has given up may just be running

    def _id(self, client: str, job: str) -> str:
        check_client(client)
        return str(Source(client, _checked(job)))

    def _path(self, client: str, job: str, task: str, shard: int) -> str:
        folder = f"task-{self._id(client, job)}-{_checked(task)}"
        return os.path.join(self._store.root, STAGING, folder, f"{shard:03x}.rows")

    def _rows(self, client: str, job: str, file: Staged) -> Rows:
        path = self._path(client, job, file.task, file.shard)
        return Rows(file.shard, path, file.messages, file.size, file.crc32c, f"{file.task} of job {job}")


def _checked(name: str) -> str:
    if not _ID.fullmatch(name):
        raise InvalidNameError(
            f"the id of a job or task must be 1 to 64 hexadecimal digits in lower case, got {name!r}"
        )
    return name
