"""Claims: each message has at most one owner at a time.

**The invariant.** A message is claimed if its ``mutex`` variable or the ledger has a claim for it, the process in that
claim is alive, and the lease in the ledger, if any, has not ended. Claims begin and end only under the queue's lock, so
two workers never get the same message.

::

              take                    done, failed, give_up, or a user's mark
    queued ----------------> claimed ----------------------------------------> cleared or critical
      ^                         |
      |  failed, give_back,     |
      +-------------------------+
         or the owner dies,
         or the lease ends

The claim is written into the ``mutex`` variable and into the ledger. If the variable has too little space, the claim is
in the ledger only. The ledger identifies the message by its digest, so the claim follows the message when lines move.

**A copy.** A user who copies a claimed message copies the claim in its mutex. If the ledger has that claim, or had it,
and has no claim at the position of the copy, then the copy is free, and is delivered like any other message. A claim in
a mutex that the ledger does not know counts, because the ledger may have been lost.

**A lease** limits a claim, for workers that hang. It is in the ledger only (``textqueue.format.mutex``). After its end,
the next ``take`` of any worker takes the message over, and replaces the claim in the ledger. So a late worker finds
that its own claim is not there, and its ``done`` changes nothing. Until then, it may still end the claim.

Taking a message reduces its ``retries`` by 1, as the original document describes. A failure puts the message back. If
no retries are left, the message becomes a critical error. So does a message whose worker died on the last attempt.
Without the variable the attempts are unlimited, but a message that failed is taken again only after all others. A
failure may have a delay, during which no worker takes the message. The line in the ledger that gives it back has the
end of the delay, and the number of failures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from sej.checks import POSITIVE_SECONDS, SECONDS, Seconds, seconds
from sej.errors import ClosedError
from sej.system.disk import File
from textqueue.editing.message import Message, marking
from textqueue.editing.proof import Change, Place, entry_at
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.tq_file import ClaimLostError, TqFile
from textqueue.errors import MessageMovedError, TextQueueError
from textqueue.format.mutex import ROOM, belongs_to, claimant, holder_of, is_alive, mutex_of, owner_text
from textqueue.format.parser import CONTROL_OF, ENTRY, STATUS_OF, MessageStatus, digest, retries_of
from textqueue.format.windows import require_resolved, scan
from textqueue.log import EMPTY, ENDED, FAILED, IN_LEDGER, IN_MUTEX, Record

_SCAN_BYTES: Final = 1 << 12
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]
_ALIVE_S: Final = 0.05
_DIED: Final = "the worker died"
_OVER: Final = "the lease ended"


class Claim:
    """A claimed message. End the claim with ``done``, ``failed``, ``give_up`` or ``give_back``.

    These methods raise :class:`~sej.ClosedError` if the queue was closed, because closing it gives the message back. If
    one of them raises another error, for example on a full disk, the claim remains, and can be ended again.

    Attributes:
        message: the message.
        owner: the process that has the claim.
        attempts: the number of this attempt, from 1, as far as the ledger knows: it counts the calls of ``failed``.
    """

    def __init__(self, claimer: Claimer, message: Message, owner: bytes, retries: bytes | None) -> None:
        """Create a claim; only a queue does. retries: the value of the variable before the claim reduced it."""
        self.message = message
        self.attempts = message.source.failures(message.position) + 1
        holder = claimant(owner)
        self.owner = holder.decode()
        self._owner = owner
        message.claim = b"" if owner == holder else owner  # only a lease needs it
        self._claimer = claimer
        self._retries = retries
        self._failed = FAILED + b"%d" % (self.attempts - 1) if self.attempts > 1 else EMPTY
        self._open = True
        self._tried: MessageStatus | None = None  # the status of a mark that failed
        self._pid = os.getpid()

    def done(self) -> bool:
        """Mark it as cleared. Return False if it was changed or deleted meanwhile (see ``TextQueue.conflicts``)."""
        return self._end(MessageStatus.cleared, None)

    def failed(self, reason: str | None = None, *, delay_s: Seconds = 0.0) -> bool:
        """Put it back for another attempt, or mark it as a critical error if its retries are used up.

        Args:
            reason: written into its ``reason`` variable, if it has one.
            delay_s: for how long no worker takes it, in seconds. A person who edits the file may end the delay.
        """
        delay_s = seconds("delay_s", delay_s)
        SECONDS("delay_s", delay_s)
        last = _used_up(self.message.raw)
        if not last and not delay_s:
            self._claimer.deferred.add(self.message.position)
        failed = FAILED + b"%d" % self.attempts
        self._failed = self.message.source.leases.leased(failed, delay_s or None)
        ended = self._end(MessageStatus.critical if last else MessageStatus.queued, reason)
        if not ended:
            self._claimer.deferred.discard(self.message.position)
        return ended

    def give_up(self, reason: str | None = None) -> bool:
        """Mark it as a critical error, even if it has retries left."""
        return self._end(MessageStatus.critical, reason)

    def give_back(self) -> bool:
        """Put it back, and restore its ``retries``: the attempt does not count."""
        return self._end(MessageStatus.queued, None, None if self._retries is None else self._retries.strip())

    def extend(self, lease_s: Seconds) -> bool:
        """Let the lease end ``lease_s`` seconds from now. A claim without a lease has no end and remains as it is.

        Args:
            lease_s: seconds, more than 0. With infinity, the claim lasts as long as its process.

        Returns:
            False if another worker took the message, or if it was changed or deleted (see ``TextQueue.conflicts``).
        """
        lease_s = seconds("lease_s", lease_s)
        POSITIVE_SECONDS("lease_s", lease_s)
        self._require_open()
        if not self.message.claim:
            return True
        message, source, holder = self.message, self.message.source, self.owner.encode()
        owner = source.leases.leased(holder, lease_s)

        def extend(_: Place, raw: bytes) -> Change:
            if raw[0] != _QUEUED:
                raise MessageMovedError("a user marked it", path=message.path, position=message.position)
            kind = IN_MUTEX if holder_of(raw) == holder else IN_LEDGER
            return Change([], kind, owner)

        try:
            message.edit(extend, "extend the lease of a claim", self._owner)
        except MessageMovedError as error:
            return self._unchanged(error)
        self._owner = owner
        message.claim = b"" if owner == holder else owner
        return True

    def _require_open(self) -> None:
        if not self._open:
            raise ClosedError("this claim has already ended", path=self.message.path, position=self.message.position)

    def _end(self, status: MessageStatus, reason: str | None, retries: bytes | None = None) -> bool:
        self._require_open()
        message, source = self.message, self.message.source
        user_mark: MessageStatus | None = None

        owner = self.owner.encode()
        marked = marking(source, status, reason, owner)

        def change(read: Place, raw: bytes) -> Change | None:
            nonlocal user_mark
            if raw[0] != _QUEUED:  # a user's mark has precedence: only blank the claim
                user_mark, mutex = STATUS_OF[raw[0]], mutex_of(raw)
                ours = mutex is not None and mutex.holder == owner
                return Change([(mutex.position, mutex.filled(b""))] if mutex is not None and ours else [], ENDED)
            made, counted = marked(read, raw), None if retries is None else retries_of(raw)
            if made is not None and status is MessageStatus.queued:
                made = made._replace(detail=self._failed)
            if made is None or retries is None or counted is None or len(counted.data) < len(retries):
                return made
            return made._replace(writes=[*made.writes, (counted.position, retries.ljust(len(counted.data)))])

        try:
            message.edit(change, "end the claim of a message", self._owner)
        except MessageMovedError as error:
            self._claimer.forget(self)
            source.end_missing(message.position, message.raw, self._owner)
            return self._unchanged(error)
        except OSError:  # the caller may end the claim again, and the mark may be in the file already
            self._tried = status
            raise
        self._claimer.forget(self)
        if user_mark is None or user_mark is self._tried:
            return True
        return self._report("changed", f"a user marked it as {user_mark.name} while it was claimed")

    def _unchanged(self, error: MessageMovedError) -> bool:
        """Report that the message was not changed, and return False."""
        return self._report("lease" if isinstance(error, ClaimLostError) else "changed", error.reason)

    def _report(self, kind: str, why: str) -> bool:
        self.message.source.file.report(self.message.position, self.message.raw, kind, f"left as it is: {why}")
        return False


@contextmanager
def claiming(take: Callable[[], Claim | None]) -> Iterator[Message | None]:
    """Take a claim, and end it: clear the message, or after an exception put it back or mark it as critical."""
    claim = take()
    try:
        yield None if claim is None else claim.message
    except BaseException as error:
        if isinstance(error, Exception):
            if claim is not None:
                claim.failed(f"{type(error).__name__}: {error}")
        elif claim is not None:  # the program is being stopped, so the attempt does not count
            claim.give_back()
        raise
    if claim is not None:
        claim.done()


class _Found(NamedTuple):
    place: Place
    abandoned: str  # why the last owner did not end its claim; empty: it had no claim


class Claimer:
    """Finds the next free message of one file, without reading the done ones each time."""

    def __init__(self, source: TqFile) -> None:
        self._source = source
        self._epoch = -1
        self._returns = self._reading = 0
        self._low = 0  # no free message is before this position, in this epoch
        self.deferred: set[int] = set()  # messages that failed here, which are taken after all others
        self._alive: dict[bytes, float] = {}  # until when a process counts as alive without another look
        self.open: set[Claim] = set()  # the claims of this process that have not ended

    def take(
        self, owner: str | None, *, lease_s: float | None = None, pull: bool = True, again: bool = True
    ) -> Claim | None:
        """Claim the next free message, or None.

        owner: as in ``TextQueue.claim``. pull: whether to reduce its retries. again: whether to take a message that
        failed here, if no other is free.
        """
        source = self._source
        attempts = source.attempts("claim a message")
        while True:
            try:
                with source.file as session:
                    if session.busy:  # another program may be in the middle of a save
                        source.growing = True
                        return None
                    self._catch_up()
                    found = self._next(session.file, again=again)
                    if session.known and session.still():  # otherwise another program is writing
                        if found is None:
                            return None
                        if session.ledger.line_at < 0 and session.add_line():
                            continue
                        if found.abandoned and _used_up(found.place.raw):
                            if self._give_up(session, found):
                                continue
                        elif (claim := self._claim(session, found, owner, pull, lease_s)) is not None:
                            return claim
            except FileNotFoundError:
                return None
            except MessageMovedError:
                pass  # another program changed the file after the message was found
            next(attempts)

    def held_by(self, process: str) -> list[Claim]:
        """Return the claims of another process, ``pid@host/start``, so that this process can end them."""
        found = []
        with suppress(FileNotFoundError), self._source.file as session:
            ledger = self._source.file.ledger
            for position, record in sorted(ledger.claims.items()):
                if belongs_to(record.holder, process) and (raw := claimed(session.file, position, record)):
                    message = Message(self._source, raw, position, ledger.epoch)
                    found.append(Claim(self, message, record.detail, None))
        return found

    def forget(self, claim: Claim) -> None:
        """Drop a claim of this process. Its message remains claimed as long as its owner is alive."""
        claim._open = False
        self.open.discard(claim)

    def give_back(self) -> OSError | None:
        """Give back what this process, not its parent, has claimed; return why something could not be given back."""
        failed: OSError | None = None
        for claim in list(self.open):
            if claim._pid == os.getpid():
                try:
                    claim.give_back()
                except TextQueueError:
                    pass
                except OSError as error:
                    failed = error
        return failed

    def _catch_up(self) -> None:
        ledger = self._source.file.ledger
        if self._epoch != ledger.epoch or self._epoch <= 0 or self._reading != ledger.reading:
            self._epoch, self._low, self._returns, self._reading = ledger.epoch, 0, 0, ledger.reading
            self.deferred.clear()
        for position in ledger.given_back[self._returns :]:
            self._low = min(self._low, position)
        self._returns = len(ledger.given_back)

    def _next(self, file: File, *, again: bool) -> _Found | None:
        """Find the next message of a worker that has died, or one without a claim."""
        claims = self._source.file.ledger.claims
        found = (self._abandoned(file, fresh=False) if claims else None) or self._scan(file)
        if found is None and self.deferred and again:
            self._low = min(self._low, *self.deferred)
            self.deferred.clear()
            found = self._scan(file)
        return found or (self._abandoned(file, fresh=True) if claims else None)

    def _abandoned(self, file: File, *, fresh: bool) -> _Found | None:
        """Find a message whose worker died, or whose lease has ended. fresh: look now which workers are alive."""
        ledger = self._source.file.ledger
        dead = {owner for owner in ledger.owners if not self._is_alive(owner, fresh=fresh)}
        over = self._source.leases.over(ledger.leased)
        for position, record in sorted(ledger.claims.items()) if dead or over else ():
            if record.holder in dead or position in over:
                raw = claimed(file, position, record)
                if raw and not self._source.in_transit(raw):
                    return _Found(Place(position, raw, self._epoch), _DIED if record.holder in dead else _OVER)
        return None

    def _is_alive(self, owner: bytes, *, fresh: bool) -> bool:
        """Return whether a process is alive. This costs as much as a claim, so the answer is kept for a moment."""
        now = time.monotonic()
        if not fresh and now < self._alive.get(owner, 0.0):
            return True
        alive = is_alive(owner)
        if alive:
            self._alive[owner] = now + _ALIVE_S
        else:
            self._alive.pop(owner, None)
        return alive

    def _scan(self, file: File) -> _Found | None:
        """Find a message without a claim from the low position, and advance it past messages that are not free."""
        source, claims = self._source, self._source.file.ledger.claims
        passed = True  # no deferred message so far, so the low position may advance
        for window in scan(file, self._low, _SCAN_BYTES, source.settled):
            require_resolved(file, window)
            text = b"\n" + window.data
            at = text.find(b"\n-")
            while at >= 0:
                match = ENTRY.match(text, at + 1)
                assert match is not None
                place = Place(window.position + at, match.group(), self._epoch)
                position, raw, _ = place
                holder = holder_of(raw)  # of a process that died, or has it; or it is a copy of a claimed message
                if position in self.deferred:
                    passed = False
                elif position in claims or (holder and (source.holder(place) or source.in_transit(raw))):
                    pass
                elif source.is_waiting(position, raw):
                    passed = False
                else:
                    if passed:
                        self._low = position
                    return _Found(place, _DIED if holder and not is_alive(holder) else "")
                at = text.find(b"\n-", match.end() - 1)
            if passed:
                self._low = window.position + len(window.data)
        return None

    def _give_up(self, session: QueueFile, found: _Found) -> bool:
        source = self._source
        old = source.file.ledger.claims.get(found.place.position)
        holder = holder_of(found.place.raw) or (old.holder if old is not None else b"")
        reason = f"{found.abandoned}, and no retries were left"
        change = marking(source, MessageStatus.critical, reason, holder)
        return source.change(session, [found.place], change, "give up a message") is not None

    def _claim(
        self, session: QueueFile, found: _Found, owner: str | None, pull: bool, lease_s: float | None
    ) -> Claim | None:
        source, old = self._source, found.place.raw
        own = owner_text()
        name = owner_text(owner) if owner else own
        leased = source.leases.leased(name, lease_s)
        kind, writes, retries = IN_LEDGER, [], None
        if (mutex := mutex_of(old)) is not None:
            if len(mutex.data) >= ROOM and mutex.fits(name):
                kind = IN_MUTEX
                writes.append((mutex.position, mutex.filled(name)))
            elif mutex.holder:
                writes.append((mutex.position, mutex.filled(b"")))
        if pull and (counted := retries_of(old)) is not None:
            retries = counted.data
            left = b"%d" % max(int(retries) - 1, 0)
            writes.append((counted.position, left.ljust(len(retries))))
        try:
            done = session.apply([found.place], [Change(writes, kind, leased)])
        except OSError:
            self._restore(session.file, found.place, writes)
            raise
        ledger = source.file.ledger
        if self._epoch <= 0:  # this was the first edit of the file
            self._epoch, self._reading = ledger.epoch, ledger.reading
        if done is None:
            return None
        ((position, raw, epoch),) = done
        made = Claim(self, Message(source, raw, position, epoch), leased, retries)
        if name == own:
            self.open.add(made)
        return made

    def _restore(self, file: File, place: Place, writes: list[tuple[int, bytes]]) -> None:
        """Undo a claim that the ledger could not record, as on a full disk: it would last as long as this process."""
        with suppress(OSError):
            for at, data in writes:
                if file.read(len(data), place.position + at) == data:
                    file.write_at(place.raw[at : at + len(data)], place.position + at)


def claimed(file: File, position: int, record: Record) -> bytes:
    """Return the queued message at the position of a claim, or empty bytes."""
    raw = entry_at(file, position) if position >= 0 else b""
    return raw if raw[:1] == b"-" and digest(raw) == record.digest else b""


def _used_up(raw: bytes) -> bool:
    left = retries_of(raw)
    return left is not None and not int(left.data)
