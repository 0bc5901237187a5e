"""The face of every work queue: items that are put, taken under a lease, and done.

Backends are opened by :mod:`sej.queue.backends`. This module imports only the lowest layers: it relies on errors,
watching and the standard library, so that every package can build on it.

What the face promises, whatever the backend: an item that was put is handed out until it is done or given up; while a
lease lasts, nobody else gets the item; what a backend cannot do raises :class:`~sej.UnsupportedError` and is not in its
``can``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple, Self

from sej.checks import (
    ANY_SECONDS,
    FLAG,
    ITERABLE,
    POSITIVE,
    SECONDS,
    WAIT,
    a,
    between,
    optional,
    refuse_pickling,
    require,
)
from sej.errors import LeaseLostError, QueueNotFoundError, UnsupportedError
from sej.queue.serializers import Serializer
from sej.system.watch import Watch, wait_any

__all__ = ["CAPABILITIES", "PLAIN", "Item", "Stats", "Wishes", "WorkQueue", "require_known"]

CAPABILITIES: Final = (
    "keys",
    "delay",
    "priority",
    "expire",
    "dedupe",
    "maxsize",
    "retry_delay",
    "extend",
    "deadline",
    "processes",
    "dead_letters",
    "redrive",
    "purge",
)
"""What a backend may or may not be able to do: message keys; put and retry with a delay; priority bands; items that
expire; idempotent puts; a bound; longer leases; leases that end at a deadline and not only with their process; several
processes at once; dead letters, and putting them back; purging."""


def require_known(name: str, known: Collection[str], create: bool | None, path: str) -> None:
    """Make sure that opening a queue does not make one by mistake: a second queue is handed every message again.

    Args:
        name: the queue that is to be opened.
        known: the queues that are there.
        create: None makes the first queue only; True makes any; False makes none.
        path: what holds the queues.

    Raises:
        QueueNotFoundError: the queue would be made, and create does not allow that.
    """
    optional(FLAG)("create", create)
    if name in known or create or (create is None and not known):
        return
    there = f"the queues here are {', '.join(map(repr, sorted(known)))}" if known else "there are no queues here"
    raise QueueNotFoundError(
        f"there is no queue {name!r}; {there}. To make it, pass create=True (--create):"
        " a new queue is handed every message that is in the journal",
        path=path,
        names=sorted(known),
    )


class _Counts(NamedTuple):
    ready: int
    delayed: int
    leased: int
    done: int
    dead: int


class Stats(_Counts):
    """How many items a queue has: a tuple of the first five.

    Attributes:
        ready: can be taken now.
        delayed: wait for their time.
        leased: are in somebody's hands.
        done: were done, as far as the queue remembers.
        dead: were given up and not put back.
        lost: were taken out of the journal, by retention that was told to leave this queue aside, before their turn.
    """

    lost: int = 0

    def __new__(cls, ready: int, delayed: int, leased: int, done: int, dead: int, lost: int = 0) -> Self:
        """Counts; lost stands beside the tuple."""
        self = super().__new__(cls, ready, delayed, leased, done, dead)
        self.lost = lost
        return self

    def _asdict(self) -> dict[str, int]:
        """All six, by name."""
        return {**super()._asdict(), "lost": self.lost}


class Wishes(NamedTuple):
    """What :meth:`WorkQueue.put_many` was asked for, as a backend gets it.

    Attributes:
        delay_s: seconds until the items may be taken.
        priority: their band.
        expire_s: seconds after which nobody wants them any more; None: never.
        dedupe_keys: as many as values, or None.
        timeout: seconds to wait for room; None: for ever.
    """

    delay_s: float = 0.0
    priority: int = 0
    expire_s: float | None = None
    dedupe_keys: Sequence[bytes] | None = None
    timeout: float | None = None


_PRIORITY: Final = between(-3, 3)
_BYTES: Final = a(bytes)
PLAIN: Final = Wishes()
"""Nothing was asked for: most puts."""


class Item(ABC):
    """One item, leased to whoever took it.

    End it with :meth:`done`, :meth:`retry` or :meth:`fail`, or use it as a context manager: done when the block ends
    well, retry when it raises (the exception goes on). All of them raise :class:`~sej.LeaseLostError` where somebody
    else holds the item by now, or it was ended before.
    """

    __reduce__ = refuse_pickling

    __slots__ = ()

    @property
    @abstractmethod
    def value(self) -> Any:
        """What was put; bytes, or what the queue's serializer makes of them."""

    @property
    @abstractmethod
    def key(self) -> bytes:
        """What was put as its key; empty where the backend has no keys."""

    @property
    @abstractmethod
    def message(self) -> Any:
        """What the backend keeps, a :class:`sej.Message` on a journal."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """How often it was handed out, this time included; 1 at first."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether done, retry or fail was called."""

    @abstractmethod
    def done(self) -> None:
        """It is worked off and never comes back."""

    @abstractmethod
    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give it back; after max_attempts it goes to the dead letters instead.

        Args:
            delay_s: seconds until it may be taken again; None: longer with each attempt, with jitter, where the
                backend can delay.
            reason: what went wrong, for the dead letter.
        """

    def give_back(self) -> None:
        """Ready again at once, as nobody worked on it: no attempt, where the backend can tell."""
        self.retry(0.0)

    @abstractmethod
    def fail(self, reason: str = "") -> None:
        """Give it up: it goes to the dead letters."""

    @abstractmethod
    def extend(self, lease_s: float) -> None:
        """Hold it for lease_s seconds from now on."""

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Done, or retry; nothing where the block has ended the item itself."""
        if self.ended:
            return
        if error is None:
            self.done()
            return
        with suppress(LeaseLostError):  # the exception goes on, and somebody else has the item
            self.retry(reason=f"{type(error).__name__}: {error}")


class WorkQueue(ABC):
    """A queue of work for any number of threads and, where ``can`` says so, processes.

    Attributes:
        path: as given on opening.
        name: the queue's.
        can: what this backend can do, of ``keys``, ``delay``, ``priority``, ``expire``, ``dedupe``, ``maxsize``,
            ``retry_delay``, ``extend``, ``deadline``, ``processes``, ``dead_letters``, ``redrive`` and ``purge``.
        serializer: turns values into bytes and back; None: values are bytes.
    """

    __reduce__ = refuse_pickling

    path: str
    name: str
    can: ClassVar[frozenset[str]]
    serializer: Serializer | None = None

    # --- what a backend provides

    @abstractmethod
    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, wishes: Wishes) -> Sequence[int]:
        """Put many items, all or none; what this backend cannot do was refused before. Returns their numbers."""

    @abstractmethod
    def stats(self) -> Stats:
        """How many items there are."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this object still holds, and close; a second time does nothing."""

    @abstractmethod
    def _take(self, n: int) -> list[Item]:
        """Up to n items that can be had now; does not wait."""

    @abstractmethod
    def _watches(self) -> Sequence[Watch]:
        """What changes when there may be something to take; made at the first call."""

    def _due_s(self) -> float | None:
        """In how many seconds something may become ready without anybody's doing; None: never."""
        return None

    def purge(self) -> int:
        """Throw away every item that nobody holds; returns how many."""
        raise self._unsupported("purge")

    def redrive(self, limit: int | None = None) -> int:
        """Put this queue's dead letters back, oldest first, up to limit of them; returns how many."""
        raise self._unsupported("redrive")

    def sync(self) -> None:
        """Force what was put and done through this object so far to the disk."""
        raise self._unsupported("sync")

    # --- what all have in common

    def put(
        self,
        value: Any,
        key: bytes = b"",
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        expire_s: float | None = None,
        dedupe_key: bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put an item.

        Args:
            value: bytes, or what the queue's serializer takes.
            key: up to 127 bytes that travel with it.
            delay_s: seconds until it may be taken.
            priority: a band from -3 to 3; the highest band that has something ready is served first.
            expire_s: seconds after which nobody wants it any more; it is thrown away when its turn comes, or when a
                put needs the room, and counted until then.
            dedupe_key: a put with the same key within the queue's window puts nothing and returns the first's number.
            timeout: seconds to wait for room where the queue has a maxsize; None: for ever.

        Returns:
            Its number, the offset on a journal.

        Raises:
            QueueFullError: no room came within the time-out.
            InvalidMessageError: the format cannot hold it.
        """
        if delay_s != 0 or priority != 0 or expire_s is not None or dedupe_key is not None or timeout is not None:
            dedupe_keys = None if dedupe_key is None else (dedupe_key,)
            return self.put_many(
                (value,),
                (key,) if key else None,
                delay_s=delay_s,
                priority=priority,
                expire_s=expire_s,
                dedupe_keys=dedupe_keys,
                timeout=timeout,
            )[0]
        if key:
            self._require(("keys", True))
        if self.serializer is not None:
            value = self.serializer.encode(value)
        try:
            return self._put((value,), (key,) if key else None, PLAIN)[0]
        except TypeError as error:
            raise self._not_bytes(value) or error from None

    def put_many(
        self,
        values: Iterable[Any],
        keys: Iterable[bytes] | None = None,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        expire_s: float | None = None,
        dedupe_keys: Sequence[bytes] | None = None,
        timeout: float | None = None,
    ) -> Sequence[int]:
        """Put many items; all of them or, where one is invalid, none. See :meth:`put`; returns their numbers.

        Raises:
            QueueFullError: no room for all of them came within the time-out.
        """
        require(
            values=(values, ITERABLE),
            keys=(keys, optional(ITERABLE)),
            dedupe_keys=(dedupe_keys, optional(ITERABLE)),
            delay_s=(delay_s, SECONDS),
            priority=(priority, _PRIORITY),
            expire_s=(expire_s, optional(ANY_SECONDS)),
            timeout=(timeout, WAIT),
        )
        if dedupe_keys is not None:
            dedupe_keys = list(dedupe_keys)
            for dedupe_key in dedupe_keys:
                _BYTES("dedupe_key", dedupe_key)
        self._require(("keys", keys is not None), ("delay", delay_s), ("priority", priority))
        self._require(("expire", expire_s is not None), ("dedupe", dedupe_keys is not None))
        if self.serializer is not None:
            values = map(self.serializer.encode, values)
        values = list(values)
        try:
            return self._put(values, keys, Wishes(delay_s, priority, expire_s, dedupe_keys, timeout))
        except TypeError as error:
            raise next(filter(None, map(self._not_bytes, values)), error) from None

    def get(self, timeout: float | None = None) -> Item | None:
        """Take the next item.

        Args:
            timeout: seconds to wait for one; 0 does not wait, None waits for ever.

        Returns:
            The item, or None when the time-out passed.
        """
        found = self.get_many(1, timeout)
        return found[0] if found else None

    def get_many(self, n: int, timeout: float | None = None) -> list[Item]:
        """Take up to n items as soon as there is one; an empty list when the time-out passed.

        Args:
            n: at most so many; at least 1.
            timeout: seconds to wait for the first; 0 does not wait, None waits for ever.
        """
        POSITIVE("n", n)
        if timeout is not None:
            SECONDS("timeout", timeout)
        found = self._take(n)
        if found or timeout == 0:
            return found
        deadline = None if timeout is None else time.monotonic() + timeout
        watches = self._watches()
        while not (found := self._take(n)):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            due = self._due_s()
            limit = due if left is None else left if due is None else min(left, due)
            wait_any(watches, limit)
        return found

    def done_many(self, items: Iterable[Item]) -> None:
        """End many items; all that can be are done before the first LeaseLostError is raised."""
        lost: LeaseLostError | None = None
        for item in items:
            try:
                item.done()
            except LeaseLostError as error:
                lost = lost or error
        if lost is not None:
            raise lost

    def __len__(self) -> int:
        """How many items wait: ready and delayed."""
        stats = self.stats()
        return stats.ready + stats.delayed

    def __bool__(self) -> bool:
        """Always: an empty queue is a queue."""
        return True

    def __iter__(self) -> Iterator[Item]:
        """Take item after item until none is ready."""
        while (item := self.get(timeout=0)) is not None:
            yield item

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        try:
            self.close()
        except BaseException:
            self.close()  # what a signal's handler interrupted: nobody else comes to finish it
            raise

    def __repr__(self) -> str:
        """Path and name."""
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.path!r} {self.name!r}>"

    def _not_bytes(self, value: Any) -> TypeError | None:
        """The error for a value that is not bytes, with the way out; None if it is bytes."""
        if isinstance(value, bytes | bytearray | memoryview):
            return None
        return TypeError(
            f"value must be bytes, not {type(value).__name__}: encode it, or open the queue with serializer='json'"
        )

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"this backend has no {what}; it can: {', '.join(sorted(self.can)) or 'only put, get and done'}",
            path=self.path,
        )

    def _require(self, *wanted: tuple[str, object]) -> None:
        """Make sure that what was asked for, if it was, is something that this backend can."""
        for capability, value in wanted:
            if value and capability not in self.can:
                raise self._unsupported(capability)
