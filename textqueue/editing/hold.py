"""A hold: the lock, the lease and the open file of a queue, kept from one mark to the next.

A hold is in place exactly while ``Guard.kept`` is the hold::

    created --begin--> in place --finish--> over
                          |
                          +------drop-----> over

- One store puts it in place, and one store removes it. So an exception of a signal handler finds it complete or absent.
- While it is in place, the session that began it does not close the file, and the keeper knows it.
- The next operation of the same queue object, or the keeper, ends it. ``finish`` writes the last line of the ledger,
  ends the lease and closes the file. If it fails or is interrupted, ``drop`` leaves what a process that dies leaves: no
  lease, no lock, and a ledger that tells the next session to reconcile.

The ledger object counts the marks of a hold later (``Ledger.count_appended``). If an interrupt prevents that, the
ledger object reads these lines from its file. It must never count them twice.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from sej.system.disk import File, OsFile
from sej.system.locks import end_lease, leased
from textqueue.editing.keeper import KEEPER
from textqueue.editing.queue_file import Edit, QueueFile, Session
from textqueue.format.kinds import SET
from textqueue.format.parser import digest
from textqueue.format.windows import token_of
from textqueue.hot import Held, essence
from textqueue.hot import reference as _hot_py
from textqueue.ledger.records import EMPTY, Record

_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After another process waited for the file: the time without a hold. It doubles each time."""


class Pace:
    """Which marks of a queue file may begin a hold.

    Attributes:
        last: the time of the last edit.
        backoff_until: the time before which no hold begins.
    """

    def __init__(self) -> None:
        """Begin without an edit."""
        self.last = 0.0
        self.backoff_until = 0.0
        self._backoff_s = _BACKOFF_FIRST_S

    def disturbed(self) -> None:
        """Another process waited for the file."""
        now = time.monotonic()
        # Another process opens the file now and then: a short pause is enough.
        self._backoff_s = _BACKOFF_FIRST_S if now > self.backoff_until + _BACKOFF_MAX_S else self._backoff_s
        self.backoff_until = now + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_MAX_S)


class Hold:
    """One hold. All but ``tick`` and ``forget`` is called under the queue file's lock between threads.

    Attributes:
        file: the queue file, open and leased.
        marks: the marks and variables since the ledger object counted them last; see :class:`textqueue.hot.Held`.
    """

    def __init__(self, queue: QueueFile, pace: Pace, file: File, log: File, until: float) -> None:
        """Take over the open files of the queue and its ledger, within a session."""
        self.file = file
        self._queue = queue
        self._pace = pace
        self._log = log
        self._until = until
        self._status = file.status()
        self._began = self._token = token_of(self._status)  # the second: the last state in the chain of edits
        self._edits = 0  # edits that the ledger object has counted
        self._high = -1  # the highest position of these edits
        self._ticked = -1
        self._lost = False  # whether edits have no line in the ledger
        self.marks = self._new_marks()

    def _new_marks(self) -> Held | _hot_py.Held:
        kind = Held if isinstance(self.file, OsFile) and isinstance(self._log, OsFile) else _hot_py.Held
        tail = b" %d %d %d -" % self._began
        identity = self._status.identity
        return kind(self._queue.disk, self.file, self._log, identity=identity, tail=tail, until=self._until)

    def begin(self) -> None:
        """Put it in place."""
        KEEPER.add(self)  # before: an interrupt leaves nothing in place that the keeper does not know
        self._queue.guard.kept = self

    def change(self, edit: Edit) -> bool:
        """Make an edit other than a mark or a variable.

        Returns:
            Whether the edit was made. If not, the hold is over, and the caller makes it in a session.

        Raises:
            MessageMovedError: a message was changed or removed since it was read; nothing was written.
        """
        if time.monotonic() > self._until or not leased(self.file):
            return False
        self._collect()
        done = self._queue.commit(Session(self.file, self._status, True, True), edit, within=self._began)
        if edit.last is not None:
            self._edits += 1
            self._high = max(self._high, edit.last[0])
        if not done:
            self.end()
        return done

    def _collect(self) -> None:
        """Add the edits in ``marks`` to the ledger object, and restart their count."""
        marks = self.marks
        if marks.last is None:
            return
        marks.flush()
        self._lost = self._lost or marks.lost
        last = self._record(marks.kind, *marks.last)
        shown = last if marks.kind != SET else marks.shown and self._record(marks.shown[1][0], *marks.shown)
        high, fresh = max(self._high, marks.high), self._new_marks()
        self._edits += marks.lines
        self._high, self.marks = high, fresh
        self._queue.mine = marks.last
        self._queue.ledger.count_appended(marks.lines, marks.marks, marks.log_bytes, last, shown)

    def _record(self, kind: int, position: int, raw: bytes) -> Record:
        return Record(kind, position, digest(essence(raw)), self._began, EMPTY)

    def known(self) -> None:
        """Add the marks so far to the chain of edits, for a reader."""
        if leased(self.file):
            token = token_of(self.file.status())
            self._queue.chain.add(self._token, token, max(self._high, self.marks.high))
            self._token = token

    def end(self) -> None:
        """End it, if it is in place."""
        if self._queue.guard.kept is self:
            with self._queue.guard:  # taking the lock ends the hold
                pass

    # textqueue.ledger.lock.Kept

    def finish(self) -> None:
        """Write the ledger's last line, and close the file. The lock is still held when this returns."""
        queue, file = self._queue, self.file
        self._collect()
        self._pace.last = time.monotonic()
        if self._edits and not self._lost:  # otherwise the next session reconciles
            token = token_of(file.status())
            if end_lease(file):  # the lease was valid until now, so no other process had the file open
                queue.chain.add(self._token, token, self._high)
                with suppress(OSError):  # without this line, the next session reconciles
                    queue.ledger.state(token)
                    queue.compact()
        self._close()

    def drop(self) -> None:
        """Close the file and the ledger; the next operation reads the ledger again."""
        self._queue.mine = None
        try:
            self._close()
        finally:
            self._queue.ledger.close()

    def _close(self) -> None:
        KEEPER.remove(self)
        end_lease(self.file)  # closing alone is not enough if a forked child has a copy
        self.file.close()

    # textqueue.editing.keeper.Hold

    def tick(self, *, last: bool = False) -> bool:
        """End it if it was not used since the last tick, if another process waits for it, or if ``last``."""
        queue = self._queue
        if not queue.threads.acquire(blocking=False):
            return False  # a thread is using it
        try:
            if queue.guard.kept is not self:
                return True
            waited_for = not leased(self.file)
            if waited_for:
                self._pace.disturbed()
            count = self._edits + self.marks.lines
            if last or waited_for or count == self._ticked:
                self.end()
                return True
            self._ticked = count
            return False
        finally:
            queue.threads.release()

    def forget(self) -> None:
        """Drop the copies of the parent's open files in a forked child."""
        self._queue.guard.forget()
