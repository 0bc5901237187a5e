"""Free messages that a claimer has seen, so that the next claim need not search the file under the lock.

A search reads a part of the file. What follows the found message in that part is kept here, and prepared for a claim
when it is needed. It may be outdated: other workers claim the same messages. So each claim is proven in the file, and
these messages are only candidates, in the order of the file. They are valid for one epoch of the ledger, and until a
message is put back into the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from textqueue.editing.quick import changed, head_of
from textqueue.format.grammar import ENTRY
from textqueue.format.kinds import IN_LEDGER, IN_MUTEX
from textqueue.format.mutex import ROOM, mutex_of, owner_text
from textqueue.format.parser import Variable, retries_of

_CANDIDATES: Final = 4
"""More than workers usually claim while one of them waits for the lock."""


class Taking(NamedTuple):
    """The edit that claims a message.

    Attributes:
        writes: bytes, with their positions relative to the control byte.
        kind: whether the claim is in the mutex, or in the ledger only.
        name: the process that claims it.
        counted: its ``retries`` before the claim.
    """

    writes: list[tuple[int, bytes]]
    kind: int
    name: bytes
    counted: Variable | None


class Candidate(NamedTuple):
    """A message that may be free: position, bytes, bytes with the claim, start of the ledger line, process, retries."""

    position: int
    raw: bytes
    new: bytes
    head: bytes
    name: bytes
    retries: bytes | None


def taking(raw: bytes, owner: str | None, *, pull: bool) -> Taking:
    """Return the edit that claims a message.

    Args:
        raw: the message.
        owner: as in ``TextQueue.claim``.
        pull: whether to reduce its retries.
    """
    if b"\\" not in raw:
        return Taking([], IN_LEDGER, owner_text(owner=owner), None)
    name = b""
    writes: list[tuple[int, bytes]] = []
    mutex = mutex_of(raw)
    in_mutex = False
    if mutex is not None and len(mutex.data) >= ROOM:
        name = owner_text(len(mutex.data), owner)
        in_mutex = mutex.fits(name)
    if not in_mutex:
        name = owner_text(owner=owner)
    if mutex is not None and in_mutex:
        writes.append((mutex.position, mutex.filled(name)))
    elif mutex is not None and mutex.holder:
        writes.append((mutex.position, mutex.filled(b"")))
    counted = retries_of(raw) if pull else None
    if counted is not None:
        left = b"%d" % max(int(counted.data) - 1, 0)
        writes.append((counted.position, left.ljust(len(counted.data))))
    return Taking(writes, IN_MUTEX if in_mutex else IN_LEDGER, name, counted)


class Ahead:
    """The candidates of one claimer."""

    def __init__(self) -> None:
        """Begin without any."""
        self._state: tuple[object, ...] = ()
        self._how: tuple[str | None, bool] = None, True
        self._data = b""
        self._start = self._at = 0
        self._prepared: list[Candidate] = []

    def keep(self, data: bytes, position: int, at: int, state: tuple[object, ...]) -> None:
        """Keep a part of the file.

        Args:
            data: whole chunks.
            position: their position in the file.
            at: where the unread ones begin in data.
            state: what they depend on.
        """
        self._data, self._start, self._at, self._state = data, position, at, state
        self._prepared = []

    def candidates(
        self, state: tuple[object, ...], owner: str | None, *, pull: bool, taken: Callable[[int], bool]
    ) -> list[Candidate]:
        """Return the next messages, prepared for a claim; empty if the file must be searched.

        Args:
            state: the current state; if it differs, what was kept is not valid any more.
            owner: as for :func:`taking`.
            pull: as for :func:`taking`.
            taken: returns whether the message at a position is claimed, or is left for later.
        """
        if state != self._state:
            return []
        if (owner, pull) != self._how:
            if self._prepared:
                self._at = self._prepared[0].position - self._start
            self._how, self._prepared = (owner, pull), []
        self._prepared = [one for one in self._prepared if not taken(one.position)]
        while len(self._prepared) < _CANDIDATES and (raw := self._next()):
            position = self._at - len(raw) + self._start
            if not taken(position):
                edit = taking(raw, owner, pull=pull)
                new = changed(raw, edit.writes)
                head = head_of(edit.kind, position, new)
                retries = None if edit.counted is None else edit.counted.data
                self._prepared.append(Candidate(position, raw, new, head, edit.name, retries))
        return self._prepared

    def passed(self, position: int) -> None:
        """Drop the candidates up to a position: the last one was claimed, and the others are not free."""
        self._prepared = [one for one in self._prepared if one.position > position]

    def _next(self) -> bytes:
        """Return the next queued message; empty: there is none, or the claim in its mutex must be examined."""
        data, at = self._data, self._at
        if data[at : at + 1] != b"-":
            at = data.find(b"\n-", max(at - 1, 0)) + 1
            if not at:
                self._at = len(data)
                return b""
        match = ENTRY.match(data, at)
        assert match is not None
        raw = match.group()
        mutex = mutex_of(raw)
        if (mutex is not None and mutex.holder) or not raw.endswith(b"\n"):
            self._data = data[:at]
            self._at = at
            return b""
        self._at = match.end()
        return raw
