"""The worker: claims free shards, handles their messages, and shares the shards with its fellows.

There is no coordinator. A worker of a name counts the living by their lock slots (:mod:`shard.slots`), works out its
share, claims free shards by their readers' locks until it has it, and lets go of what is too much. All of that rests
on locks that die with their process; no clock decides who is alive.

What it promises: two workers of a name never handle one shard at once, because a shard's reader lock has one holder; a
message is handled at least once, in order within its shard, and more than once only after a worker died or lost its
lock; a new worker gets its share as soon as its fellows have finished what they have in hand; a dead one's shards are
taken up within a second.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections import deque
from dataclasses import replace
from types import FrameType
from typing import Any, Final

from sej.checks import DISK, PATH, POSITIVE, SECONDS, START, WAIT, optional, require
from sej.errors import JournalNotFoundError, LockedError, LockLostError
from sej.journal.directory import check_name
from sej.message import FIRST, Start
from sej.system.disk import OS, Disk
from shard.claims import Claim, Handler, Terms
from shard.files import make_room
from shard.names import Path
from shard.slots import Slot
from shard.sources import Sources

__all__ = ["Worker"]

_BALANCE_S: Final = 0.25
"""So often the living are counted: what a death or a join costs at most before it is noticed."""
_LOOK_S: Final = 5.0
"""So often all shards are looked for anew; new ones are told of by the system."""
_FILES_A_CLAIM: Final = 2
_FETCH_S: Final = 0.05
"""So often a busy worker looks which of its other shards have something to do."""
_TURN: Final = 256
_TURN_S: Final = 0.1


class Worker:
    """Handles the messages of a tree's shards, together with all other workers of its name.

    Example:
        >>> import tempfile, shard
        >>> p = shard.Path(tempfile.mkdtemp(), "orders", 1)
        >>> with shard.Writer(p) as w:
        ...     _ = w.append_many([b"a", b"b"], [b"alice", b"alice"])
        >>> Worker(p, "mailer", timeout=0.0).run(lambda index, message: print(index, message.value))
        1 b'a'
        1 b'b'
        2
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        max_attempts: int = 5,
        dead_letter: str | os.PathLike[str] | None = None,
        default: int | Start = FIRST,
        timeout: float | None = None,
        backoff_s: float = 0.1,
        backoff_max_s: float = 30.0,
        max_open: int = 256,
        disk: Disk = OS,
    ) -> None:
        """Name a worker; nothing is opened before :meth:`run`.

        Args:
            path: the tree.
            name: the reader's name in every shard: workers of one name share the shards.
            max_attempts: how often a message is tried.
            dead_letter: the journal that takes what failed so often; None: the worker stops instead.
            default: where a shard starts that nobody of this name ever read; one that is made while the worker runs
                starts at its first message.
            timeout: seconds without a message after which :meth:`run` returns; None: only when stopped.
            backoff_s: the wait before the second attempt, in seconds; doubled for each further one, with jitter. The
                other shards go on meanwhile.
            backoff_max_s: the longest wait.
            max_open: so many shards have a segment open at a time.
            disk: the seam.

        Raises:
            InvalidNameError: the name could leave its directory.
        """
        if not isinstance(path, Path):
            raise TypeError(f"path must be a shard.Path, not {type(path).__name__}: shard.Path(root, prefix, bits)")
        require(
            max_attempts=(max_attempts, POSITIVE),
            dead_letter=(dead_letter, optional(PATH)),
            default=(default, START),
            timeout=(timeout, WAIT),
            backoff_s=(backoff_s, SECONDS),
            backoff_max_s=(backoff_max_s, SECONDS),
            max_open=(max_open, POSITIVE),
            disk=(disk, DISK),
        )
        self.path = path
        self.name = check_name(name, "a worker's name")
        self._timeout = timeout
        self._max_open = max_open
        self._disk = disk
        self._terms = Terms(
            max_attempts=max_attempts,
            dead_letter=None if dead_letter is None else os.fspath(dead_letter),
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
            default=default,
            disk=disk,
        )
        self._stop = threading.Event()
        self._claims: dict[int, Claim] = {}
        self._row: deque[int] = deque()
        self._absent: set[int] = set()
        self._late: set[int] = set()
        """Shards that were not there when this run looked: none of their messages is older than the worker."""
        self._most = path.count
        self._look_at = 0.0

    @property
    def shards(self) -> list[int]:
        """The shards in this worker's hands."""
        return sorted(self._claims)

    def stop(self) -> None:
        """Let :meth:`run` return after the message in hand, from any thread or signal handler."""
        self._stop.set()

    def run(self, handler: Handler, *, timeout: float | Start | None = FIRST) -> int:
        """Handle messages until :meth:`stop`, SIGTERM (in the main thread), or until none came for the time-out.

        Args:
            handler: called with a shard's index and a message; an exception is a failed attempt.
            timeout: instead of the worker's own, in seconds.

        Returns:
            How many messages were handled, dead letters among them.

        Raises:
            RetriesExhaustedError: a message failed max_attempts times and there is no dead letter; its place is kept.
            JournalNotFoundError: the root is not there.
            SejError: as :class:`sej.Scanner` and :class:`sej.Offset`; the path names the shard.
        """
        if self._disk.status(self.path.root) is None:
            raise JournalNotFoundError("there is nothing here; a shard.Writer makes its root", path=self.path.root)
        room = make_room(_FILES_A_CLAIM * self.path.count + min(self._max_open, self.path.count))
        max_open = min(self._max_open, max(room // 4, 1))
        self._most = max((room - max_open) // _FILES_A_CLAIM, 1)
        wait = self._timeout if isinstance(timeout, Start) else timeout
        slot = Slot(self.path.root, self.name, self._disk)
        sources = Sources(self.path, max_open=max_open, disk=self._disk)
        self._late.clear()
        previous = self._catch_sigterm()
        try:
            return self._run(handler, wait, slot, sources)
        finally:
            try:
                self._release(list(self._claims), sources)
            finally:
                sources.close()
                slot.release()
                self._stop.clear()
                if previous is not None:
                    signal.signal(signal.SIGTERM, previous)

    def _run(self, handler: Handler, timeout: float | None, slot: Slot, sources: Sources) -> int:
        handled = 0
        balance_at = fetch_at = 0.0
        quiet_since = time.monotonic()
        self._look_at = 0.0
        sources.watch()
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= balance_at:
                self._balance(slot, sources)
                balance_at = time.monotonic() + _BALANCE_S
            if self._row and now < fetch_at:
                done = self._turn(handler, sources)
                handled += done
                if done:
                    quiet_since = time.monotonic()
                continue
            now = time.monotonic()
            retries = [claim.retry_at for claim in self._claims.values() if claim.retry_at]
            limit = 0.0
            if not self._row:
                limit = min([balance_at, *retries]) - now
                if timeout is not None and not retries:
                    if now - quiet_since >= timeout:
                        break
                    limit = min(limit, quiet_since + timeout - now)
            self._fetch(sources, max(limit, 0.0))
            fetch_at = time.monotonic() + _FETCH_S
        return handled

    def _fetch(self, sources: Sources, limit: float) -> None:
        """Wait until there is something to do, at most so many seconds; the shards concerned go into the row."""
        fresh, new = sources.wait(limit)
        if new:
            self._absent = set(sources.missing(self._absent))
        due = [claim.index for claim in self._claims.values() if 0 < claim.retry_at <= time.monotonic()]
        waiting = set(self._row)
        self._row.extend(index for index in {*fresh, *due} if index in self._claims and index not in waiting)

    def _turn(self, handler: Handler, sources: Sources) -> int:
        """Handle a batch of the shard whose turn it is; a shard at its end, or with a failure, leaves the row."""
        index = self._row.popleft()
        claim = self._claims.get(index)
        if claim is None or claim.retry_at > time.monotonic():
            return 0
        claim.retry_at = 0.0
        source = sources.there[index]
        until = time.monotonic() + _TURN_S
        batch = sources.read(index, _TURN)
        try:
            if not batch:
                claim.commit()  # nothing to do here: a good moment
                source.cursor.judge()
                return 0
            done = claim.handle(handler, batch, lambda: self._stop.is_set() or time.monotonic() >= until)
        except LockLostError:
            self._forget(index, sources)  # somebody else may have it: what was not committed is theirs again
            return 0
        if claim.done != source.offset:
            sources.leave(index)
            sources.join(index, claim.done)
        if not claim.retry_at:
            self._row.append(index)
        return done

    # --- which shards are ours

    def _balance(self, slot: Slot, sources: Sources) -> None:
        """Let go of what is more than our share; claim what is free until we have it."""
        if time.monotonic() >= self._look_at:
            self._absent = set(sources.missing(range(self.path.count)))
            self._late |= self._absent
            self._look_at = time.monotonic() + _LOOK_S
        there = [index for index in range(self.path.count) if index not in self._absent]
        standing = slot.standing()
        share = standing.share(len(there))
        if share > self._most:
            warnings.warn(
                f"this worker may not open enough files for its {share} shards of {self.path.root} and leaves"
                f" {share - self._most} of them alone: allow it more, with ulimit -n, or start more workers",
                RuntimeWarning,
                stacklevel=2,
            )
            share = self._most
        if len(self._claims) > share:
            self._release(sorted(self._claims)[share:], sources)
        if len(self._claims) < share:
            start = standing.rank * len(there) // standing.workers
            for index in [*there[start:], *there[:start]]:
                if len(self._claims) >= share:
                    break
                if index not in self._claims:
                    self._claim(index, sources)

    def _claim(self, index: int, sources: Sources) -> None:
        try:
            terms = replace(self._terms, default=FIRST) if index in self._late else self._terms
            claim = Claim(index, self.path.dir(index), self.name, terms)
        except LockedError:
            return
        except JournalNotFoundError:  # removed since we looked
            self._absent.add(index)
            return
        self._claims[index] = claim
        sources.join(index, claim.done)
        self._row.append(index)

    def _release(self, indexes: list[int], sources: Sources) -> None:
        """Let go of shards, all of them whatever goes wrong with one."""
        errors: list[Exception] = []
        for index in indexes:
            claim = self._claims.pop(index)
            sources.leave(index)
            try:
                claim.release()
            except LockLostError:
                continue
            except Exception as error:
                errors.append(error)
        self._row = deque(index for index in self._row if index in self._claims)
        if errors:
            raise errors[0]

    def _forget(self, index: int, sources: Sources) -> None:
        self._release([index], sources)

    def _catch_sigterm(self) -> Any:
        """Let SIGTERM stop us; what handled it before, or None outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None

        def stop(_: int, __: FrameType | None) -> None:
            self._stop.set()

        return signal.signal(signal.SIGTERM, stop)
