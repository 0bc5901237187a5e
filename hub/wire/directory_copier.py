"""One SEJ directory on its way to the hub: its state on the hub, and the next pass over its new messages.

Built on a cursor that reads whole encoded messages, the journal's kept offset of the reader ``hub``, and two calls of
the hub: the state of the journal, and copying bytes.

Messages are synced here before they are sent, so that the hub never has messages that this machine may still lose. The
kept offset follows the hub's acknowledgements, also back if the hub lost messages, so that local retention waits for
the hub. The first chunk of a feed, after a failure, and of a re-created journal repeats the last message that the hub
has, so that the hub notices if the two journals differ. Messages after damage are never left out silently.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from hub.errors import ConflictError, GapError, NotSupportedError
from hub.wire.client import JournalState
from sej.errors import SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.disk_compare import sync_up_to
from sej.journal.identity import Incarnation
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.reading.offset import Offset
from sej.system.disk import Disk
from sej.system.watch import Watch

_CHUNK_BYTES: Final = 1 << 18
_COMMIT_BYTES: Final = 1 << 26


class Hub(Protocol):
    """What a copier needs of a hub; :class:`hub.wire.Client` implements it."""

    def where(self, journal_dir: str, *, own: range) -> JournalState:
        """Return the state of a journal; the hub logs it if the offsets of the client's journal do not fit."""

    def copy(
        self, journal_dir: str, chunks: Iterable[bytes], *, create: bool, accept_gaps_from: int | None
    ) -> Iterator[int]:
        """Copy encoded messages; yields offsets below which everything is durable.

        Args:
            journal_dir: the journal's name on the hub.
            chunks: each holds whole messages.
            create: whether the first chunk may start a journal that the hub does not have.
            accept_gaps_from: the offset that the hub expects, if it is to record messages that are missing from there
                on as lost; None: it refuses what follows.
        """


@dataclass
class Progress:
    """The progress of a copier.

    Attributes:
        journals: directories found.
        messages: messages copied since it started.
        bytes: bytes sent since it started.
        failures: the directories that could not be copied last time, with their errors.
    """

    journals: int
    messages: int
    bytes: int
    failures: dict[str, SejError]

    def __str__(self) -> str:
        """Format one line for a terminal."""
        line = f"{self.journals} journals, {self.messages:,} messages, {self.bytes / 1e6:,.1f} MB copied"
        return f"{line}, {len(self.failures)} failing: {', '.join(sorted(self.failures))}" if self.failures else line


@dataclass
class Run:
    """One run of a copier: until it is stopped, or a time has passed."""

    progress: Progress
    on_progress: Callable[[Progress], None] | None
    stop: threading.Event | None = None
    deadline: float | None = None

    def acknowledged(self, messages: int, sent_bytes: int) -> None:
        """Note what became durable on the hub."""
        self.progress.messages += messages
        self.progress.bytes += sent_bytes
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def stopped(self) -> bool:
        """Return True to leave the rest for later."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or (self.stop is not None and self.stop.is_set())


class DirectoryFeed:
    """Copies one directory.

    Attributes:
        name: the journal's name on the hub.
        acknowledged: everything below it is durable on the hub; None: not known yet.
        failures: passes in a row that failed.
        retry_at: when to try again, by the monotonic clock.
    """

    def __init__(self, path: str, name: str, reader: str, disk: Disk, *, accept_gaps: bool = False) -> None:
        """Set the directory; nothing is opened."""
        self.path = path
        self.name = name
        self.acknowledged: int | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.sent_bytes = 0
        self._reader = reader
        self._disk = disk
        self._accept_gaps = accept_gaps
        self._expected = 0
        self._directory = Directory(path, disk)
        self._tail = Tail(self._directory)
        self._cursor: Cursor | None = None
        self._create = False
        self._watch: Watch | None = None
        self._incarnation: Incarnation | None = None
        self._judged: tuple[object, int] | None = None
        self._last = ""  # the path of the last segment found
        self._reading = threading.Lock()
        """Held by the thread that reads for gRPC, which may not have noticed yet that its call has ended."""

    def register(self) -> None:
        """Create the reader, for which local retention waits from now on. The next pass reports what fails here.

        It keeps an offset immediately, because later the disk may be too full for one.
        """
        with (
            suppress(SejError, OSError),  # such as a lock that another copier has: then the reader exists
            Offset(self.path, self._reader, disk=self._disk) as kept,
        ):
            kept.commit(kept.value)

    @property
    def watch(self) -> Watch:
        """Return a watch that wakes when messages are appended."""
        if self._watch is None:
            self._watch = Watch(self._directory.jnl)
        return self._watch

    def has_news(self) -> bool:
        """Return whether there are messages that the hub has not acknowledged, or the directory must be checked."""
        try:
            return self.acknowledged != self._tail.end_offset()
        except (SejError, OSError):  # the next pass reports it
            return True

    def copy(self, hub: Hub, run: Run) -> int:
        """Copy the messages that exist now.

        Args:
            hub: the hub.
            run: notes every step, and decides whether the rest is left for later.

        Returns:
            How many messages the hub did not have before.

        Raises:
            GapError: the hub expects messages that were deleted here.
            ConflictError: the hub has other messages under this name.
            LockedError: another copier copies this directory.
            CorruptionError: messages follow damage here; those before it were copied.
            UnavailableError: the hub cannot be reached, or tells the client to try again later.
        """
        if self._is_another():
            self.forget()
        end = self._tail.end_offset()
        copied = 0
        if self.acknowledged != end:
            with Offset(self.path, self._reader, disk=self._disk) as kept:
                end = self._tail.end_offset()  # another copier may have copied newer messages until now
                try:
                    copied = self._copy(hub, kept, end, run)
                except BaseException:
                    self.forget()
                    raise
        if not run.stopped():
            self._judge(end)
        return copied

    def forget(self) -> None:
        """After a failure, ask the hub again for the journal's state."""
        self.acknowledged = self._incarnation = self._judged = None
        with self._reading:
            cursor, self._cursor = self._cursor, None
            self._tail = Tail(self._directory)  # another journal's end says nothing about this one
        if cursor is not None:
            cursor.close()

    def close(self) -> None:
        """Close what the feed has opened."""
        self.forget()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _copy(self, hub: Hub, kept: Offset, end: int, run: Run) -> int:
        if self.acknowledged is None or self._cursor is None:
            self._incarnation = Incarnation.look(self._directory)
            first = Journal(self.path, disk=self._disk).first_offset
            try:
                state = hub.where(self.name, own=range(0 if self._accept_gaps else first, end))
            except NotSupportedError:  # an original hub: it drops what it has, and refuses a gap
                state = JournalState(True, 0, kept.value)
            self._start(state, first, end)
            assert self.acknowledged is not None
            if kept.value > self.acknowledged:  # the hub lost messages: retention here must wait for them again
                kept.reset(self.acknowledged)
        assert self._cursor is not None
        copied = committed_at = 0
        accepted = self._expected if self._accept_gaps else None
        done_bytes = self.sent_bytes
        try:
            if self._cursor.due < end:
                chunks = self._chunks(self._cursor, end, run)
                for offset in hub.copy(self.name, chunks, create=self._create, accept_gaps_from=accepted):
                    passed = [gap for gap in self._cursor.gaps if self.acknowledged <= gap.start < offset]
                    step = max(offset - self.acknowledged - sum(gap.missing for gap in passed), 0)
                    self.acknowledged = self._expected = max(offset, self.acknowledged)
                    self._create = False
                    copied += step
                    run.acknowledged(step, self.sent_bytes - done_bytes)
                    committed_at += self.sent_bytes - done_bytes
                    done_bytes = self.sent_bytes
                    if committed_at >= _COMMIT_BYTES:
                        kept.commit(self.acknowledged)
                        committed_at = 0
        except GapError as error:
            raise self._way_over(error) from error
        finally:
            kept.commit(self.acknowledged)
        if self.acknowledged < self._cursor.due:
            raise GapError(
                f"{self.name}: the hub acknowledged the messages before offset {self.acknowledged}, but those before"
                f" {self._cursor.due} were sent; copy again to send the rest",
                expected=self.acknowledged,
                path=self.path,
            )
        self._cursor.park()
        return copied

    def _start(self, state: JournalState, first: int, end: int) -> None:
        """Decide where to continue, from the state of the journal on the hub."""
        self._create = not state.known
        due = state.next_offset
        if not state.known:
            due = start = first
        elif due > end:
            raise ConflictError(
                f"{self.name}: the hub has messages up to {due - 1}, but the journal ends with {end - 1}: it lost"
                " messages or was re-created; copy it under another name (--journal)",
                path=self.path,
                offset=end,
            )
        elif due < first and not self._accept_gaps:
            reason = (
                f"the hub expects message {due}, but the first one here is {first}: those between were deleted here"
            )
            raise self._way_over(GapError(f"{reason} before they were copied", expected=due))
        else:
            start = max(first, due - 1)
        self._expected = due
        self.acknowledged = max(due, first) if self._accept_gaps else due  # no reader needs what is deleted
        self._cursor = Cursor(self._directory, start)

    def _way_over(self, error: GapError) -> GapError:
        """Name the journal, and the way to continue."""
        do = "if they are lost, let the hub record a gap: `sej hub push --accept-gaps` (accept_gaps=True)"
        if error.expected < 0:  # an original hub; it drops what it has
            do = f"to send all of it again, run `sej reset --yes {shlex.quote(self.path)} {self._reader} 0`"
        found = GapError(f"{self.name}: {error.reason}; {do}", expected=error.expected, path=self.path)
        found.offset = error.offset
        return found

    def _chunks(self, cursor: Cursor, end: int, run: Run) -> Iterator[bytes]:
        """Yield the messages up to ``end``, each chunk synced before it is sent."""
        synced = 0
        while cursor.due < end and not run.stopped():
            with self._reading:
                if self._cursor is not cursor:
                    return  # the call has ended
                data, count = cursor.read_encoded(_CHUNK_BYTES)
                if not count:
                    return
                if cursor.due > synced:
                    synced = max(cursor.due, end)
                    sync_up_to(self._directory, synced, self._tail)
                if self._is_another():
                    raise ConflictError(
                        f"{self.name}: the journal was re-created while it was copied; copy it under another name"
                        " (--journal)",
                        path=self.path,
                    )
                self.sent_bytes += len(data)
            yield data

    def _is_another(self) -> bool:
        """Return whether the directory is another journal than the one that the hub was asked about."""
        return self._incarnation is not None and not self._incarnation.is_still(self._directory)

    def _judge(self, end: int) -> None:
        """Check that the bytes after the last good message are a torn tail, which hides no messages.

        Raises:
            CorruptionError: messages follow.
        """
        place = self._tail.place
        if place is None:
            return
        last = self._disk.status(self._last) if self._last else None
        if last is None or last.identity != place.identity:  # there is a new segment: it is found by name
            segments = self._directory.segments()
            self._last = segments[-1].path if segments else ""
            last = self._disk.status(self._last) if self._last else None
        if last is None or last.identity != place.identity or last.size <= place.position:
            return
        if self._judged == (place, last.size):
            return
        with closing(Cursor(self._directory, end, place=place)) as cursor:
            if not cursor.read_encoded(1)[1]:
                cursor.judge()
                self._judged = place, last.size
