"""Sidecars: the files next to a queue file, such as its lock and its ledger.

They are hidden: the ledger of ``jobs.tq`` is ``.jobs.tq.log``. A sidecar is named after the real file, not after a
symbolic link to it. So all programs use the same lock and ledger, whatever path they open. If the link leads to
another file later, the next operation uses the sidecars of that file.

A new sidecar gets the owner, group and mode of the queue file. So every user who may edit the queue may lock it, and
no other user can read messages in a sidecar.

**The lock**, ``.jobs.tq.lck``: every program that uses this library takes it for one operation. It relies on
``flock``. It promises that within ``with guard:`` no other thread, process or queue object changes the file through
this library. Editors do not know this lock.

This library never removes the lock file. If another program removes or replaces it, operations use the new file after
at most ``_LOOK_S``. A forked child opens the lock file again, because it would share an open file's lock with its
parent.

**The intent of a drain**, ``.jobs.tq.drain``: the batch that is being moved into a journal, for the run after a crash.

The file is one JSON object after a checksum (:mod:`sej.system.sealed`), and is replaced atomically:

- ``producer`` and ``number`` identify the batch in the journal;
- ``messages`` are the raw bytes of its messages, ``owners`` their claims, and ``keys`` their keys.

An intent without messages is closed: no batch is being moved.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Self

from sej.fork import notice_fork, watch_forks
from sej.system.disk import Disk, File, absolute_name
from sej.system.lifecycle import owns
from sej.system.locks import is_current
from sej.system.sealed import SealedFile, seal, whole
from textqueue.errors import FileInUseError, TextQueueError
from textqueue.format.parser import decode, encode

_LOCK: Final = ".lck"


def noted(path: str, note: str) -> str:
    """Return how a note names a file: relative to the directory of the note if it is in there, so that it may move."""
    path, folder = os.path.abspath(path), os.path.dirname(os.path.abspath(note))
    return os.path.relpath(path, folder) if path.startswith(folder + os.sep) else path


def named(name: str, note: str) -> str:
    """Return the path of a file that a note names."""
    return os.path.join(os.path.dirname(os.path.abspath(note)), name)


def real_path(path: str) -> str:
    """Return the path of the real file, if path is a symbolic link; otherwise path."""
    return os.path.realpath(path) if os.path.islink(path) else path


def sidecar_path(path: str, ending: str) -> str:
    """Return the path of a hidden sidecar of a file."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}{ending}")


def open_sidecar(disk: Disk, path: str, queue: str | None) -> File:
    """Open a sidecar for appending. A new one gets the owner and mode of the queue file."""
    new = queue is not None and disk.status(path) is None
    file = disk.open(path, "append")
    if new and queue is not None:
        copy_access(queue, file)
    return file


def replace_sidecar(disk: Disk, path: str, data: bytes, queue: str | None) -> None:
    """Replace a sidecar atomically. The new file gets the owner and mode of the queue file."""
    temporary = path + ".tmp"
    with temporary_file(disk, temporary, queue) as file:
        file.write(data)
    disk.rename(temporary, path)


@contextmanager
def temporary_file(disk: Disk, path: str, queue: str | None, mode: int = 0o666) -> Iterator[File]:
    """Create a file that will be renamed, with the owner and mode of a queue file. At the end it is synced."""
    disk.unlink(path)  # after a crash within a rename, both names may be one file, which must not be overwritten
    with disk.open(path, "temp") as file:
        if queue is not None:
            copy_access(queue, file, mode)
        yield file
        file.sync()


def copy_access(queue: str, file: File, mode: int = 0o666) -> None:
    """Give a new file the owner, group and mode of a queue file, as far as the system permits."""
    with suppress(OSError, ValueError):  # ValueError: a file without a descriptor
        fd = file.fileno()
        status = os.stat(queue)
        mode &= status.st_mode
        if (os.fstat(fd).st_uid, os.fstat(fd).st_gid) != (status.st_uid, status.st_gid):
            try:
                os.fchown(fd, status.st_uid, status.st_gid)
            except OSError:
                try:
                    os.fchown(fd, -1, status.st_gid)
                except OSError:
                    mode &= ~0o070  # the group is a different one
        os.fchmod(fd, mode)


_LOOK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.000_05
_LONGEST_PAUSE_S: Final = 0.005


def interrupted(path: str) -> FileInUseError:
    """Return the error of a signal handler that uses a queue while it interrupts a call of it."""
    return FileInUseError(
        "a signal handler interrupted a call of this queue, and cannot use the queue before that call ends; set a flag"
        " in the handler, or raise an exception",
        path=path,
    )


class Guard:
    """The lock of a queue file, for short times: a context manager, reentrant within a thread. It names the sidecars.

    The path of the queue file without a symbolic link (real_path) can change between two sessions only.
    """

    real_path = ""

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None, timeout: float = 60.0) -> None:
        """Take a queue file, the one whose owner and mode a new lock file gets, and how long others may hold it."""
        self._given = absolute_name(path)
        self._disk = disk
        self._queue = queue
        self._timeout = timeout
        self.threads = threading.RLock()
        self._depth = 0
        self._locked = False  # between the two, a signal handler must not use the file
        self._file: File | None = None
        self._looked = 0.0  # when the open file was last compared with the file at the path
        self.look()
        watch_forks(self)

    def path(self, ending: str = _LOCK) -> str:
        """Return the path of a sidecar; without an ending, of the lock file."""
        return self._hidden + ending

    def look(self) -> bool:
        """Find out where a symbolic link leads; return whether it leads to another file now, with other sidecars."""
        path = real_path(self._given)
        if path == self.real_path:
            return False
        self.real_path, self._hidden, self._is_link = path, sidecar_path(path, ""), path != self._given
        self.log = self.path(".log")
        return True

    @property
    def is_open(self) -> bool:
        """Whether this process has the lock file open, so that no process moves the files next to the queue."""
        return self._file is not None

    def __enter__(self) -> Self:
        """Lock.

        It raises a FileInUseError if another process holds the lock for longer than the timeout, or in a signal handler
        that interrupted this method.
        """
        notice_fork()
        self.threads.acquire()
        if self._depth:
            if not self._locked:
                self.threads.release()
                raise interrupted(self.path())
            self._depth += 1
            return self
        self._depth = 1
        self._locked = False
        try:
            now = time.monotonic()
            if self._file is None or self._is_link or now - self._looked > _LOOK_S:
                self._take(now)
            elif not self._file.lock():
                self._wait(self._file, now + self._timeout)
            self._locked = True
        except BaseException:
            if self._file is not None:
                self._file.unlock()  # it may have been taken before the interrupt
            self._depth = 0
            self.threads.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                self._locked = False
                if self._file is not None:
                    self._file.unlock()
        except BaseException:  # a signal handler raised it before the lock was released
            self._close()
            raise
        finally:
            self._depth -= 1
            self.threads.release()

    def close(self) -> None:
        """Close the lock file. The next operation opens it again."""
        with self.threads:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _after_fork(self) -> None:
        """In a forked child, close the copy of the descriptor, without unlocking the lock of the parent.

        A thread that does not exist here may have held the mutex.
        """
        self._close()
        if not owns(self.threads):
            self.threads, self._depth = threading.RLock(), 0

    def _take(self, now: float) -> None:
        look = now - self._looked > _LOOK_S
        if self.look():
            self.close()
        while True:
            if self._file is None:
                self._file, look = open_sidecar(self._disk, self.path(), self._queue), True
            if not self._file.lock():
                self._wait(self._file, now + self._timeout)
            if not look:
                return
            if is_current(self._disk, self._file.status().identity, self.path()):
                self._looked = now
                return
            self.close()  # the file was removed or replaced: other processes lock the new one

    def _wait(self, file: File, deadline: float) -> None:
        pause = _FIRST_PAUSE_S
        while not file.lock():
            if time.monotonic() >= deadline:
                raise FileInUseError(
                    f"another program has held this lock for {self._timeout:g} s, expected less than a second; find"
                    " it with lsof or fuser, and end it",
                    path=self.path(),
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)


INTENT_BYTES: Final = 1 << 30
"""The largest intent. JSON needs up to six characters for each byte of a message."""


class Intent(NamedTuple):
    """A batch: its producer and number, and the bytes, claims and keys of its messages."""

    producer: str
    number: int
    raws: list[bytes]
    owners: list[bytes]
    keys: list[bytes] | None


def write_intent(disk: Disk, path: str, intent: Intent, queue: str) -> None:
    """Replace the intent atomically. The file gets the owner and mode of the queue file."""
    fields: dict[str, Any] = {"producer": intent.producer, "number": intent.number}
    fields["messages"] = [decode(raw) for raw in intent.raws]
    fields["owners"] = [decode(owner) for owner in intent.owners]
    fields["keys"] = None if intent.keys is None else [decode(key) for key in intent.keys]
    data = seal(path, fields)
    if len(data) > INTENT_BYTES:
        raise TextQueueError(
            f"a batch must be at most {INTENT_BYTES} bytes, got {len(data)} bytes in {len(intent.raws)} messages:"
            " drain fewer messages at a time, with batch=",
            path=path,
        )
    replace_sidecar(disk, path, data, queue)


def read_intent(disk: Disk, path: str) -> Intent:
    """Read the intent. If the file is missing, the result is a closed intent with a new producer name."""
    file = SealedFile(
        disk,
        path,
        "the note of an interrupted drain",
        "compare the end of the journal with the queue, mark what is in the journal, then remove this file",
        max_bytes=INTENT_BYTES,
        error=TextQueueError,
    )
    if (fields := file.load()) is None:
        # A new name: after the file was lost, new batches must not look like old ones.
        return Intent(f"textqueue-{uuid.uuid4().hex}", 0, [], [], None)
    with file.checking():
        raws, owners = (list(map(encode, fields[name])) for name in ("messages", "owners"))
        keys = None if fields["keys"] is None else list(map(encode, fields["keys"]))
        return Intent(str(fields["producer"]), whole(fields["number"]), raws, owners, keys)
