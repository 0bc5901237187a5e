"""The values that a work queue takes and returns: counts, options of a put, and items as they are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sej.backoff import backoff
from sej.queue.interface.serializers import Serializer, decoded

STATES: Final = ("waiting", "ready", "delayed", "leased", "dead")
"""The states that :meth:`sej.WorkQueue.items` takes; waiting: ready or delayed."""


class Backoff(NamedTuple):
    """How long an item waits after a failed attempt.

    Attributes:
        first_s: the wait after the first attempt; doubled after each further one.
        longest_s: the longest wait.
    """

    first_s: float = 1.0
    longest_s: float = 600.0

    def after(self, attempts: int) -> float:
        """Return the wait in seconds, with jitter, so that items that failed together do not return together."""
        return backoff(attempts, self.first_s, self.longest_s)


class Stats(dict[str, int]):
    """The number of a queue's items, by state: a dict, so that JSON has the names, whose keys are attributes too.

    Attributes:
        ready: items that can be taken now.
        delayed: items that wait for their time.
        leased: items that workers hold.
        done: items that were done, as far as the queue remembers.
        dead: items that were given up and not put back, without those whose letters retention removed.
        lost: items that retention removed from the journal before they were delivered, because its
            caller ignored this queue.
        paused: whether ``pause`` was called: no item is delivered until ``resume``. It is a key only if it is True.
    """

    ready: int
    delayed: int
    leased: int
    done: int
    dead: int
    lost: int

    def __init__(
        self, ready: int, delayed: int, leased: int, done: int, dead: int, lost: int = 0, *, paused: bool = False
    ) -> None:
        """Create the counts."""
        super().__init__(ready=ready, delayed=delayed, leased=leased, done=done, dead=dead, lost=lost)
        if paused:
            self["paused"] = True

    @property
    def paused(self) -> bool:
        """Whether no item is delivered until ``resume``."""
        return bool(self.get("paused"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> int:
            """Return a count."""
            try:
                return self[name]
            except KeyError:
                raise AttributeError(f"{name!r} is not a count of a queue; it has {', '.join(self)}") from None

    def __repr__(self) -> str:
        """Show the counts by name."""
        return f"Stats({', '.join(f'{name}={count}' for name, count in self.items())})"


class Wishes(NamedTuple):
    """The options of :meth:`sej.WorkQueue.put_many`, for a backend.

    Attributes:
        delay_s: seconds until the items may be taken.
        priority: their priority.
        expire_s: seconds after which they expire; None: never.
        dedupe_keys: one for each value, or None.
        timeout: seconds to wait for room; None: without a limit.
        headers: of each item; None: none.
    """

    delay_s: float = 0.0
    priority: int = 0
    expire_s: float | None = None
    dedupe_keys: Sequence[bytes] | None = None
    timeout: float | None = None
    headers: Mapping[str, str] | None = None


PLAIN: Final = Wishes()
"""No options, as for most puts."""


class QueuedItem(NamedTuple):
    """An item as :meth:`sej.WorkQueue.peek` and :meth:`sej.WorkQueue.items` list it; nothing holds it.

    Attributes:
        offset: its number.
        state: ``"ready"``, ``"delayed"``, ``"leased"`` or ``"dead"``.
        attempts: how often it was delivered.
        ready_at: when it may be taken, or when its lease ends: nanoseconds since the epoch, UTC; None: now or never.
        holder: the process that holds it; None: no process does.
        priority: its priority.
        reason: why it was given up, for a dead letter.
        message: the backend's own object, a :class:`sej.Message` on a journal.
        serializer: decodes the value; None: values are bytes.
        headers: the headers that were put.
        traceback: of the exception for which it was given up, for a dead letter.
    """

    offset: int
    state: str
    attempts: int
    ready_at: int | None
    holder: str | None
    priority: int
    reason: str
    message: Any
    serializer: Serializer | None = None
    headers: Mapping[str, str] = {}
    traceback: str = ""

    @property
    def key(self) -> bytes:
        """The key that was put."""
        key: bytes = self.message.key
        return key

    @property
    def value(self) -> Any:
        """The value that was put, as bytes or as an object of the queue's serializer.

        Raises:
            InvalidMessageError: the serializer cannot decode it.
        """
        return decoded(self.serializer, self.message.value, None, self.offset)
