"""The original's writer, call by call: what it does to the disk from its opening to the unlinking of its lock.

Its source, in order (``lock.go``, ``jnl.go``, ``write.go``): open ``jnl.lck`` with O_CREAT and O_TRUNC, ``flock``
without waiting, list ``jnl/``, open the last segment without O_APPEND, read the last message backwards, seek to the
end; write at its own position; sync and close the segment; unlock, close, unlink. If the last message is damaged it
unlocks first and cuts the segment then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_HEAD = struct.Struct(">QqBb")
_SIZE = struct.Struct(">i")


class OriginalLockedError(Exception):
    """Its ErrLocked."""


class Original:
    """One opening of the original's writer.

    Attributes:
        acknowledged: the values that were flushed.
    """

    def __init__(self, path: str | os.PathLike[str], *, appending: bool = False) -> None:
        """appending: open the segment with O_APPEND, which the original does not."""
        self._path = Path(path)
        self._lock = self._path / "jnl.lck"
        self._flags = os.O_APPEND if appending else 0
        self.acknowledged: list[bytes] = []

    def turn(self, values: list[bytes]) -> Iterator[str]:
        """Open, append the values, close: yields the name of each call after it was made.

        Raises:
            OriginalLockedError: another process has the lock.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        segment = -1
        try:
            yield "open lock"
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise OriginalLockedError from None
            yield "lock"
            names = sorted(name for name in os.listdir(self._path / "jnl") if name.endswith(".jnl"))
            yield "list"
            path = self._path / "jnl" / (names[-1] if names else f"{0:016x}.jnl")
            segment = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | self._flags, 0o644)
            yield "open segment"
            offset = _next_offset(path)
            yield "read the end"
            damaged = offset is None
            if offset is not None:
                os.lseek(segment, 0, os.SEEK_END)
                yield "seek"
                for at, value in enumerate(values):
                    os.write(segment, frame(offset + at, value))
                    self.acknowledged.append(value)
                    yield "write"
                os.fsync(segment)
            os.close(segment)
            segment = -1
            yield "close segment"
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield "unlock"
            os.close(lock)
            lock = -1
            yield "close lock"
            with contextlib.suppress(FileNotFoundError):  # it prints the error
                os.unlink(self._lock)
            yield "unlink"
            if damaged:
                yield from _cut(path)
        finally:
            for fd in (segment, lock):
                if fd >= 0:
                    os.close(fd)


def frame(offset: int, value: bytes) -> bytes:
    """A message without a key."""
    body = _HEAD.pack(offset, time.time_ns(), 0, 0) + _SIZE.pack(len(value)) + value
    return body + _SIZE.pack(len(body) + _SIZE.size)


def _next_offset(path: Path) -> int | None:
    """Return the offset after the last message, which is found backwards; None if the file does not end with one."""
    data = path.read_bytes()
    if not data:
        return int(path.stem, 16)
    if len(data) < _SIZE.size:
        return None
    start = len(data) - _SIZE.unpack(data[-4:])[0]
    if not 0 <= start < len(data) or _end(data, start) is None:
        return None
    offset: int = _HEAD.unpack_from(data, start)[0]
    return offset + 1


def _end(data: bytes, start: int) -> int | None:
    """Return the end of the message at start, or None if no message starts there. The offset is not checked."""
    if len(data) - start < _HEAD.size:
        return None
    key_size: int = _HEAD.unpack_from(data, start)[3]
    at = start + _HEAD.size + key_size
    if key_size < 0 or at + 8 > len(data):
        return None
    size: int = _SIZE.unpack_from(data, at)[0]
    at += _SIZE.size + size
    if size < 0 or at + 4 > len(data) or _SIZE.unpack_from(data, at)[0] != at + 4 - start:
        return None
    return at + _SIZE.size


def _cut(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    yield "read to cut"
    at = 0
    while (end := _end(data, at)) is not None:
        at = end
    os.truncate(path, at)
    yield "cut"


def main(path: str, name: str, turns: int, seed: int, appending: bool) -> None:
    """Turns with stalls between the calls; prints what was acknowledged."""
    rng = random.Random(seed)
    done = 0
    while done < turns:
        original = Original(path, appending=appending)
        values = [b"%s %d %d %s" % (name.encode(), done, at, b"." * rng.randrange(40)) for at in range(3)]
        try:
            for call in original.turn(values):
                if call == "close lock":
                    time.sleep(0.0004 * (done % 3))
                elif rng.random() < 0.02:
                    time.sleep(rng.random() * 0.004)
        except OriginalLockedError:
            time.sleep(0.0005)
            continue
        done += 1
        for value in original.acknowledged:
            print(value.decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "append")
