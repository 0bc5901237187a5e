"""Syncs of a queue file: which bytes are known to be on disk, and writing the others again.

A successful sync says nothing about bytes that were written before the file was opened (see ``sej.system.durable``).
A queue file is opened for each operation. So a sync has these steps, under the queue's lock:

1. Open the file. From now on, a failed writeback makes a sync of this open file fail.
2. Compare the file with the state of file and ledger after the last successful sync of this object:

   ==========================================  =================================================
   changes since then                          bytes in doubt
   ==========================================  =================================================
   none                                        none
   only edits by this library                  the messages of the later lines of the ledger,
                                               and appended bytes
   others; or this is the first sync           the whole file
   ==========================================  =================================================

3. Sync the file, compare the bytes in doubt with the disk, and write again those that differ.
4. Append the new state of the file to the ledger, as after any edit.
5. Sync the file and the ledger. Compare again. Then keep the new state.

**A save by an editor is never overwritten.** A file lease prevents other programs from opening the file between
the read and the write of a piece. There are two cases without a file lease:

- Another program has the file open. Then only messages in doubt are written, each right after a check that the file has
  not changed since it was read. If the whole file is in doubt, the sync fails.
- The system has no file leases, or none for this user. Then the whole file is written in small pieces, with the same
  check.

The ledger tells whether only this library changed the file: by its epoch, and by the state in its last line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.durable import require_stored, write_missing
from sej.system.locks import end_file_lease, has_file_lease, is_file_leasable, take_file_lease
from textqueue.editing.proof import entry_at
from textqueue.format.windows import Token, token_of
from textqueue.log import Ledger

_PIECE_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = 1 << 12
_GAP_BYTES: Final = 1 << 12
_REGAIN_S: Final = 0.5
"""How long a rewrite waits for a reader that opened the file between two pieces."""
_PAUSE_S: Final = 0.000_5

_Span = tuple[int, int]
"""The position of the first byte, and the position after the last byte."""


class _Known(NamedTuple):
    """The states of file and ledger when both were on disk."""

    token: Token
    epoch: int
    reading: int
    position: int


class UnsyncedBytes(NamedTuple):
    """The bytes that may not be on disk.

    Spans of the queue file, ascending; whether they are messages that this library wrote, and not the whole file;
    whether its name is in doubt as well; and the first byte of the ledger that is.
    """

    spans: Sequence[_Span]
    ours: bool
    names: bool
    log: int


class Durable:
    """The state that was synced last, which is used under the queue's lock."""

    def __init__(self) -> None:
        self._known: _Known | None = None

    def doubt(self, file: File, token: Token, ledger: Ledger, *, known: bool) -> UnsyncedBytes:
        """Compare the file, and the ledger if it has the positions for it, with the state that was synced last."""
        record = self._known
        if record is None or record.token[0] != token[0]:
            return UnsyncedBytes([(0, token[1])], ours=False, names=True, log=0)
        log = ledger.since(record.reading, record.position)
        whole = UnsyncedBytes([(0, token[1])], ours=False, names=False, log=0 if log is None else record.position)
        if log is None:
            return whole
        if not log:
            return whole._replace(spans=[], ours=True) if record.token == token else whole
        if not known or record.epoch != ledger.epoch or record.token[1] > token[1]:
            return whole
        found = _spans(file, [one.position for one in log if one.position >= 0], record.token[1], token[1])
        return whole if found is None else whole._replace(spans=found, ours=True)

    def store(self, token: Token, ledger: Ledger) -> None:
        """Store the state that was just synced."""
        self._known = _Known(token, ledger.epoch, *ledger.place())


def _spans(file: File, positions: Sequence[int], size: int, end: int) -> list[_Span] | None:
    """Return the spans of messages, and of the bytes after size; None if a position has no message."""
    found: list[_Span] = []
    for position in sorted(set(positions)):
        if position >= size:
            break
        raw = entry_at(file, position)
        if not raw:
            return None
        found.append((position, position + len(raw)))
    if size < end:
        found.append((size, end))
    return found


def rewrite(file: File, token: Token, doubt: UnsyncedBytes, *, quick_s: float) -> tuple[Token, bool] | None:
    """Write spans of a queue file again if they differ from the disk. The caller holds the lock.

    Returns the state after that, and whether it is certain that no other program changed the file: without a lease, it
    may have if a piece takes longer than quick_s. None: a part was not written, because another program has the file
    open.
    """
    file.sync()
    leased = has_file_lease(file)
    if not leased and is_file_leasable(file) and not (leased := has_file_lease(file)) and not doubt.ours:
        return None
    ours, size = True, _PIECE_BYTES if leased else _SMALL_BYTES
    for start, end in _joined(doubt.spans) if leased else doubt.spans:
        for at in range(start, end, size):
            began = time.monotonic()
            data = file.read(min(size, end - at), at)
            while leased and not has_file_lease(file):
                if not _regain(file, token):
                    return None
                data = file.read(min(size, end - at), at)
            if not leased and token_of(file.status()) != token:
                return None
            write_missing(file, data, at)
            token = token_of(file.status())
            ours = ours and (leased or time.monotonic() - began < quick_s)
    return token, has_file_lease(file) if leased else ours


def require_spans(file: File, doubt: UnsyncedBytes) -> None:
    """Check that the bytes that were in doubt are on disk; otherwise raise an OSError."""
    for start, end in doubt.spans:
        for at in range(start, end, _PIECE_BYTES):
            require_stored(file, file.read(min(_PIECE_BYTES, end - at), at), at)


def _regain(file: File, token: Token) -> bool:
    """Let another program use the file; return whether the file lease was taken again, and the file is unchanged."""
    end_file_lease(file)
    deadline = time.monotonic() + _REGAIN_S
    while not take_file_lease(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return token_of(file.status()) == token


def _joined(found: Sequence[_Span]) -> list[_Span]:
    """Merge spans that are close to each other."""
    joined: list[_Span] = []
    for start, end in found:
        if joined and start - joined[-1][1] < _GAP_BYTES:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def sync_names(disk: Disk, path: str) -> None:
    """Sync the directories, because an earlier process may have died before it synced a new name or a rename."""
    directory = os.path.dirname(os.path.abspath(path))
    disk.sync_dir(directory)
    with suppress(PermissionError):  # then this user did not create the directory
        disk.sync_dir(os.path.dirname(directory))
