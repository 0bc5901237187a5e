"""Which bytes of a queue file are on the medium, and writing again those of which that is not known.

A sync that succeeds proves nothing of bytes that were written before the file was opened (see ``sej.system.durable``),
and a queue file is opened for each operation. So a sync goes like this, under the lock of ours:

1. Open the file. From here on a failed writeback fails the sync through this descriptor.
2. Compare the file with ``jobs.tq.durable``, which says how file and ledger looked after the last sync that succeeded:

   ==========================================  =================================================
   since then                                  in doubt
   ==========================================  =================================================
   nothing changed                             nothing
   our programs alone changed the file         the messages that the ledger's lines since name,
                                               and what was appended
   anything else; or there is no such record   the whole file
   ==========================================  =================================================

3. Sync the file, compare what is in doubt with the medium, and write again what differs.
4. Note in the ledger how the file looks now, as after any edit.
5. Sync the file, and the ledger, whose lines never change; compare again; then store the record.

**A save by a person is never written over.** Under the kernel's lease nobody else can open the file between reading and
writing a piece. If another program keeps the file open there is no lease: then only messages of ours are written, each
right after a look that the file is as it was when they were read, as an edit does. The whole file is not: the sync
fails. Where the system leases no files at all, or not to this user, the whole file is written in small pieces of which
each is looked at in the same way.

Whether our programs alone changed the file is decided as everywhere: by the ledger, its epoch, and the state of the
file that its last line says. The record is not synced: after a loss of power an older one is found, or none.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.durable import mend, require_stored
from sej.system.locks import end_lease, leasable, lease, leased
from textqueue.editing.proof import entry_at
from textqueue.format.windows import Token, token_of
from textqueue.ledger.log import Ledger, Mark
from textqueue.ledger.sidecar import as_open_as

__all__ = ["Doubt", "DurableRecord", "require_spans", "rewrite", "sync_names"]

_RECORD_BYTES: Final = 160
_LINE: Final = re.compile(rb"((?:[0-9]{1,20} ){7})([0-9a-f]{8})\n")
_PIECE_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = 1 << 12
_GAP_BYTES: Final = 1 << 12
_REGAIN_S: Final = 0.5
"""How long a renewal waits for a reader that came in between two pieces."""
_PAUSE_S: Final = 0.000_5

_Span = tuple[int, int]
"""From a byte to the byte after the last one."""


class _Known(NamedTuple):
    """How file and ledger looked when both were on the medium."""

    token: Token
    epoch: int
    mark: Mark


class Doubt(NamedTuple):
    """What may not be on the medium.

    Attributes:
        spans: of the queue file, ascending.
        ours: whether they are messages that our programs wrote, and not all of the file.
        names: whether the name of the file may not be, either.
        log: the first byte in doubt of the ledger.
    """

    spans: Sequence[_Span]
    ours: bool
    names: bool
    log: int


class DurableRecord:
    """``jobs.tq.durable``. Used under the queue's lock."""

    def __init__(self, path: str, *, disk: Disk, queue: str) -> None:
        """Name it, and the queue file whose mode it gets; it is made by the first sync."""
        self._path = path
        self._disk = disk
        self._queue = queue

    def doubt(self, file: File, token: Token, ledger: Ledger, *, known: bool) -> Doubt:
        """Compare the file with the record.

        Args:
            file: the queue file, open.
            token: its state.
            ledger: up to date.
            known: whether the ledger says where everything is in that state.
        """
        record = self._load()
        if record is None or record.token[0] != token[0]:
            return Doubt([(0, token[1])], ours=False, names=True, log=0)
        log = ledger.since(record.mark)
        whole = Doubt([(0, token[1])], ours=False, names=False, log=0 if log is None else record.mark.position)
        if log is None:
            return whole
        if not log:
            return whole._replace(spans=[], ours=True) if record.token == token else whole
        if not known or record.epoch != ledger.epoch or record.token[1] > token[1]:
            return whole
        found = _spans(file, [one.position for one in log if one.position >= 0], record.token[1], token[1])
        return whole if found is None else whole._replace(spans=found, ours=True)

    def store(self, token: Token, ledger: Ledger) -> None:
        """Keep the state that was just synced. If this fails, the next sync renews more than necessary."""
        fields = (*token, ledger.epoch, *ledger.mark())
        text = b"".join(b"%d " % field for field in fields)
        line = (b"%s%08x\n" % (text, zlib.crc32(text))).ljust(_RECORD_BYTES, b"\n")
        with suppress(OSError):
            try:
                file = self._disk.open(self._path, "edit")
            except FileNotFoundError:
                file = self._disk.open(self._path, "temp")
                as_open_as(self._queue, file)
            try:
                file.write_at(line, 0)
            finally:
                file.close()

    def _load(self) -> _Known | None:
        try:
            file = self._disk.open(self._path, "read")
        except OSError:
            return None
        try:
            found = _LINE.match(file.read(_RECORD_BYTES, 0))
        finally:
            file.close()
        if found is None or b"%08x" % zlib.crc32(found[1]) != found[2]:
            return None
        inode, size, mtime_ns, epoch, *mark = map(int, found[1].split())
        return _Known((inode, size, mtime_ns), epoch, Mark(*mark))


def _spans(file: File, positions: Sequence[int], size: int, end: int) -> list[_Span] | None:
    """The messages at positions and what was appended after size, ascending, no two overlapping.

    Returns:
        None if no message begins at one of the positions, so that it cannot be told what was changed.
    """
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


def rewrite(file: File, token: Token, doubt: Doubt, *, quick_s: float) -> tuple[Token, bool] | None:
    """Write spans of a queue file again that the medium does not have; the lock is held.

    Args:
        file: the queue file, open for editing.
        token: its state.
        doubt: the spans.
        quick_s: without a lease, somebody else may have written while a piece took longer.

    Returns:
        The state after it, and whether nobody else can have changed the file. None if not all was written: another
        program has the file open, or waits for it, or changed it.
    """
    file.sync()
    refused = not leased(file) and leasable(file) and not leased(file)
    if leased(file):
        for start, end in _joined(doubt.spans):
            for at in range(start, end, _PIECE_BYTES):
                while True:
                    data = file.read(min(_PIECE_BYTES, end - at), at)
                    if leased(file):
                        break
                    if not _regain(file, token):
                        return None
                mend(file, data, at)
                token = token_of(file.status())
        return token, leased(file)
    if refused and not doubt.ours:
        return None
    ours = True
    for start, end in doubt.spans:
        for at in range(start, end, _SMALL_BYTES):
            began = time.monotonic()
            data = file.read(min(_SMALL_BYTES, end - at), at)
            if token_of(file.status()) != token:
                return None
            mend(file, data, at)
            token = token_of(file.status())
            ours = ours and time.monotonic() - began < quick_s
    return token, ours


def require_spans(file: File, doubt: Doubt) -> None:
    """Make sure that the medium has what was in doubt.

    Raises:
        OSError: it has other bytes.
    """
    for start, end in doubt.spans:
        for at in range(start, end, _PIECE_BYTES):
            require_stored(file, file.read(min(_PIECE_BYTES, end - at), at), at)


def _regain(file: File, token: Token) -> bool:
    """Let another program have the file for a moment; whether it is this process' alone again, and as it was."""
    end_lease(file)
    deadline = time.monotonic() + _REGAIN_S
    while not lease(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return token_of(file.status()) == token


def _joined(found: Sequence[_Span]) -> list[_Span]:
    """Neighbours in one piece."""
    joined: list[_Span] = []
    for start, end in found:
        if joined and start - joined[-1][1] < _GAP_BYTES:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def sync_names(disk: Disk, path: str) -> None:
    """An earlier process may have failed between making a name, or a rename, and the sync of its directory."""
    directory = os.path.dirname(os.path.abspath(path))
    disk.sync_dir(directory)
    with suppress(PermissionError):  # then this user cannot have made the directory
        disk.sync_dir(os.path.dirname(directory))
