"""Marks in a row: many marks under one lock, or single marks that follow each other closely.

**A hold** is the lock and the lease, kept from one mark to the next::

           the second mark of a row                the next mark, or a variable
    free ---------------------------> held ------------------------------------+
     ^                                |  ^                                     |
     |                                |  +-------------------------------------+
     +--------------------------------+
        another process waits; any other operation; unused for some milliseconds; _HOLD_S is over

During a hold no other process can change the file or the ledger. So the next mark needs no new lock, and no comparison
of the file with the ledger. It is proven by its bytes, written, checked through the path, and logged like any other
edit (``textqueue.hot.Held``). The thread of ``textqueue.editing.keeper`` ends an unused hold. If another process had to
wait, there is no new hold for a while, so that several workers on one file take turns.

**Crash points.** The ledger lines of a hold carry the state of the file when the hold began. Its end appends a line
with the new state. If the process dies in between, the next session finds the file in another state, and reconciles.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sej.system.disk import File, OsFile, Status
from sej.system.locks import end_lease, leased
from textqueue.editing.edits import OneStatus
from textqueue.editing.keeper import KEEPER
from textqueue.editing.place import Place
from textqueue.editing.queue_file import Edit, QueueFile, Session
from textqueue.format.parser import digest
from textqueue.format.windows import Token, token_of
from textqueue.hot import DONE, Core, Held, essence
from textqueue.hot import reference as _hot_py
from textqueue.ledger.log import EMPTY, Record

__all__ = ["Marks"]

_HOLD_S: Final = 0.1
"""The longest hold. After it, lock and ledger are compared with the files at their paths again."""
_ROW_S: Final = 0.005
"""Marks that follow each other within this time are a row."""
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After another process waited for the file: the time without a hold. It doubles each time."""
_QUEUED: Final = ord("-")


class Marks:
    """Marks in one queue file. Every method uses the queue file's lock between threads."""

    def __init__(self, queue: QueueFile) -> None:
        """Begin without a hold."""
        # A strong reference exists only during a hold, so that a dropped queue is freed some milliseconds later.
        self._weak = weakref.ref(queue)
        self._keeping: QueueFile | None = None
        self._held: Held | _hot_py.Held | None = None
        self._file: File | None = None
        self._log: File | None = None
        self._status = Status(0, 0, 0, 0, 0, False)
        self._until = 0.0
        self._edits = 0  # edits of this hold that the ledger object has counted
        self._high = -1  # the highest position of these edits
        self._began: Token = (0, 0, 0)
        self._token = self._began  # the last state in the chain of edits
        self._ticked = -1
        self._last = 0.0
        self._backoff_until = 0.0
        self._backoff_s = _BACKOFF_FIRST_S

    @property
    def _queue(self) -> QueueFile:
        queue = self._weak()
        assert queue is not None
        return queue

    def one(self, message: Core, control: int) -> bool:
        """Mark a queued message that has not moved.

        Returns:
            Whether it was marked. If not, the caller marks it in another way.
        """
        queue, raw = self._queue, message._raw
        with queue.threads:
            held = self._held
            if held is not None:
                try:
                    done = held.mark(message, control)
                except OSError:
                    self.end()
                    raise
                if done == DONE:
                    return True
                if held.disturbed:
                    self._disturbed()
                self.end()
            if raw[0] != _QUEUED:
                return False
            return self._first(message, control)

    def _first(self, message: Core, control: int) -> bool:
        """Mark a message without a hold. If it is the second mark of a row, a hold begins."""
        queue = self._queue
        raw, position = message._raw, message._position
        try:
            with queue.session() as session:
                if not queue.commit(session, OneStatus([Place(position, raw, message._epoch)], control)):
                    return False
                message._raw, message._epoch = bytes([control]) + raw[1:], queue.ledger.epoch
                self.row(session)
                return True
        except FileNotFoundError:
            return False

    def row(self, session: Session) -> None:
        """Begin a hold if this edit follows another one closely. The caller is in a session."""
        now = time.monotonic()
        if session.alone and now - self._last < _ROW_S and now > self._backoff_until:
            self._hold(session.file, now)
        self._last = now

    def change(self, edit: Edit) -> bool:
        """Make an edit other than a mark within the hold.

        Returns:
            Whether the edit was made. If not, there is no hold, and the caller makes it in a session.

        Raises:
            MessageMovedError: a message was changed or removed since it was read; nothing was written.
        """
        queue = self._queue
        with queue.threads:
            held, file = self._held, self._file
            if held is None or file is None or time.monotonic() > self._until or not leased(file):
                return False
            self._collect(held)
            done = queue.commit(Session(file, self._status, True, True), edit, within=self._began)
            if edit.last is not None:
                self._edits += 1
                self._high = max(self._high, edit.last[0])
            if not done:
                self.end()
            return done

    def _collect(self, held: Held | _hot_py.Held) -> None:
        """Add the marks of the hold so far to the ledger object, and restart their count."""
        if held.marks:
            assert held.last is not None
            position, raw = held.last
            queue = self._queue
            queue.mine = position, raw
            last = Record(raw[0], position, digest(essence(raw)), self._began, EMPTY)
            queue.ledger.count_appended(held.marks, held.log_bytes, last)
            self._edits += held.marks
            self._high = max(self._high, held.high)
            self._held = self._fast()

    # Holding

    def _hold(self, file: File, now: float) -> None:
        queue, status = self._queue, file.status()
        log = queue.ledger.file_to_append()
        if log is None:
            return
        self._began = self._token = token_of(status)
        self._until = now + _HOLD_S
        self._file = queue.kept = file
        self._log = log
        self._status = status
        self._edits, self._high = 0, -1
        self._held = self._fast()
        self._keeping = queue
        self._ticked = -1
        queue.guard.keep(self._finish)
        KEEPER.add(self)

    def _fast(self) -> Held | _hot_py.Held:
        file, log = self._file, self._log
        assert file is not None
        assert log is not None
        kind = Held if isinstance(file, OsFile) and isinstance(log, OsFile) else _hot_py.Held
        tail = b" %d %d %d -" % self._began
        return kind(self._queue.disk, file, log, identity=self._status.identity, tail=tail, until=self._until)

    def _disturbed(self) -> None:
        now = time.monotonic()
        # Another process opens the file now and then: a short pause is enough.
        self._backoff_s = _BACKOFF_FIRST_S if now > self._backoff_until + _BACKOFF_MAX_S else self._backoff_s
        self._backoff_until = now + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_MAX_S)

    def end(self) -> None:
        """End the hold, if there is one."""
        if self._held is not None:
            with self._queue.guard:  # taking the lock ends the hold
                pass

    def _finish(self) -> None:
        """End the hold, except for the lock, which the caller releases."""
        queue, held, file = self._queue, self._held, self._file
        assert held is not None
        assert file is not None
        self._collect(held)
        self._held = self._file = self._log = self._keeping = queue.kept = None
        self._last = time.monotonic()
        try:
            if not self._edits:
                return
            token = token_of(file.status())
            if end_lease(file):  # the lease was valid until now, so no other process had the file open
                queue.chain.add(self._token, token, self._high)
                with suppress(OSError):  # without this line, the next session reconciles
                    queue.ledger.state(token)
                    queue.compact()
        finally:
            end_lease(file)  # closing alone is not enough if a forked child has a copy
            file.close()

    def known(self) -> None:
        """Add the marks of the hold so far to the chain of edits, for a reader."""
        with self._queue.threads:
            if self._held is not None and self._file is not None and leased(self._file):
                token = token_of(self._file.status())
                self._queue.chain.add(self._token, token, max(self._high, self._held.high))
                self._token = token

    # textqueue.editing.keeper.Kept

    def tick(self, *, last: bool = False) -> bool:
        """End the hold if it was not used since the last tick, if another process waits for it, or if ``last``."""
        queue = self._keeping
        if queue is None:
            return True
        if not queue.threads.acquire(blocking=False):
            return False  # a thread is using it
        try:
            if self._held is None or self._file is None:
                return True
            waited_for = not leased(self._file)
            if waited_for:
                self._disturbed()
            count = self._edits + self._held.marks
            if last or waited_for or count == self._ticked:
                self.end()
                return True
            self._ticked = count
            return False
        finally:
            queue.threads.release()

    def forget(self) -> None:
        """Drop the copies of the parent's open files in a forked child."""
        queue, self._held, self._file, self._keeping = self._keeping, None, None, None
        if queue is not None:
            queue.kept = None
            queue.guard.forget()

    # Many

    def many(self, places: Sequence[Place], control: int) -> int | None:
        """Mark many messages: all are proven before the first is written. Return the epoch, or None as ``one`` does."""
        queue = self._queue
        try:
            with queue.session() as session:
                done = bool(places) and queue.commit(session, OneStatus(places, control))
                return queue.ledger.epoch if done else None
        except FileNotFoundError:
            return None
