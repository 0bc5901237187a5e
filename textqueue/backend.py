"""A ``.tq`` file as a work queue: ``sej.open_queue("jobs.tq")``.

A thin face over claims: the file stays one that people edit. What it cannot: keys, delays, priorities, expiry, dedupe
keys, deadlines (a claim lasts as long as its process). Values are text in UTF-8. Attempts are counted by the object
that has the file open; a critical error (``!``) is the dead letter, with its reason in the ``reason`` variable where
the message has one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from sej.errors import LeaseLostError
from sej.watch import Watch
from sej.work import Item, Stats, WorkQueue
from textqueue.claims import Claim
from textqueue.errors import InvalidTextError
from textqueue.grammar import MessageStatus
from textqueue.message import Message
from textqueue.queue import TextQueue

__all__ = ["TextItem", "TextWorkQueue", "open_backend"]


class TextItem(Item):
    """A claimed message of a ``.tq`` file."""

    def __init__(self, queue: TextWorkQueue, claim: Claim, attempts: int) -> None:
        """Claimed for queue."""
        self._queue = queue
        self._claim = claim
        self._attempts = attempts
        self._ended = False

    @property
    def value(self) -> Any:
        """The text as bytes, or what the serializer makes of them."""
        data = self._claim.message.value_bytes
        serializer = self._queue._serializer
        return data if serializer is None else serializer.decode(data)

    @property
    def key(self) -> bytes:
        """Empty: a text message has no key."""
        return b""

    @property
    def message(self) -> Message:
        """The message in the file."""
        return self._claim.message

    @property
    def attempts(self) -> int:
        """How often this object claimed it."""
        return self._attempts

    @property
    def ended(self) -> bool:
        """Whether it was ended here."""
        return self._ended

    def done(self) -> None:
        """Cleared."""
        self._end(self._claim.done)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Queued again at once, or a critical error after max_attempts."""
        self._queue._require(("retry_delay", delay_s))
        if self._attempts >= self._queue.max_attempts:
            self.fail(reason)
        else:
            self._end(self._claim.give_back)

    def fail(self, reason: str = "") -> None:
        """A critical error."""
        self._end(lambda: self._claim.give_up(reason or None))

    def extend(self, lease_s: float) -> None:
        """Nothing to do: a claim lasts as long as its process."""
        raise self._queue._unsupported("extend")

    def _end(self, act: Any) -> None:
        with self._queue.guard:
            if self._ended or not act():
                raise LeaseLostError(
                    "this message is not held any more: it was ended, or somebody edited it meanwhile",
                    path=self._queue.path,
                    position=self._claim.message.position,
                )
            self._ended = True
            self._queue.ended(self)


class TextWorkQueue(WorkQueue):
    """A work queue in a text file; open it with :func:`sej.open_queue`."""

    can: ClassVar[frozenset[str]] = frozenset({"processes", "dead_letters", "redrive"})

    def __init__(self, path: str, name: str, *, max_attempts: int = 5, lease_s: float | None = None) -> None:
        """Open a file.

        Args:
            path: the ``.tq`` file; it need not exist yet.
            name: of no meaning here: everybody shares the file's marks.
            max_attempts: after so many attempts a message is marked as a critical error.
            lease_s: taken and left aside: a claim lasts as long as its process.
        """
        if max_attempts < 1:
            raise ValueError(f"max_attempts {max_attempts}: at least 1 is due")
        self.path = path
        self.name = name
        self.max_attempts = max_attempts
        self.guard = threading.RLock()
        self._queue = TextQueue(path)
        self._held: list[TextItem] = []
        self._tries: dict[tuple[str, int], int] = {}
        self._watched: list[Watch] = []

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
        """Append messages; returns their positions in the file."""
        self._require(("keys", keys), ("delay", delay_s), ("priority", priority), ("expire", expire_s))
        self._require(("dedupe", dedupe_keys))
        encode = self._serializer.encode if self._serializer is not None else _same
        try:
            texts = [encode(value).decode() for value in values]
        except UnicodeDecodeError as error:
            raise InvalidTextError(f"a text queue takes UTF-8: {error}") from error
        with self.guard:
            return [message.position for message in self._queue.append_many(texts)]

    def stats(self) -> Stats:
        """Counts by reading the files."""
        with self.guard:
            counts = dict.fromkeys(MessageStatus, 0)
            for message in self._queue.messages(set(MessageStatus)):
                counts[message.status] += 1
            held = len(self._held)
            ready = max(counts[MessageStatus.queued] - held, 0)
            return Stats(ready, 0, held, counts[MessageStatus.cleared], counts[MessageStatus.critical])

    def redrive(self, limit: int | None = None) -> int:
        """Queue critical errors again."""
        with self.guard:
            dead = list(self._queue.messages({MessageStatus.critical}))[:limit]
            for message in dead:
                message.mark_as_queued()
            return len(dead)

    def sync(self) -> None:
        """Force the files to the disk."""
        self._queue.sync()

    def close(self) -> None:
        """Give back what is held, and close."""
        with self.guard:
            for item in list(self._held):
                item._end(item._claim.give_back)
            for watch in self._watched:
                watch.close()
            self._watched = []
            self._queue.close()

    def ended(self, item: TextItem) -> None:
        """Take note of an item that its holder ended."""
        self._held.remove(item)

    def _take(self, n: int) -> list[Item]:
        with self.guard:
            found: list[Item] = []
            while len(found) < n and (claim := self._queue.take()) is not None:
                place = (claim.message.path, claim.message.position)
                self._tries[place] = self._tries.get(place, 0) + 1
                item = TextItem(self, claim, self._tries[place])
                self._held.append(item)
                found.append(item)
            return found

    def _watches(self) -> Sequence[Watch]:
        if not self._watched:
            self._watched = [Watch(os.path.dirname(self.path) or ".")]
        return self._watched

    def _due_s(self) -> float | None:
        return 0.5  # a dead worker's claim, or a last line that has settled, makes no event


def _same(value: bytes) -> bytes:
    return value


def open_backend(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``textqueue`` of ``sej.backends`` names."""
    return TextWorkQueue(path, name, **options)
