"""Staged messages: a synced file in ``tmp/`` with messages as they will be stored in the journal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from sej.codec import Buffer, measure
from sej.errors import DecodeError
from sej.message import BytesLike
from sej.system.checksum import crc32c
from sej.system.disk import Disk, File

_T = TypeVar("_T")
_BATCH_BYTES: Final = 1 << 18


def stage(
    disk: Disk,
    path: str,
    first: int,
    values: Iterable[BytesLike],
    keys: Iterable[BytesLike] | None,
    type: int | Sequence[int],
    timestamp: int | Sequence[int] | None,
) -> range:
    """Stage messages with consecutive offsets from first on. If there are none, no file is left.

    Returns:
        The offsets.
    """

    def write(file: File) -> range:
        def drain() -> None:
            with buffer.pending() as view:
                file.write(view)
            buffer.clear()

        buffer = Buffer(first, drain, threading.Lock())
        buffer.limit = 1
        buffer.batch_limit = _BATCH_BYTES
        return buffer.append_many(values, keys, type, timestamp)

    span = _staged(disk, path, write)
    if not span:
        disk.unlink(path)
    return span


def stage_encoded(disk: Disk, path: str, first: int, chunks: Iterable[BytesLike]) -> tuple[int, int]:
    """Stage messages that are already encoded with consecutive offsets from first on.

    Returns:
        The number of messages, and the CRC32C of the file.

    Raises:
        DecodeError: a chunk does not consist of whole messages with these offsets; no file is left.
    """

    def write(file: File) -> tuple[int, int]:
        count = crc = 0
        for chunk in chunks:
            run = measure(chunk, 0, len(chunk), first + count, max(len(chunk), 1))
            if run.position != len(chunk):
                raise DecodeError(
                    f"a chunk must consist of whole messages with offsets from {first + count} on, got"
                    f" {run.messages} such messages in {run.position} of {len(chunk)} bytes",
                    position=run.position,
                    offset=first + count,
                )
            file.write(chunk)
            crc = crc32c(chunk, crc)
            count += run.messages
        return count, crc

    return _staged(disk, path, write)


def _staged(disk: Disk, path: str, write: Callable[[File], _T]) -> _T:
    disk.mkdir(os.path.dirname(path))
    disk.unlink(path)
    file = disk.open(path, "new")  # this syncs the name, because an intent may refer to it
    try:
        result = write(file)
        file.sync()
    except BaseException:
        file.close()
        disk.unlink(path)
        raise
    file.close()
    return result
