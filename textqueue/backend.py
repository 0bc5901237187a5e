"""A ``.tq`` file as a work queue: ``sej.open_queue("jobs.tq")``.

A thin layer over claims. Users can still edit the file.

- Values are text in UTF-8. Keys, delays, priorities, expiry times and dedupe keys are not supported.
- A claim lasts as long as the process that holds it. With ``lease_s`` it ends earlier, at its deadline.
- The ledger counts the failures of a message, and has its delay. A message with a ``retries`` variable counts them
  there as well. A save of a person may end the delay, and the count begins again.
- A dead letter is a message marked as a critical error (``!``). Its ``reason`` variable, if any, holds the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from sej.checks import POSITIVE_SECONDS, Seconds, options_of, reason_of, refuse_unknown, require, seconds
from sej.errors import InvalidMessageError
from sej.queue.interface.in_memory_leases import HeldItem, HoldingQueue
from sej.queue.interface.queue import OPENING, Item, WorkQueue, require_known
from sej.queue.interface.values import Backoff, PutOptions, Stats
from sej.system.disk import OS, absolute_name
from textqueue.claiming import Claim
from textqueue.errors import InvalidTextError
from textqueue.format.parser import MessageStatus
from textqueue.queue import TextQueue


class _Claimed(HeldItem):
    """An item whose message may have a ``retries`` variable."""

    __slots__ = ()
    _hold: Claim

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Put the item back; if its message has used up its ``retries``, make it a dead letter."""
        delay_s, text = seconds("delay_s", delay_s), reason_of(reason)
        require(delay_s=delay_s)
        if self.attempts >= self._queue.max_attempts:
            self.fail(text)
            return
        wait_s = Backoff().after(self.attempts) if delay_s is None else delay_s
        with self._queue.guard:
            self._end(self._is_held() and self._hold.failed(text or None, delay_s=wait_s))

    def extend(self, lease_s: Seconds) -> None:
        """Let the lease end ``lease_s`` seconds from now. Without a lease, nothing changes."""
        lease_s = seconds("lease_s", lease_s)
        POSITIVE_SECONDS("lease_s", lease_s)
        with self._queue.guard:
            self._require_held(self._is_held() and self._hold.extend(lease_s))


class TextWorkQueue(HoldingQueue):
    """A work queue in a text file; open it with :func:`sej.open_queue`."""

    can: ClassVar[frozenset[str]] = frozenset(
        {"retry_delay", "extend", "deadline", "processes", "dead_letters", "redrive"}
    )
    _instead: ClassVar[str] = "; the commands of `sej tq` list and change the messages of a .tq file"

    def __init__(
        self,
        path: str,
        name: str,
        *,
        max_attempts: int = 5,
        lease_s: Seconds | None = None,
        create: bool | None = None,
    ) -> None:
        """Open a file.

        Args:
            path: the ``.tq`` file, which need not exist, or a directory of such files.
            name: not used: all workers share the marks in the file.
            max_attempts: a message is marked as a critical error after this many attempts.
            lease_s: after this many seconds another worker may take an item, even if its process is alive. None: a
                claim lasts as long as its process.
            create: False: the file must exist.

        Raises:
            QueueNotFoundError: the file does not exist, and create is False.
            ValueError: lease_s is not more than 0.
        """
        lease_s = seconds("lease_s", lease_s)
        path = absolute_name(path)
        super().__init__(path, name, max_attempts, lease_s, os.path.dirname(path))
        require_known(name, () if OS.status(path) is None else (name,), create, path)
        self._queue = TextQueue(path, lease_s=lease_s)

    def stats(self) -> Stats:
        """Read the files and count their messages."""
        with self.guard:
            counts = dict.fromkeys(MessageStatus, 0)
            delayed = 0
            for message in self._queue.messages(set(MessageStatus)):
                counts[message.status] += 1
                waits = message.source.is_waiting(message.position, message.raw)
                delayed += message.status is MessageStatus.queued and waits
            held = len(self._held)
            ready = max(counts[MessageStatus.queued] - held - delayed, 0)
            return Stats(ready, delayed, held, counts[MessageStatus.cleared], counts[MessageStatus.critical])

    def redrive(self, limit: int | None = None) -> int:
        """Queue critical errors again."""
        with self.guard:
            dead = list(self._queue.messages({MessageStatus.critical}))[:limit]
            for message in dead:
                message.mark_as_queued()
            return len(dead)

    def sync(self) -> None:
        """Sync the files to disk."""
        self._queue.sync()

    def close(self) -> None:
        """Give back the claimed messages, and close."""
        with self.guard:
            self._give_all_back()
            self._queue.close()

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        """Append messages, and return their positions in the file."""
        try:
            texts = [str(value, "utf-8") for value in values]
            with self.guard:
                return [message.position for message in self._queue.append_many(texts)]
        except UnicodeDecodeError as error:
            raise InvalidMessageError(f"values of a text queue must be UTF-8: {error}", path=self.path) from error
        except InvalidTextError as error:
            raise InvalidMessageError(error.reason, path=self.path) from error

    def _take(self, n: int, max_bytes: int | None = None) -> list[Item]:
        """Take items. If the only one may still grow, wait for it, without the guard."""
        return self._queue._settling(lambda: super(TextWorkQueue, self)._take(n) or None) or []

    def _reserve(self) -> HeldItem | None:
        claim = self._queue._take_now()
        if claim is None:
            return None
        message = claim.message
        place = (message.path, message.position)
        return _Claimed(
            self, message, message.value_bytes, claim.attempts, claim, place=place, position=message.position
        )

    def _due_s(self) -> float | None:
        return 0.5  # no event is reported if a worker dies, or if the last line has been quiet for settle_s


def open_backend(path: str, name: str, **options: Any) -> WorkQueue:
    """Open a text queue: the entry point ``textqueue`` of ``sej.backends``."""
    refuse_unknown("a queue in a text file", options, options_of(TextWorkQueue.__init__), OPENING)
    return TextWorkQueue(path, name, **options)
