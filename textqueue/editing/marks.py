"""Marks in a row: many at once under one lock, or one by one in a file that is held from one mark to the next.

A mark that is not the first of a row, or a variable that is set, keeps the lock of ours and the kernel's lease when it
is done. While both are held
no other process can have changed the file or the ledger, so the next mark needs neither a new lock nor a new look at
what others did; it is proven by its bytes, written, looked at through the path and put into the ledger like any other
(``textqueue.hot.Held``).

A hold ends with the first mark that finds another process waiting for the file, with any other operation, when it was
not used for some milliseconds (``textqueue.editing.keeper``), and after ``_HOLD_S`` in any case. After a disturbance
there is no new hold for a while, so that several workers on one file take turns.

The ledger's lines of a hold carry the state of the file when it began, and its end adds a line with the state then. If
the process dies in between, the next one treats the file as changed by another program, and reads it again.
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
"""How long a hold lasts at most: so often the lock and the ledger are seen to be still those at their paths."""
_ROW_S: Final = 0.005
"""Marks that follow each other so closely are a row."""
_APART_FIRST_S: Final = 0.02
_APART_MAX_S: Final = 1.0
"""Seconds without a hold after another process waited for the file; doubled each time."""
_QUEUED: Final = ord("-")


class Marks:
    """Marks in one queue file. Everything here is done under the queue file's lock between threads."""

    def __init__(self, queue: QueueFile) -> None:
        """Nothing is held."""
        # Weak except during a hold: the keeper lets go of this object some milliseconds after the queue is dropped.
        self._weak = weakref.ref(queue)
        self._keeping: QueueFile | None = None
        self._held: Held | _hot_py.Held | None = None
        self._file: File | None = None
        self._log: File | None = None
        self._status = Status(0, 0, 0, 0, 0, False)
        self._until = 0.0
        self._edits = 0  # of this hold that the ledger knows
        self._high = -1  # how far down these went
        self._began: Token = (0, 0, 0)
        self._token = self._began  # the state that the chain of edits was told last
        self._ticked = -1
        self._last = 0.0
        self._apart_until = 0.0
        self._apart_s = _APART_FIRST_S

    @property
    def _queue(self) -> QueueFile:
        queue = self._weak()
        assert queue is not None
        return queue

    def one(self, message: Core, control: int) -> bool:
        """Mark a queued message that stands where it was read.

        Returns:
            False, and the mark is still due, when anything does not go smoothly.
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
        """A mark that is the first of a row, or stands alone; the second of a row begins a hold."""
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
        """An edit was made: hold the file if it follows another one closely. Within the session."""
        now = time.monotonic()
        if session.alone and now - self._last < _ROW_S and now > self._apart_until:
            self._hold(session.file, now)
        self._last = now

    def change(self, edit: Edit) -> bool:
        """Make another edit than a mark within a hold.

        Returns:
            False, and the edit is still due, if nothing is held, or the hold is over.

        Raises:
            MessageMovedError: a message is not there any more; nothing was written.
        """
        queue = self._queue
        with queue.threads:
            held, file = self._held, self._file
            if held is None or file is None or time.monotonic() > self._until or not leased(file):
                return False
            self._take_in(held)
            done = queue.commit(Session(file, self._status, True, True), edit, within=self._began)
            if edit.last is not None:
                self._edits += 1
                self._high = max(self._high, edit.last[0])
            if not done:
                self.end()
            return done

    def _take_in(self, held: Held | _hot_py.Held) -> None:
        """Let the ledger know the marks of a hold so far; the next ones are counted from there."""
        if held.marks:
            assert held.last is not None
            position, raw = held.last
            queue = self._queue
            queue.mine = position, raw
            last = Record(raw[0], position, digest(essence(raw)), self._began, EMPTY)
            queue.ledger.took(held.marks, held.log_bytes, last)
            self._edits += held.marks
            self._high = max(self._high, held.high)
            self._held = self._fast()

    # Holding

    def _hold(self, file: File, now: float) -> None:
        queue, status = self._queue, file.status()
        log = queue.ledger.held()
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
        self._apart_s = _APART_FIRST_S if now > self._apart_until + _APART_MAX_S else self._apart_s
        self._apart_until = now + self._apart_s
        self._apart_s = min(2 * self._apart_s, _APART_MAX_S)

    def end(self) -> None:
        """Give lock and lease back, if they are held."""
        if self._held is not None:
            with self._queue.guard:  # which ends what is held
                pass

    def _finish(self) -> None:
        """The lock is still held when this returns, and the guard's owner lets go of it."""
        queue, held, file = self._queue, self._held, self._file
        assert held is not None
        assert file is not None
        self._take_in(held)
        self._held = self._file = self._log = self._keeping = queue.kept = None
        self._last = time.monotonic()
        try:
            if not self._edits:
                return
            token = token_of(file.status())
            if end_lease(file):  # the lease held until now, so no other process had the file open
                queue.chain.add(self._token, token, self._high)
                with suppress(OSError):  # without this line the next operation looks into what happened
                    queue.ledger.state(token)
                    queue.compact()
        finally:
            end_lease(file)  # closing may not do: a forked child may have a copy
            file.close()

    def known(self) -> None:
        """Tell the chain of edits how far it has come, for a reader who compares."""
        with self._queue.threads:
            if self._held is not None and self._file is not None and leased(self._file):
                token = token_of(self._file.status())
                self._queue.chain.add(self._token, token, max(self._high, self._held.high))
                self._token = token

    # textqueue.editing.keeper.Kept

    def tick(self, *, last: bool = False) -> bool:
        """End a hold that was not used since the last tick, or that another process waits for; or in any case."""
        queue = self._keeping
        if queue is None:
            return True
        if not queue.threads.acquire(blocking=False):
            return False  # at work this moment
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
        """In a forked child: drop the copies of the parent's descriptors."""
        queue, self._held, self._file, self._keeping = self._keeping, None, None, None
        if queue is not None:
            queue.kept = None
            queue.guard.forget()

    # Many

    def many(self, places: Sequence[Place], control: int) -> int | None:
        """As ``one``, for many messages: all are proven before the first is written; -> the epoch, or None."""
        queue = self._queue
        try:
            with queue.session() as session:
                done = bool(places) and queue.commit(session, OneStatus(places, control))
                return queue.ledger.epoch if done else None
        except FileNotFoundError:
            return None
