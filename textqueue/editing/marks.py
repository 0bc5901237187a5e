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
wait, no new hold begins for a while, so that several workers on one file take turns.

The line of a reserved variable is written together with the next line (``textqueue.hot.Held``).

**Crash points.** The ledger lines of a hold carry the state of the file when the hold began. Its end appends a line
with the new state. If the process dies in between, the next session finds the file in another state, and reconciles.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from textqueue.editing.edits import OneMark, OneStatus, OneVariable
from textqueue.editing.hold import Hold, Pace
from textqueue.editing.place import Place
from textqueue.editing.queue_file import Edit, QueueFile, Session
from textqueue.hot import DONE, Core

_HOLD_S: Final = 0.1
"""The longest hold. After it, lock and ledger are compared with the files at their paths again."""
_ROW_S: Final = 0.005
"""Marks that follow each other within this time are a row."""
_QUEUED: Final = ord("-")


class Marks:
    """Marks in one queue file. Every method uses the queue file's lock between threads."""

    def __init__(self, queue: QueueFile) -> None:
        """Begin without a hold."""
        self._queue = queue
        self._pace = Pace()

    @property
    def hold(self) -> Hold | None:
        """The hold, if there is one."""
        kept = self._queue.guard.kept
        return kept if isinstance(kept, Hold) else None

    def one(self, message: Core, control: int) -> bool:
        """Mark a queued message that has not moved.

        Returns:
            Whether it was marked. If not, the caller marks it in another way.
        """
        queue = self._queue
        with queue.threads:
            hold = queue.guard.kept
            if isinstance(hold, Hold):
                try:
                    done = hold.marks.mark(message, control)
                except OSError:
                    hold.end()
                    raise
                if done == DONE:
                    return True
                self._end_of(hold)
            if message.raw[0] != _QUEUED:
                return False
            return self._first(message, OneMark((message.position, message.raw, message.epoch), control))

    def variable(self, message: Core, relative: int, data: bytes) -> bool:
        """Write a variable of a message that has not moved.

        Args:
            message: the message.
            relative: the position of the variable, relative to the control byte.
            data: its text, with the padding.

        Returns:
            Whether it was written. If not, the caller writes it in another way.
        """
        queue = self._queue
        with queue.threads:
            hold = queue.guard.kept
            if isinstance(hold, Hold):
                try:
                    done = hold.marks.variable(message, relative, data)
                except OSError:
                    hold.end()
                    raise
                if done == DONE:
                    return True
                self._end_of(hold)
            return self._first(message, OneVariable((message.position, message.raw, message.epoch), relative, data))

    def _end_of(self, hold: Hold) -> None:
        if hold.marks.disturbed:
            self._pace.disturbed()
        hold.end()

    def _first(self, message: Core, edit: Edit) -> bool:
        """Edit a message without a hold. If it is the second edit of a row, a hold begins."""
        queue = self._queue
        try:
            with queue.session() as session:
                if not queue.commit(session, edit) or edit.last is None:
                    return False
                message.moved_to(*edit.last, queue.ledger.epoch)
                self.row(session)
                return True
        except FileNotFoundError:
            return False

    def row(self, session: Session) -> None:
        """Begin a hold if this edit follows another one closely. The caller is in a session."""
        now, pace = time.monotonic(), self._pace
        if session.alone and session.known and now - pace.last < _ROW_S and now > pace.backoff_until:
            log = self._queue.ledger.file_to_append()
            if log is not None:
                Hold(self._queue, pace, session.file, log, now + _HOLD_S).begin()
        pace.last = now

    def change(self, edit: Edit) -> bool:
        """Make an edit other than a mark or a variable within the hold.

        Returns:
            Whether the edit was made. If not, no hold exists, and the caller makes it in a session.

        Raises:
            MessageMovedError: a message was changed or removed since it was read; nothing was written.
        """
        with self._queue.threads:
            hold = self.hold
            return hold is not None and hold.change(edit)

    def end(self) -> None:
        """End the hold, if there is one."""
        if (hold := self.hold) is not None:
            hold.end()

    def known(self) -> None:
        """Add the marks of the hold so far to the chain of edits, for a reader."""
        with self._queue.threads:
            if (hold := self.hold) is not None:
                hold.known()

    def many(self, places: Sequence[Place], control: int) -> int | None:
        """Mark many messages: all are proven before the first is written. Return the epoch, or None as ``one`` does."""
        queue = self._queue
        try:
            with queue.session() as session:
                done = bool(places) and queue.commit(session, OneStatus(places, control))
                return queue.ledger.epoch if done else None
        except FileNotFoundError:
            return None
