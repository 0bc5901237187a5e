"""Quick edits of one message: what a claim and its end usually need.

A session has the lock while it opens the file, compares it with the ledger, finds the message and prepares the edit.
Here the caller has found and prepared it before. Under the lock there is one call, ``textqueue.hot.Single``, which
proves as much as a session does, and writes. So several workers find, prepare and count concurrently.

It does nothing if anything is unusual: another program has the file open or has changed it, a message has moved, or
the files have not been compared with their paths for a moment. The caller then makes the edit in a session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from sej.system.disk import OsDisk, OsFile
from textqueue.editing.place import Change, Place
from textqueue.editing.queue_file import QueueFile
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import digest
from textqueue.hot import DONE, Single, essence
from textqueue.hot import single as _single_py
from textqueue.hot.single import BUSY, Choice, Last
from textqueue.ledger.records import Record

_ATTEMPTS: Final = 6
_PAUSE_S: Final = 0.000_05
"""If other workers use the lock, it tries so often, with pauses that double. Then a session waits for the lock."""
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


class Quick:
    """Edits in one queue file: a context manager that reads what other processes wrote to the ledger.

    In the block, no thread uses the queue file, and a signal handler is refused. The value is whether quick edits are
    possible now.
    """

    def __init__(self, queue: QueueFile) -> None:
        """Take the file; nothing is opened."""
        self._queue = queue
        self._single: Single | _single_py.Single | None = None
        self._files: tuple[object, ...] = ()
        self._is_busy = False
        self._attempts = 0
        self._pause_s = _PAUSE_S

    def __enter__(self) -> bool:
        """Read the new lines of the ledger."""
        queue = self._queue
        queue.check_open()
        queue.threads.acquire()
        try:
            queue.check_open()
            queue.thread = threading.get_ident()
            self._attempts, self._pause_s = 0, _PAUSE_S
            return self._is_ready()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Let other threads use the queue file."""
        self._queue.thread = 0
        self._queue.threads.release()

    def _is_ready(self) -> bool:
        queue = self._queue
        lock = queue.guard.settled()
        if lock is None or not queue.is_settled():
            return False
        log = queue.ledger.file
        files = lock, log, queue.real_path
        if files != self._files and log is not None:
            system = isinstance(queue.disk, OsDisk) and isinstance(lock, OsFile) and isinstance(log, OsFile)
            self._single = (Single if system else _single_py.Single)(queue.disk, lock, log, queue.path, queue.real_path)
            self._files = files
        return log is not None

    def edit(self, choices: Sequence[Choice], *, ordered: bool) -> int:
        """Edit the first of some messages that is as it was found. The caller is in the block.

        Args:
            choices: the messages, in the order of the file, and their edits; at least one.
            ordered: whether a message before it may not have been put back into the queue.

        Returns:
            The number of the message; -1: nothing was done.

        Raises:
            OSError: a read or write failed.
        """
        queue, ledger, single = self._queue, self._queue.ledger, self._single
        token, last = ledger.token, self._last()
        if single is None or token is None or last is None:
            return -1
        # The caller has chosen by what the ledger object knows. So it must not read more lines before the edit.
        result = single.edit(ledger.read_to, token, last, choices, ordered=ordered)
        if result != DONE:
            self._is_busy = result == BUSY
            return -1
        position, _, new, head, owner = choices[single.chosen]
        before, now = single.token
        if single.line_bytes:
            ledger.count(Record(head[0], position, head[head.rfind(b" ") + 1 :], now, owner), single.line_bytes)
        else:
            ledger.refresh()
        queue.keep(position, new)
        queue.chain.add(before, now, position)
        return single.chosen

    def change(self, place: Place, change: Callable[[bytes], Change | None], claim: bytes) -> Place | None:
        """Change a queued message that has a claim of this process.

        Args:
            place: the message as it was read.
            change: as for ``Source.edit``.
            claim: the owner in the ledger.

        Returns:
            The message as it is now; None: nothing was done.

        Raises:
            OSError: a read or write failed.
        """
        position, raw, epoch = place
        ledger = self._queue.ledger
        with self as ready:
            while ready:
                held = ledger.claims.get(position)
                if held is None or held.owner != claim or epoch != ledger.epoch or raw[0] != _QUEUED:
                    return None
                made = change(raw)
                if made is None:
                    return None
                new = changed(raw, made.writes)
                choice = position, raw, new, head_of(made.kind, position, new), made.owner
                if self.edit([choice], ordered=False) >= 0:
                    return Place(position, new, epoch)
                ready = self.again()
        return None

    def again(self) -> bool:
        """Return whether another attempt may succeed, because other workers use the lock. If so, wait for it first."""
        self._attempts += 1
        if self._attempts == _ATTEMPTS or not (self._is_busy or self._queue.ledger.has_grown()):
            return False
        if self._is_busy:
            time.sleep(self._pause_s)
            self._pause_s *= 2
        self._is_busy = False
        return self._is_ready()

    def _last(self) -> Last | None:
        last, mine = self._queue.ledger.last, self._queue.mine
        if last is None:
            return None
        raw = mine[1] if mine is not None and mine[0] == last.position else b""
        return Last(last.kind, last.position, last.digest, last.owner, raw)


def changed(raw: bytes, writes: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a message after some writes, at positions relative to its control byte."""
    if not writes:
        return raw
    new = bytearray(raw)
    for at, data in writes:
        new[at : at + len(data)] = data
    return bytes(new)


def head_of(kind: int, position: int, raw: bytes) -> bytes:
    """Return the start of the ledger line of an edit, from its kind to the digest of the message."""
    return b"%c %d %s" % (kind, position, digest(essence(raw)))
