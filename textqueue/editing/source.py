"""What a queue, its messages and its readers use of one queue file: reading, edits that are tried again, sync.

It composes the file with its lock and ledger (``textqueue.editing.queue_file``), the marks in a row
(``textqueue.editing.marks``), what was given out, and the record of what is on the medium.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from sej.system.disk import Disk, File
from sej.system.locks import end_lease
from textqueue.editing.delivered import Given
from textqueue.editing.durable import DurableRecord, require_spans, rewrite, sync_names
from textqueue.editing.edits import Changes
from textqueue.editing.marks import Marks
from textqueue.editing.place import Change, Place
from textqueue.editing.queue_file import MOMENT_S, QueueFile, Session
from textqueue.editing.reconcile import Conflict, OnRevert
from textqueue.errors import FileInUseError, MessageMovedError, TextQueueError
from textqueue.format.windows import Token, settled, token_of
from textqueue.ledger.intent import read_intent

__all__ = ["Source"]

_HALF_WRITTEN_S: Final = 0.5
_EMPTIED_S: Final = 5.0
_REWRITTEN_S: Final = 10.0
"""While another program has the file open: how long it must be unchanged before a missing message counts as gone; how
long if it is empty, because a save in place empties it first; and after how long the message counts as gone anyway."""
_HALF_WRITTEN_PAUSE_S: Final = 0.01
_SYNC_WAIT_S: Final = 1.0
_SYNC_PAUSE_S: Final = 0.01
"""How long a sync waits for a program that has the file open, and how often it looks."""
_TRIES: Final = 100


class Source:
    """One ``.tq`` file.

    Attributes:
        path: as it was named.
        file: with its lock and ledger.
        marks: single marks, and many of one status.
        given: what was given out and not marked since.
    """

    def __init__(
        self,
        path: str,
        *,
        disk: Disk,
        settle_s: float,
        on_revert: OnRevert,
        conflicts: list[Conflict],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Name the file; nothing is opened."""
        self.path = path
        self.file = QueueFile(path, disk=disk, on_revert=on_revert, conflicts=conflicts)
        self.marks = Marks(self.file)
        self.given = Given()
        self.settle_s = settle_s
        self._clock_ns = clock_ns
        self._durable = DurableRecord(self.file.home + ".durable", disk=disk, queue=path)

    # Reading

    def reading(self) -> File:
        """Open the file to read it.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        self.file.check_open()
        self.marks.end()  # who opens a file that this process holds would wait for itself
        return self.file.disk.open(self.path, "read")

    def only_ours(self, before: Token | None, now: Token, position: int) -> bool:
        """Whether nothing but edits of this object, all above a position, lies between two states of the file."""
        self.marks.known()
        return self.file.chain.spans(before, now, position)

    def settled(self) -> bool:
        """Whether an unterminated last line is meant: the file has been quiet for ``settle_s``."""
        return settled(self.file.disk, self.path, settle_s=self.settle_s, now_ns=self._clock_ns())

    def in_transit(self, raw: bytes) -> bool:
        """Whether the owner of its claim, who is dead, may have brought it into a journal: the next drain ends it."""
        return read_intent(self.file.disk, self.file.home + ".drain").holds(raw)

    @property
    def has_ledger(self) -> bool:
        """Whether our programs have edited this file, so that another program may have reverted that."""
        return self.file.ledger.epoch > 0

    def given_back(self) -> tuple[int, int]:
        """The epoch, and how many messages were put back into the queue within it."""
        with self.file.threads:
            return self.file.ledger.epoch, len(self.file.ledger.given_back)

    def claims(self) -> dict[int, bytes]:
        """Who claimed what, by position, as far as the ledger knows; alive or dead."""
        with self.file.threads:
            return {position: record.owner for position, record in self.file.ledger.claims.items()}

    # Editing

    def edit(self, place: Place, change: Callable[[bytes], Change | None], what: str) -> Place:
        """Change a message in place.

        Args:
            place: the message as it was read.
            change: given its bytes as they are now, says what to write, or None when nothing is to be done.
            what: for the error message, as in "mark it as cleared".

        Returns:
            The message as it is now.

        Raises:
            MessageMovedError: it is not there any more, or not to be told from others.
        """
        return self.edit_many([place], [change], what)[0]

    def edit_many(
        self, places: Sequence[Place], changes: Sequence[Callable[[bytes], Change | None]], what: str
    ) -> list[Place]:
        """As ``edit``, for many messages under one lock; all are found before the first is changed."""
        edit = Changes(self.file, places, changes, what)
        if self.marks.change(edit):
            return [Place(position, raw, self.file.ledger.epoch) for position, raw, _ in edit.found]
        start = still = time.monotonic()
        seen: Token | None = None
        token, alone = (0, 0, 0), True
        replaced = 0
        while replaced < _TRIES:
            try:
                with self.file.session() as session:
                    token, alone = token_of(session.status), session.alone
                    done, current = self.write(session, places, changes, what)
                    if current and len(places) == 1:
                        self.marks.row(session)
            except MessageMovedError:
                # If another program has the file open, it may be half written at this moment.
                now = time.monotonic()
                if token != seen:
                    seen, still = token, now
                patience = _HALF_WRITTEN_S if token[1] else _EMPTIED_S
                if alone or now - still > patience or now - start > _REWRITTEN_S:
                    raise
                time.sleep(_HALF_WRITTEN_PAUSE_S)
                continue
            except FileNotFoundError:
                # Perhaps between the two renames of an editor.
                if time.monotonic() - start < _HALF_WRITTEN_S and self.has_ledger:
                    time.sleep(_HALF_WRITTEN_PAUSE_S)
                    continue
                raise MessageMovedError(
                    f"cannot {what}: the file is gone; put it back, or read the queue again",
                    path=self.path,
                    position=places[0].position,
                ) from None
            if current:
                return done
            replaced += 1
        raise TextQueueError(
            f"cannot {what}: another program replaces the file faster than it can be edited", path=self.path
        )

    def write(
        self,
        session: Session,
        places: Sequence[Place],
        changes: Sequence[Callable[[bytes], Change | None]],
        what: str,
    ) -> tuple[list[Place], bool]:
        """As ``edit_many``, within a session; the second: whether all is done, and in the file that is at the path."""
        edit = Changes(self.file, places, changes, what)
        current = self.file.commit(session, edit)
        if not current or edit.last is None:
            return edit.found, current
        return [place._replace(epoch=self.file.ledger.epoch) for place in edit.found], True

    def sync(self) -> None:
        """Force the file and the ledger to the medium, as ``textqueue.editing.durable`` says.

        Raises:
            FileInUseError: another program keeps the file open, and what it holds may not be on the medium.
            FileNotFoundError: the file does not exist.
        """
        deadline = time.monotonic() + _SYNC_WAIT_S
        while True:
            with self.file.session() as session:
                if self._sync(session):
                    return
            if time.monotonic() > deadline:
                raise FileInUseError(
                    "this file cannot be made durable while another program has it open or changes it, since that"
                    " program's changes could be written over: close the file there (lsof shows where), then sync"
                    " again",
                    path=self.path,
                )
            time.sleep(_SYNC_PAUSE_S)

    def _sync(self, session: Session) -> bool:
        """Whether all is on the medium; False: the file is in use."""
        file, ledger = session.file, self.file.ledger
        token = before = token_of(session.status)
        doubt = self._durable.doubt(file, token, ledger, known=session.known)
        if doubt.spans:
            done = rewrite(file, token, doubt, quick_s=MOMENT_S)
            there = self.file.disk.status(self.path)
            if done is None or there is None or there.identity != session.status.identity:
                return False
            token, ours = done
            if ours and session.known:
                self.file.chain.add(before, token, -1)
                ledger.state(token)
        end_lease(file)  # other programs do not wait for the medium
        if doubt.names:
            sync_names(self.file.disk, self.file.home)
        file.sync()
        require_spans(file, doubt)
        ledger.sync(doubt.log)
        if doubt.spans or doubt.names:
            self._durable.store(token, ledger)
        return True
