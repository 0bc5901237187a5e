"""The copier: copies a SEJ directory, or a growing sharded journal, to the hub, and keeps the copy up to date.

It stores no position of its own: it asks the hub where to continue. So either side may die at any time. A directory
that cannot be copied (another journal of that name is on the hub, its bytes are damaged) is reported and does not stop
the others. If the hub cannot be reached, the copier waits, longer each time and with jitter, so that many copiers do
not reconnect at the same moment. Memory is bounded by one chunk and gRPC's buffers, whatever the journal's size.

Each directory has a feed. It is built on a cursor that reads whole encoded messages, the journal's kept offset of the
reader ``hub``, and two calls of the hub: the state of the journal, and copying bytes.

Messages are synced here before they are sent, so that the hub never has messages that this machine may still lose. The
kept offset follows the hub's acknowledgements, also back if the hub lost messages, so that local retention waits for
the hub. The first chunk of a feed, after a failure, and of a re-created journal repeats the last message that the hub
has, so that the hub notices if the two journals differ. Messages after damage are never left out silently.
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from hub.errors import AccessError, ConflictError, GapError, NotSupportedError, UnavailableError
from hub.naming import check_journal
from hub.wire.client import JournalState
from hub.wire.status import DirectoryUnavailableError
from sej.checks import TEXT, Seconds, backoff, optional, require, seconds, with_methods
from sej.errors import ClosedError, InvalidNameError, JournalNotFoundError, NotAJournalError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import UNFINISHED, Directory, Incarnation, check_name, is_journal, journals_in
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.reading.offset import Offset
from sej.system.disk import OS, Disk, absolute_path
from sej.system.lifecycle import Closing
from sej.system.watch import Watch, wait_any

_log = logging.getLogger(__name__)
_FAILED: Final = "%s cannot be copied: %s"
_LOOK_AT_STOP_S: Final = 0.25
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

    def left(self, most_s: float) -> float:
        """Return how long to wait: at most these seconds, and not longer than the run lasts."""
        return most_s if self.deadline is None else max(0.0, min(most_s, self.deadline - time.monotonic()))

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
        self._directory = Directory(path, disk)
        self._tail = Tail(self._directory)
        self._cursor: Cursor | None = None
        self._create = False
        self._expected = 0
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

    def copy(self, hub: Hub, run: Run) -> None:
        """Copy the messages that exist now.

        Args:
            hub: the hub.
            run: notes every step, and decides whether the rest is left for later.

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
        if self.acknowledged != end:
            with Offset(self.path, self._reader, disk=self._disk) as kept:
                end = self._tail.end_offset()  # another copier may have copied newer messages until now
                try:
                    self._copy(hub, kept, end, run)
                except BaseException:
                    self.forget()
                    raise
        if not run.stopped():
            self._judge(end)

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

    def _copy(self, hub: Hub, kept: Offset, end: int, run: Run) -> None:
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
        assert self.acknowledged is not None
        accepted = self._expected if self._accept_gaps else None
        done_bytes = committed_bytes = self.sent_bytes
        try:
            if self._cursor.due < end:
                chunks = self._chunks(self._cursor, end, run)
                for offset in hub.copy(self.name, chunks, create=self._create, accept_gaps_from=accepted):
                    passed = [gap for gap in self._cursor.gaps if self.acknowledged <= gap.start < offset]
                    step = max(offset - self.acknowledged - sum(gap.missing for gap in passed), 0)
                    self.acknowledged = self._expected = max(offset, self.acknowledged)
                    self._create = False
                    run.acknowledged(step, self.sent_bytes - done_bytes)
                    done_bytes = self.sent_bytes
                    if done_bytes - committed_bytes >= _COMMIT_BYTES:
                        kept.commit(self.acknowledged)
                        committed_bytes = done_bytes
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


class Copier(Closing):
    """Copies a journal or a directory of journals to a hub.

    Attributes:
        path: a SEJ directory, or a directory of them.
        progress: the progress so far.

    Example:
        Two programs, or one::

            client = Client("hub.example.com:7890", client_id="EWR", token=token, tls=ClientTLS(ca="ca.pem"))
            Copier("/var/lib/flights", client).run(stop=event)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        client: Hub,
        *,
        journal_dir: str | None = None,
        reader: str = "hub",
        accept_gaps: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        backoff_s: Seconds = 0.1,
        max_backoff_s: Seconds = 30.0,
        disk: Disk = OS,
    ) -> None:
        """Set what to copy; nothing is opened yet.

        Args:
            path: a SEJ directory, or a directory of them (a sharded journal).
            client: the hub.
            journal_dir: the name on the hub, for a single SEJ directory; default: the directory's own name. Otherwise
                each directory keeps its own.
            reader: the name of the kept offset in ``ofs/``, so that local retention waits for the hub.
            accept_gaps: if messages are lost here that the hub does not have, let it record them as gaps and continue.
                Otherwise the journal is not copied from there on.
            on_progress: called after every acknowledgement, in the copier's thread.
            backoff_s: the most seconds of the first wait after a failure; doubles with each failure.
            max_backoff_s: the most seconds of any wait.
            disk: the disk.
        """
        backoff_s, max_backoff_s = seconds("backoff_s", backoff_s), seconds("max_backoff_s", max_backoff_s)
        require(path=path, accept_gaps=accept_gaps, on_progress=on_progress, backoff_s=backoff_s)
        require(max_backoff_s=max_backoff_s, disk=disk)
        require(client=(client, with_methods("a hub's client", "where")), journal_dir=(journal_dir, optional(TEXT)))
        self.path = absolute_path(path)
        self.progress = Progress(0, 0, 0, {})
        self._client = client
        self._journal_dir = journal_dir
        self._reader = check_name(reader, "a reader's name")
        self._accept_gaps = accept_gaps
        self._on_progress = on_progress
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._disk = disk
        self._feeds: dict[str, DirectoryFeed] = {}

    def run_once(self) -> int:
        """Copy the messages that exist now.

        Returns:
            How many messages the hub did not have before.

        Raises:
            UnavailableError: the hub cannot be reached, or tells the client to try again later.
            AccessError: the hub does not admit this client.
            SejError: the first directory's error, if some could not be copied; the others were. The errors of further
                directories are logged. An OSError of its files is the cause.
            JournalNotFoundError: the path does not exist.
            NotAJournalError: the path is a file.
        """
        before = self.progress.messages
        self._pass(Run(self.progress, self._on_progress), following=False)
        for number, (name, error) in enumerate(self.progress.failures.items()):
            if number:
                _log.error(_FAILED, name, error)
        for error in self.progress.failures.values():
            raise error
        return self.progress.messages - before

    def run(self, stop: threading.Event | None = None, *, timeout: Seconds | None = None) -> int:
        """Follow: copy existing and new messages until ``stop`` is set.

        Args:
            stop: ends the run within a quarter of a second, or when the hub has answered the requests in progress; what
                was acknowledged by then is kept.
            timeout: seconds after which the run ends; None: never.

        Returns:
            How many messages the hub did not have before.

        Raises:
            AccessError: the hub does not admit this client; waiting would not help.
            hub.ConflictError: the hub has other messages under these names, and no directory is left to copy.
            GapError: the same for messages that are missing between the hub's and those here.
            ClosedError: the client was closed.
            NotAJournalError: the path is a file; if nothing exists there, it waits.
            InvalidNameError: the SEJ directory's name is not allowed on the hub.
        """
        timeout = seconds("timeout", timeout)
        stop = stop or threading.Event()
        deadline = None if timeout is None else time.monotonic() + timeout

        run = Run(self.progress, self._on_progress, stop, deadline)
        before = self.progress.messages
        failures = 0
        root = Watch(self.path)
        try:
            while not run.stopped():
                try:
                    self._pass(run)
                    failures = 0
                    self._require_hope()
                except (UnavailableError, JournalNotFoundError, OSError) as error:
                    failures += 1
                    _log.warning("%s: %s", self.path, error)
                if failures:
                    stop.wait(run.left(self._backoff(failures)))
                else:
                    self._wait(root, run)
        finally:
            root.close()
            self.close()
        return self.progress.messages - before

    def close(self) -> None:
        """Close what the copier has opened; the client stays open."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    def __repr__(self) -> str:
        """Show the path."""
        return f"<hub.wire.Copier {self.path!r}>"

    # --- internals

    def _backoff(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row."""
        return backoff(failures, self._backoff_s, self._max_backoff_s)

    def _pass(self, run: Run, *, following: bool = True) -> None:
        """Copy all directories once; errors of one directory are stored in the progress.

        Args:
            run: decides whether the rest is left for later.
            following: log new errors, and skip directories that failed a short while ago.
        """
        self._find(log=following)
        for feed in self._feeds.values():
            if run.stopped():
                break
            if following and feed.retry_at > time.monotonic():
                continue
            try:
                feed.copy(self._client, run)
            except (SejError, OSError) as error:
                of_the_hub = isinstance(error, (UnavailableError, AccessError, ClosedError))
                if of_the_hub and not isinstance(error, DirectoryUnavailableError):
                    raise
                self._failed(feed, error, log=following)  # other directories may succeed
            else:
                self.progress.failures.pop(feed.name, None)
                feed.failures, feed.retry_at = 0, 0.0

    def _require_hope(self) -> None:
        """Raise if each directory was refused twice, and only an operator can decide what to do."""
        found = [self.progress.failures[feed.name] for feed in self._feeds.values() if feed.failures > 1]
        if 0 < len(self._feeds) == sum(isinstance(error, (ConflictError, GapError)) for error in found):
            raise found[0]

    def _failed(self, feed: DirectoryFeed, error: SejError | OSError, *, log: bool) -> None:
        if not isinstance(error, SejError):
            reason = f"{error.strerror or error}; correct it on this machine"
            cause, error = error, SejError(reason, path=error.filename or feed.path)
            error.__cause__ = cause
        self._report(feed.name, error, log=log)
        feed.failures += 1
        feed.retry_at = time.monotonic() + self._backoff(feed.failures)

    def _report(self, name: str, error: SejError, *, log: bool) -> None:
        if log and name not in self.progress.failures:
            _log.error(_FAILED, name, error)
        self.progress.failures[name] = error

    def _find(self, *, log: bool) -> None:
        """Add directories that are new, and register the reader in each: before the hub is reached.

        Raises:
            JournalNotFoundError: the path does not exist.
            NotAJournalError: the path is a file.
            InvalidNameError: the directory's name is not allowed on the hub; one among several is reported instead.
        """
        there = self._disk.status(self.path)
        if there is None:
            raise JournalNotFoundError(
                "the path does not exist; expected a SEJ directory or a directory of them", path=self.path
            )
        if not there.is_dir:
            raise NotAJournalError("this is a file; expected a SEJ directory or a directory of them", path=self.path)
        found = self._directories()
        for name, error in list(self.progress.failures.items()):
            if isinstance(error, InvalidNameError) and name not in found:
                del self.progress.failures[name]  # it was removed or renamed
        for name, path in found.items():
            if name in self._feeds:
                continue
            try:
                check_journal("client", name)
            except InvalidNameError as error:
                self._report(name, error, log=log)
            else:
                self._feeds[name] = DirectoryFeed(path, name, self._reader, self._disk, accept_gaps=self._accept_gaps)
                self._feeds[name].register()
        self.progress.journals = len(self._feeds)

    def _directories(self) -> dict[str, str]:
        """Return the SEJ directories by their names on the hub."""
        if is_journal(self._disk, self.path):
            found = {self._journal_dir or os.path.basename(os.path.abspath(self.path)): self.path}
            check_journal("client", *found)
            return found
        if self._journal_dir is not None:
            if self._disk.list(self.path) in UNFINISHED or is_journal(self._disk, self.path):  # it is being made
                raise JournalNotFoundError(
                    "this directory is empty: there is nothing to copy yet; append a message first", path=self.path
                )
            raise NotAJournalError(
                "this is not a SEJ directory, but maybe a directory of several: pass one of them, or leave --journal"
                " (journal_dir) out to copy all of them",
                path=self.path,
            )
        return {name: os.path.join(self.path, name) for name in journals_in(self._disk, self.path)}

    def _wait(self, root: Watch, run: Run) -> None:
        """Wait until something changes here; a new watch wakes immediately."""
        watches = [root, *(feed.watch for feed in self._feeds.values())]
        while not run.stopped():
            now = time.monotonic()
            if any(feed.retry_at <= now and feed.has_news() for feed in self._feeds.values()):
                return
            if wait_any(watches, run.left(_LOOK_AT_STOP_S)):
                return
