"""A writer that can idle, for an owner that has more journals than a process may have open files.

Closing a writer syncs, and opening one reads the journal's end. Both cost far more than an append. An idle writer has
closed its files and released the lock, but remembers the journal's end. Waking checks that the end has not moved.

::

    awake --- go_idle(): flush, close files, release lock ---> idle
      ^                                                         |
      +------- wake(): the journal is unchanged ----------------+--- wake(): another process wrote ---> closed

An idle writer still syncs, also in the background, because any process may sync a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sej.codec import Buffer
from sej.message import BytesLike, Message
from sej.writing.writer import Writer


class IdleWriter:
    """A :class:`sej.Writer` whose owner lets it idle, and wakes it before the next append.

    Attributes:
        life: its state and its mutex.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Open a journal for appending. The writer is awake. Arguments and errors as for :class:`sej.Writer`."""
        self._writer = Writer(path, **options)
        self._tail = self._writer.tail
        self.life = self._tail.life
        if not TYPE_CHECKING:
            self.append = self._writer.append  # the writer's own method saves a call per message

    @property
    def idle(self) -> bool:
        """Whether the writer has closed its files and released the lock."""
        return self._tail.last.left

    @property
    def buffer(self) -> Buffer | None:
        """The buffer, if :meth:`append` does nothing more than its ``append``: with ``"disk"`` it also waits."""
        return None if self._tail.durability == "disk" else self._tail.buffer

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._tail.offset

    @property
    def durable_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._tail.syncer.durable_offset

    def append(self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None) -> int:
        """Append one message, as :meth:`sej.Writer.append` does."""
        return self._writer.append(value, key, type, timestamp)

    def append_messages(self, messages: Iterable[Message]) -> range:
        """Append messages, as :meth:`sej.Writer.append_messages` does."""
        return self._writer.append_messages(messages)

    def append_many(
        self, values: list[Any], keys: list[Any], type: int | list[int], timestamp: int | list[int]
    ) -> range:
        """Append many messages, as :meth:`sej.Writer.append_many` does."""
        return self._writer.append_many(values, keys, type, timestamp)

    def flush(self) -> None:
        """Write everything to the kernel. An idle writer has already done so."""
        self._tail.flush()

    def sync(self) -> None:
        """Sync everything appended so far."""
        self._tail.sync()

    def commit(self, offset: int) -> None:
        """Return once every message below offset is durable.

        Raises:
            WriterFailedError: a sync failed.
        """
        self._tail.syncer.commit(offset)

    def go_idle(self) -> None:
        """Write everything to the kernel, close the files and release the lock. With ``"disk"``, sync first.

        Raises:
            WriterFailedError: a write or sync failed, now or before.
        """
        tail = self._tail
        if tail.durability == "disk":
            tail.sync()
        tail.alone(self._leave)

    def _leave(self) -> None:
        tail = self._tail
        tail.buffer.steady(None, None, 0, 0)  # a steady buffer holds a method of the file, and so keeps it open
        tail.last.leave(tail.buffer.position)
        tail.lock.release()

    def wake(self) -> bool:
        """Take the lock again, and continue if no other process has written in the meantime.

        Returns:
            Whether this writer continues. If not, another process has written, or has left a batch to be rolled
            forward. Then this writer is closed, and the owner opens a new one.

        Raises:
            LockedError: another writer has the journal; this writer stays idle.
        """
        tail = self._tail
        tail.lock.acquire()
        try:
            if self._is_unchanged():
                with tail.life.mutex:
                    tail.last.take_up(tail.lock)
                    tail.set_limits()
                return True
        except BaseException:
            tail.lock.release()
            raise
        tail.lock.release()
        tail.abandon()
        return False

    def _is_unchanged(self) -> bool:
        tail = self._tail
        position = tail.buffer.position
        if not tail.last.is_unchanged(position):
            return False
        if tail.lock.undisturbed:
            return True
        directory = tail.directory
        if position and directory.disk.status(directory.segment(tail.offset).path) is not None:
            return False  # another writer continued after the segment
        txn = directory.at("txn")
        return directory.disk.status(txn) is None or not any(
            name.endswith(".intent") for name in directory.disk.list(txn)
        )

    def close(self) -> None:
        """Sync the rest and close. If the writer is idle, the next opening extends the index."""
        self._tail.close()
