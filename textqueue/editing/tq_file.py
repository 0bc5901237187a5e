"""One queue file, as a queue, its messages and its readers use it: reads, edits with retries, and syncs.

A :class:`TqFile` has these parts: the file with its lock and ledger (``textqueue.editing.queue_file``), the delivered
messages, and the record of the last sync.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from sej.system.disk import File, read_small
from sej.system.locks import end_file_lease
from textqueue.editing.durable import Durable, require_spans, rewrite, sync_names
from textqueue.editing.proof import Making, Place, ReadAhead, entry_at, here
from textqueue.editing.queue_file import MOMENT_S, Options, QueueFile
from textqueue.editing.reconcile import find_again
from textqueue.errors import FileInUseError, MessageMovedError
from textqueue.format.mutex import Leases, claimant, holder_of, is_here
from textqueue.format.parser import CONTROL_OF, MessageStatus, digest, essence, plan_of
from textqueue.format.windows import token_of, unknown
from textqueue.log import EMPTY, ENDED, FAILED
from textqueue.sidecar import INTENT_BYTES, read_intent, real_path


class ClaimLostError(MessageMovedError):
    """Another worker has the message: the claim's lease ended, or nothing was claimed. Nothing was written."""


_RENAMED_S: Final = 0.5
"""How long an edit waits for a file that is gone: an editor may be between two renames."""
_SYNC_WAIT_S: Final = 1.0
_SYNC_PAUSE_S: Final = 0.01
"""How long a sync waits for a program that has the file open, and how often it tries."""
_ATTEMPTS_MOST: Final = 100
_ATTEMPTS_S: Final = 10.0
_WHOLE_MOST: Final = 20
_PAUSES_S: Final = 0.000_5, 0.01
"""An edit is given up after so many attempts, and so much time: a loaded machine may be slow. Between two attempts it
waits for the shortest of these times, and longer after each. A replacement of the whole file has fewer attempts."""
_MARKED: Final = 1 << 16
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


def hash_of(raw: bytes) -> int:
    """Return the hash that identifies a message."""
    return hash(essence(raw))


class Delivered:
    """The messages that a cursor has delivered and that are still queued, so that a new pass can skip them.

    Equal messages are interchangeable, so they are counted by the hashes of their essences. Hashes are computed when a
    whole window has been delivered, to keep ``get_next`` fast.
    """

    def __init__(self) -> None:
        self.pending: list[bytes] = []  # the bytes of delivered messages that are not counted yet
        self._marked: list[bytes] = []  # the bytes of messages that were marked since
        self._counts: Counter[int] = Counter()

    def settle(self) -> None:
        """Count the pending messages."""
        if self.pending != self._marked:  # otherwise each was marked before the next was delivered
            self._counts.update(map(hash_of, self.pending))
            self.gone(map(hash_of, self._marked) if self._counts else ())
        self.pending.clear()
        self._marked.clear()

    def forget(self, raw: bytes) -> None:
        """Remove a message, which was marked."""
        self._marked.append(raw)
        if len(self._marked) > _MARKED:
            self.settle()

    def skips(self) -> Counter[int]:
        """Return the messages to skip in a new pass, by their hashes."""
        self.settle()
        return self._counts.copy()

    def gone(self, names: Iterable[int]) -> None:
        """Remove messages that left the queue: that a pass over the whole file has not met, or that were marked."""
        for name in names:
            take(self._counts, name)

    def changed(self, old: bytes, new: bytes) -> None:
        """Record that a message has new bytes. It matters only if the message was delivered."""
        if self.pending and self.pending[-1] == old:  # it is the last delivered message
            self.pending[-1] = new
            return
        self.settle()
        if self._counts and take(self._counts, hash_of(old)):
            self._counts[hash_of(new)] += 1


def take(skips: Counter[int], name: int) -> bool:
    """Return whether to skip a message, and remove it from the messages to skip."""
    count = skips.get(name, 0)
    if count > 1:
        skips[name] = count - 1
    elif count:
        del skips[name]
    return count > 0


class TqFile:
    """One ``.tq`` file.

    Attributes:
        delivered: the messages that were delivered and not marked since.
        growing: whether a worker has found a last message that another program may still be writing.
    """

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.file = QueueFile(path, options)
        self.delivered = Delivered()
        self.growing = False
        self.settle_s, self._clock = options.settle_s, options.clock
        self.leases = Leases(options.clock)
        self._intent: bytes | None = None  # the file of the open drain when its messages were read
        self._in_transit: frozenset[bytes] = frozenset()
        self._durable = Durable()

    # Reading

    def reading(self) -> File:
        """Open the file for reading."""
        self.file.check_open()
        return self.file.disk.open(real_path(self.path), "read")

    def settled(self, position: int, raw: bytes) -> bool:
        """Return whether the last entry is complete: this library appended it, or the file was quiet for ``settle_s``.

        A modification time far in the future counts as old.
        """
        status = self.file.disk.status(self.path)
        if status is None:
            return False
        with self.file.guard.threads:
            ledger, changed_ns = self.file.ledger, status.mtime_ns
            if ledger.epoch and ledger.token == token_of(status):
                if position >= ledger.foreign[1]:
                    return True
                changed_ns = ledger.foreign[2]
        complete = not -self.settle_s < (self._clock.wall_ns() - changed_ns) / 1e9 < self.settle_s
        self.growing = self.growing or (not complete and raw[0] == _QUEUED and raw.endswith(b"\n"))
        return complete

    def settled_line(self, position: int, raw: bytes) -> bool:
        """As :meth:`settled`, for a reader that is not a worker: a last line with a newline is complete."""
        return raw.endswith(b"\n") or self.settled(position, raw)

    def in_transit(self, raw: bytes) -> bool:
        """Return whether a message is in an open drain. If its owner has died, the next drain decides about it."""
        disk, path, data = self.file.disk, self.file.guard.path(".drain"), None
        with suppress(FileNotFoundError):
            data = read_small(disk, path, INTENT_BYTES)
        if data != self._intent:  # two notes within a tick of the clock may have one inode, size and time
            self._in_transit = frozenset(map(essence, read_intent(disk, path).raws))
            self._intent = data
        return bool(self._in_transit) and essence(raw) in self._in_transit

    def is_copy(self, position: int, raw: bytes) -> bool:
        """Return whether the claim in the mutex of a message is free: a copy, a claim that has ended, or a part of one.

        The ledger has every claim of this host. The caller holds the lock, and the message is at the position.
        """
        ledger = self.file.ledger
        return self.file.known and ledger.epoch > 0 and position not in ledger.claims and is_here(raw)

    def was_copied(self, position: int, raw: bytes) -> bool:
        """As :meth:`is_copy`, for a message that a reader has read without the lock."""
        try:
            with self.file as session:
                return entry_at(session.file, position) == raw and self.is_copy(position, raw)
        except OSError:  # a user who may only read
            return False

    @property
    def has_ledger(self) -> bool:
        """Whether this library has edited the file, so that a stale save may have reverted an edit."""
        return self.file.ledger.epoch > 0

    def given_back(self) -> tuple[int, int]:
        """Return the epoch, and how many messages were given back to the queue in it."""
        with self.file.guard.threads:
            return self.file.ledger.epoch, len(self.file.ledger.given_back)

    def claims(self) -> dict[int, bytes]:
        """Return the owners of the claims in the ledger, by position. An owner may have died."""
        with self.file.guard.threads:
            return {position: record.detail for position, record in self.file.ledger.claims.items()}

    def holder(self, place: Place) -> bytes:
        """Return the process that has claimed a message, under the lock; empty: none that is alive."""
        record = self.file.ledger.claims.get(place.position)
        logged = record is not None and record.digest == digest(place.raw)
        owner = record.detail if record is not None and logged else holder_of(place.raw)
        holder = self.leases.holder(owner) if place.raw[0] == _QUEUED else b""
        return b"" if holder and self.is_copy(place.position, place.raw) else holder

    def failures(self, position: int) -> int:
        """Return how often the message at a position has failed, as far as the ledger knows."""
        owner = self.file.ledger.failed.get(position)
        return 0 if owner is None else int(claimant(owner).removeprefix(FAILED))

    def is_waiting(self, position: int, raw: bytes) -> bool:
        """Return whether no worker takes a message yet: it failed a moment ago, or has a later date."""
        if b"due" in raw and plan_of(raw).due_ns > self._clock.wall_ns():
            return True
        owner = self.file.ledger.failed.get(position)
        return owner is not None and claimant(owner) != owner and not self.leases.is_over(owner)

    # Editing

    def end_missing(self, position: int, raw: bytes, owner: bytes) -> None:
        """End the claim of a message that cannot be changed, so that it is free when it can be changed again.

        The message is not in the file, and a person may restore it; or a save has written a part of it.
        """
        with suppress(OSError), self.file as session:
            ledger, name = self.file.ledger, digest(raw)
            alike = [at for at, claim in ledger.claims.items() if (claim.digest, claim.detail) == (name, owner)]
            if alike:
                at = min(alike, key=lambda at: (at >= 0, abs(at - position)))
                token = token_of(session.status)
                token = token if session.known else unknown(token)
                ledger.append([(ENDED, at, name, EMPTY)], token, ledger.number)

    def attempts(self, what: str, *, whole: bool = False) -> Iterator[int]:
        """Yield the number of each attempt until the caller leaves the loop, after a pause; an error after too many.

        whole: the caller replaces the whole file.
        """
        start = time.monotonic()
        for count in itertools.count(1):
            yield count
            passed = time.monotonic() - start
            if (count >= _ATTEMPTS_MOST and passed >= _ATTEMPTS_S) or (whole and count >= _WHOLE_MOST):
                raise FileInUseError(
                    f"cannot {what}: for {passed:.0f} seconds, another program has been saving or replacing the file;"
                    " end that program, then try again",
                    path=self.path,
                )
            time.sleep(min(_PAUSES_S[0] * 2 ** min(count, 10), _PAUSES_S[1]))

    def edit_many(
        self, places: Sequence[Place], change: Making, what: str, claims: Sequence[bytes] = (), *, free: bool = False
    ) -> list[Place]:
        """Change many messages under one lock, and return them. All are found before the first is changed.

        Args:
            places: the messages as they were read.
            change: makes the change of each.
            what: the name of the edit, for errors, such as "mark the message as cleared".
            claims: for each message, its claim. A lease must be in the ledger, or not be over.
            free: whether the edit is refused if a process has claimed one of the messages.

        Raises:
            MessageMovedError: a message was changed or removed since it was read.
            FileInUseError: other programs replaced the file 100 times in 10 seconds.
        """
        attempts, until = self.attempts(what), 0.0
        while True:
            try:
                with self.file as session:
                    done = self.change(session, places, change, what, claims, free=free)
                if done is not None:
                    return done
            except FileNotFoundError:
                until = until or time.monotonic() + _RENAMED_S
                if time.monotonic() >= until or not self.has_ledger:
                    raise MessageMovedError(
                        f"cannot {what}: the file is gone; restore it, or read the queue again",
                        path=self.path,
                        position=places[0].position,
                    ) from None
            next(attempts)

    def change(
        self,
        session: QueueFile,
        places: Sequence[Place],
        change: Making,
        what: str,
        claims: Sequence[bytes] = (),
        *,
        free: bool = False,
    ) -> list[Place] | None:
        """Change messages in a session, and return them; None: not all changes are in the file at the path."""
        if session.busy:
            return None
        try:
            found = self._find(session, places, what, claims)
            if free:
                self._require_free(found, what)
            todo = [change(read, now[1]) for read, now in zip(places, found, strict=True)]
        except MessageMovedError:
            if session.still():
                raise
            return None  # another program has changed the file since the lock was taken
        return session.apply(found, todo)

    def _find(self, session: QueueFile, places: Sequence[Place], what: str, claims: Sequence[bytes]) -> list[Place]:
        """Find messages at their positions, or elsewhere in the file."""
        # In epoch 0 a message is found by its bytes alone.
        epoch = self.file.ledger.epoch if session.known and (session.alone or session.still()) else 0
        if claims:
            pairs = zip(places, claims, strict=True)
            places = [self._claimed(place, owner, what, known=epoch > 0) if owner else place for place, owner in pairs]
        found: list[Place] = []
        lost: list[int] = []
        file = ReadAhead(session.file) if len(places) > 1 and epoch else session.file
        for place in places:
            raw = here(file, place, epoch=epoch)
            if raw is None:
                lost.append(len(found))
            found.append(place if raw is None or raw is place.raw else Place(place.position, raw, place.epoch))
        if lost:
            taken = {place.position for number, place in enumerate(found) if number not in set(lost)}
            again = find_again(self.path, session.file, [places[number] for number in lost], taken, what)
            for number, (position, raw) in zip(lost, again, strict=True):
                found[number] = Place(position, raw, -1)
        return found

    def _claimed(self, place: Place, owner: bytes, what: str, *, known: bool) -> Place:
        """Return the place of a message that has a claim; lines may have moved.

        A lease identifies one claim. Without one, all claims of a process on equal messages are alike. If the ledger
        has the positions of this file (known), a message whose claim has none is not there, even if an equal one is.
        """
        ledger, leased = self.file.ledger, claimant(owner) != owner
        if ledger.has_claim(place.position, owner, place.epoch):
            return place
        name = digest(place.raw)
        there = [(at, claim.digest) for at, claim in ledger.claims.items() if claim.detail == owner]
        if not there and leased and self.leases.is_over(owner):
            raise ClaimLostError(
                f"cannot {what}: the lease of the claim ended, and another worker took the message; nothing was"
                " written; claim with a longer lease, or extend it",
                path=self.path,
                position=place.position,
            )
        alike = [at for at, other in there if other == name] or [at for at, _ in there if leased]
        at = min(alike, key=lambda at: abs(at - place.position), default=-1)
        if alike and at < 0 and known:
            raise MessageMovedError(
                f"cannot {what}: another program deleted it, or is saving the file; nothing was written",
                path=self.path,
                position=place.position,
            )
        return Place(at, place.raw, ledger.epoch) if at >= 0 else place

    def _require_free(self, places: Sequence[Place], what: str) -> None:
        for place in places:
            if holder := self.holder(place):
                raise ClaimLostError(
                    f"cannot {what}: {holder.decode('utf-8', 'replace')} has claimed it; nothing was written; wait"
                    " for that process, or change the status in an editor, which has precedence",
                    path=self.path,
                    position=place.position,
                )

    def sync(self) -> None:
        """Sync the file and the ledger to disk, as ``textqueue.editing.durable`` describes."""
        deadline = time.monotonic() + _SYNC_WAIT_S
        while True:
            with self.file as session:
                if self._sync(session):
                    return
            if time.monotonic() > deadline:
                raise FileInUseError(
                    "cannot sync this file while another program has it open or changes it, because the sync could"
                    " overwrite its changes: close the file there (lsof shows the program), then sync again",
                    path=self.path,
                )
            time.sleep(_SYNC_PAUSE_S)

    def _sync(self, session: QueueFile) -> bool:
        """Sync, and return whether all is on disk; False: the file is in use."""
        file, ledger = session.file, self.file.ledger
        token = token_of(session.status)
        doubt = self._durable.doubt(file, token, ledger, known=session.known)
        if doubt.spans:
            done = rewrite(file, token, doubt, quick_s=MOMENT_S)
            there = self.file.disk.status(self.path)
            if done is None or there is None or there.identity != session.status.identity:
                return False
            token, ours = done
            if ours and session.known:
                ledger.state(token)
        end_file_lease(file)  # other programs need not wait for the disk
        if doubt.names:
            sync_names(self.file.disk, self.file.guard.real_path)
        file.sync()
        require_spans(file, doubt)
        ledger.sync(doubt.log)
        if doubt.spans or doubt.names:
            self._durable.store(token, ledger)
        return True
