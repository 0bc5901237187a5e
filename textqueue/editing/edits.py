"""The edits in place: any changes to some messages, or one status for many.

``textqueue.editing.queue_file.QueueFile.commit`` makes them, in the order prove, write, log. The length of the file
never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textqueue.editing.proof import Change, Place, here, neighbours, proven
from textqueue.editing.queue_file import QueueFile, Session
from textqueue.editing.reconcile import find_again
from textqueue.errors import MessageMovedError
from textqueue.format.mutex import claimant
from textqueue.format.parser import digest, essence
from textqueue.format.windows import Token
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import EMPTY, SET, Record


class ClaimLostError(MessageMovedError):
    """Another worker has the message: the lease of a claim ended, or there was no claim. Nothing was written."""


class Changes:
    """Changes to some messages, which may have moved. All are found before the first is changed.

    Attributes:
        found: the messages as they are now.
    """

    def __init__(
        self,
        queue: QueueFile,
        places: Sequence[Place],
        changes: Sequence[Callable[[bytes], Change | None]],
        what: str,
        claims: Sequence[bytes] = (),
        is_over: Callable[[bytes], bool] = bool,
        holder: Callable[[Place], bytes] | None = None,
        *,
        settled: Callable[[int, bytes], bool],
    ) -> None:
        """Take the messages as they were read, a change for each, and a name of the edit for error texts.

        Args:
            queue: the file.
            places: the messages.
            changes: their changes.
            what: the name of the edit.
            claims: for each message, its claim; empty: it may have any. If the claim has a lease, it must be in the
                ledger, unless another worker may not take the message yet.
            is_over: whether the lease of a claim has ended. Before, no other worker takes the message.
            holder: if a process that has claimed a message prevents the edit: finds that process.
            settled: as for ``read_window``.
        """
        self.found = list(places)
        self.last: tuple[int, bytes] | None = None
        self._queue = queue
        self._changes = changes
        self._what = what
        self._claims = claims
        self._is_over = is_over
        self._holder = holder
        self._settled = settled
        self._todo: list[Change | None] = []
        self._records: list[tuple[int, int, bytes, bytes]] = []

    def prove(self, session: Session) -> bool:
        """Find the messages at their positions, or elsewhere in the file.

        Raises:
            MessageMovedError: a message was changed or removed since it was read.
            ClaimLostError: a message does not have its claim any more, or another process has claimed it.
        """
        file = session.file
        # In epoch 0 a message is found by its bytes alone.
        epoch = self._queue.ledger.epoch if session.known and session.still() else 0
        if self._claims:
            pairs = zip(self.found, self._claims, strict=True)
            self.found = [self._claimed(place, owner, known=epoch > 0) if owner else place for place, owner in pairs]
        places = self.found
        found: list[Place] = []
        lost: list[int] = []
        for number, place in enumerate(places):
            raw = here(file, place, epoch=epoch)
            if raw is None:
                lost.append(number)
            found.append(place if raw is None or raw is place.raw else place._replace(raw=raw))
        if lost:
            taken = {place.position for number, place in enumerate(found) if number not in set(lost)}
            again = find_again(self._queue.path, file, [places[number] for number in lost], taken, self._what)
            for number, (position, raw) in zip(lost, again, strict=True):
                found[number] = Place(position, raw, -1)
        self.found = found
        for place, now in zip(places, found, strict=True):
            if place.raw.endswith(b"\n") and not now.raw.endswith(b"\n"):
                self._require_whole(session, now)
        for place in found if self._holder is not None else ():
            self._require_free(place)
        self._todo = [change(place.raw) for place, change in zip(found, self._changes, strict=True)]
        return True

    def _claimed(self, place: Place, owner: bytes, *, known: bool) -> Place:
        """Return the place of a message that has a claim; lines may have moved.

        A lease identifies one claim. Without one, all claims of a process on equal messages are alike.

        Args:
            place: the message as it was read.
            owner: its claim.
            known: whether the ledger has the positions of this file. Then a message whose claim has none is not there,
                even if an equal one is.
        """
        ledger, leased = self._queue.ledger, claimant(owner) != owner
        claim = ledger.claims.get(place.position)
        if claim is not None and claim.owner == owner and (leased or place.epoch == ledger.epoch):
            return place
        name = digest(essence(place.raw))
        there = [(at, claim.digest) for at, claim in ledger.claims.items() if claim.owner == owner]
        if not there and leased and self._is_over(owner):
            raise ClaimLostError(
                f"cannot {self._what}: the lease of the claim ended, and another worker took the message; nothing was"
                " written; claim with a longer lease, or extend it",
                path=self._queue.path,
                position=place.position,
            )
        alike = [at for at, other in there if other == name] or [at for at, _ in there if leased]
        at = min(alike, key=lambda at: abs(at - place.position), default=-1)
        if alike and at < 0 and known:
            raise MessageMovedError(
                f"cannot {self._what}: another program deleted it, or is saving the file; nothing was written",
                path=self._queue.path,
                position=place.position,
            )
        return Place(at, place.raw, ledger.epoch) if at >= 0 else place

    def _require_whole(self, session: Session, place: Place) -> None:
        """Check that a last line without a newline is complete: another program may be writing it."""
        if not session.alone and not self._settled(place.position, place.raw):
            raise MessageMovedError(
                f"cannot {self._what}: another program is saving the file; nothing was written; try again",
                path=self._queue.path,
                position=place.position,
            )

    def _require_free(self, place: Place) -> None:
        if self._holder is not None and (holder := self._holder(place)):
            raise ClaimLostError(
                f"cannot {self._what}: {holder.decode('utf-8', 'replace')} has claimed it; nothing was written; wait"
                " for that process, or change the status in an editor, which has precedence",
                path=self._queue.path,
                position=place.position,
            )

    def write(self, session: Session) -> bool:
        """Write each change. Without a lease, prove each message again before, and read it back afterwards."""
        file = session.file
        for number, (place, change) in enumerate(zip(self.found, self._todo, strict=True)):
            if change is None:
                continue
            if not session.alone and here(file, place, epoch=0) != place.raw:
                return False  # another program changed the message after it was found
            raw = bytearray(place.raw)
            for relative, data in change.writes:
                file.write_at(data, place.position + relative)
                raw[relative : relative + len(data)] = data
            new = bytes(raw)
            if not session.alone and file.read(len(new), place.position) != new:
                what = "the file was rewritten while this message was edited"
                self._queue.report(place.position, new, "collision", what)
            owner, name = change.owner, essence(new)
            if change.kind == SET and (was := essence(place.raw)) != name:
                owner = digest(was)
            self.found[number] = Place(place.position, new, place.epoch)
            self._records.append((change.kind, place.position, digest(name), owner))
            self.last = place.position, new
        return True

    def log(self, ledger: Ledger, token: Token) -> None:
        """Append a ledger line for each message."""
        ledger.append([Record(kind, at, name, token, owner) for kind, at, name, owner in self._records])


class OneStatus:
    """One status for messages that have not moved. It needs a lease.

    Messages that are close to each other are written in one write, together with the bytes between them.
    """

    def __init__(self, places: Sequence[Place], control: int) -> None:
        """Take the messages as they were read, at least one, and the control byte."""
        self._places = sorted(places)
        self._control = control
        self._groups = neighbours(self._places)
        position, raw, _ = self._places[-1]
        self.last: tuple[int, bytes] | None = position, bytes([control]) + raw[1:]

    def prove(self, session: Session) -> bool:
        """Return whether all messages are at their positions."""
        if not session.alone:
            return False
        for group in self._groups:
            start = max(group[0].position - 1, 0)
            data = session.file.read(group[-1].position + len(group[-1].raw) + 1 - start, start)
            if not proven(data, start, group):
                return False
        return True

    def write(self, session: Session) -> bool:
        """Write the control bytes, group by group."""
        for group in self._groups:
            begin = group[0].position
            size = group[-1].position + 1 - begin
            window = bytearray(session.file.read(size, begin) if size > 1 else 1)
            for position, _, _ in group:
                window[position - begin] = self._control
            session.file.write_at(window, begin)
        return True

    def log(self, ledger: Ledger, token: Token) -> None:
        """Append a ledger line for each message."""
        ledger.append([Record(self._control, at, digest(essence(raw)), token, EMPTY) for at, raw, _ in self._places])
