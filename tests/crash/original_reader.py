"""The original's scanner, call by call: how it follows a journal.

Its source, in order (``scan.go``, ``watch.go``, ``jnl.go``): watch ``jnl/`` by inotify, list it, watch the last segment
by an inotify instance of its own, open it. A segment that is not the last one is opened without a watch. At the end of
the last one it opens the file again at its position, then waits for one of two events: the segment was written, or a
name in ``jnl/`` was created (or moved into it) or deleted. After the second it lists ``jnl/`` and opens the segment of
the next offset, from its first byte. A message with another offset than the next one ends it.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATED, _DELETED, _MODIFIED = 0x100 | 0x80, 0x200 | 0x400, 0x2
_MASK = 0x80 | 0x40 | 0x100 | 0x4 | 0x2 | 0x800 | 0x200 | 0x400  # of gopkg.in/fsnotify.v1
_EVENT = struct.Struct("iIII")
_HEAD = struct.Struct(">QqBb")
_SIZE = struct.Struct(">i")


class ScanOffsetError(Exception):
    """Its error of this name."""


class _Watcher:
    def __init__(self, path: Path, wanted: int) -> None:
        self.fd = _LIBC.inotify_init1(os.O_CLOEXEC)
        self._wanted = wanted
        if self.fd < 0 or _LIBC.inotify_add_watch(self.fd, os.fsencode(path), _MASK) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def take(self) -> bool:
        """Return whether the events that have come include one that it acts on; they are gone then."""
        found = False
        while select.select([self.fd], [], [], 0)[0]:
            events = os.read(self.fd, 65536)
            at = 0
            while at < len(events):
                _, mask, _, size = _EVENT.unpack_from(events, at)
                found = found or bool(mask & self._wanted)
                at += _EVENT.size + size
        return found

    def close(self) -> None:
        os.close(self.fd)


class OriginalReader:
    """A scanner that follows.

    Attributes:
        offset: the next offset.
        on_wait: called before it waits, when it acts on every later event.
    """

    on_wait: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self._jnl = Path(path) / "jnl"
        self._directory = _Watcher(self._jnl, _CREATED | _DELETED)
        self._name, last = self._find(offset)
        self._watch = _Watcher(self._name, _MODIFIED) if last else None
        self._file = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        self._position = 0
        self.offset = int(self._name.stem, 16)
        while self.offset < offset and self.scan(None):
            pass

    def _find(self, offset: int) -> tuple[Path, bool]:
        names = sorted(name for name in os.listdir(self._jnl) if name.endswith(".jnl"))
        found = [name for name in names if int(name[:16], 16) <= offset] or names[:1]
        return self._jnl / found[-1], found[-1] == names[-1]

    def scan(self, stop: int | None) -> bool:
        """Read one message; wait for it, unless the descriptor stop gets readable first.

        Raises:
            ScanOffsetError: it has another offset than the next one.
        """
        while True:
            self._directory.take()
            if self._watch is not None:
                self._watch.take()
            offset = self._read()
            if offset is not None:
                if offset != self.offset:
                    raise ScanOffsetError(f"{self._name.name}: expected {self.offset}, got {offset}")
                self.offset += 1
                return True
            if self._find(self._first())[0] != self._find(2**63)[0]:
                self._reopen()
                continue
            if stop is None:
                return False
            if not self._wait(stop):
                return False

    def _first(self) -> int:
        return int(self._name.stem, 16)

    def _wait(self, stop: int) -> bool:
        assert self._watch is not None
        self.on_wait()
        while True:
            ready = select.select([self._directory.fd, self._watch.fd, stop], [], [])[0]
            if self._directory.fd in ready and self._directory.take():
                self._reopen()
                return True
            if self._watch.fd in ready and self._watch.take():
                return True
            if stop in ready:
                return False

    def _reopen(self) -> None:
        self._name, last = self._find(self.offset)
        watch = _Watcher(self._name, _MODIFIED) if last else None
        file = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        os.close(self._file)
        if self._watch is not None:
            self._watch.close()
        self._file, self._watch, self._position = file, watch, 0

    def _read(self) -> int | None:
        """Return the offset of the message at its position, and pass it; None if no whole message is there."""
        if self._watch is not None:  # at the end of the last segment it opens the file again
            file = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
            os.close(self._file)
            self._file = file
        head = os.pread(self._file, _HEAD.size, self._position)
        if len(head) < _HEAD.size:
            return None
        offset, _, _, key_size = _HEAD.unpack(head)
        at = self._position + _HEAD.size + key_size
        size = os.pread(self._file, _SIZE.size, at)
        if len(size) < _SIZE.size:
            return None
        at += _SIZE.size + _SIZE.unpack(size)[0]
        if len(os.pread(self._file, _SIZE.size, at)) < _SIZE.size:
            return None
        self._position = at + _SIZE.size
        return int(offset)


def main(path: str, start: int) -> None:
    """Follow until standard input ends; print "waits" before the first wait, each offset, and the error."""
    reader = OriginalReader(path, start)

    def waits() -> None:
        reader.on_wait = lambda: None
        print("waits", flush=True)

    reader.on_wait = waits
    try:
        while reader.scan(0):
            print(reader.offset - 1, flush=True)
    except ScanOffsetError as error:
        print(f"ScanOffsetError: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
