"""Encoded batches, and staged ones: a synced file in ``tmp/`` with messages as they will be stored in the journal."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence

from sej.codec import Buffer, measure
from sej.errors import DecodeError
from sej.message import BytesLike
from sej.system.checksum import crc32c
from sej.system.disk import Disk


def encode_many(
    first: int,
    values: Iterable[BytesLike],
    keys: Iterable[BytesLike] | None,
    type: int | Sequence[int],
    timestamp: int | Sequence[int] | None,
) -> tuple[bytes, range]:
    """Encode messages with consecutive offsets from first on; return the bytes and the offsets."""
    buffer = Buffer(first, _nothing, threading.Lock())
    buffer.limit = buffer.batch_limit = 2**62
    span = buffer.append_many(values, keys, type, timestamp)
    with buffer.pending() as view:
        return bytes(view), span


def _nothing() -> None:
    """Do nothing: no buffer here is ever full."""


def stage(disk: Disk, path: str, first: int, chunks: Iterable[BytesLike]) -> tuple[int, int]:
    """Stage messages that are encoded with consecutive offsets from first on.

    Returns:
        The number of messages, and the CRC32C of the file. Without messages, it leaves no file.

    Raises:
        DecodeError: a chunk does not consist of whole messages with these offsets; no file is left.
    """
    disk.mkdir(os.path.dirname(path))
    disk.unlink(path)
    file = disk.open(path, "new")  # this syncs the name, because an intent may refer to it
    count = crc = 0
    try:
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
        file.sync()
    except BaseException:
        count = 0
        raise
    finally:
        file.close()
        if not count:
            disk.unlink(path)
    return count, crc
