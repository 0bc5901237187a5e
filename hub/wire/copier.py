"""The copier: copies a SEJ directory, or a growing sharded journal, to the hub, and keeps the copy up to date.

It stores no position of its own: it asks the hub where to continue. So either side may die at any time. A directory
that cannot be copied (another journal of that name is on the hub, its bytes are damaged) is reported and does not stop
the others. If the hub cannot be reached, the copier waits, longer each time and with jitter, so that many copiers do
not reconnect at the same moment. Memory is bounded by one chunk and gRPC's buffers, whatever the journal's size.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from hub.errors import AccessError, ConflictError, GapError, UnavailableError
from hub.naming import check_journal
from hub.wire.directory_copier import DirectoryFeed, Hub, Progress, Run
from hub.wire.status import DirectoryUnavailableError
from sej.checks import DISK, FLAG, PATH, PROGRESS, SECONDS, TEXT, optional, require, with_methods
from sej.durations import Seconds, backoff, seconds
from sej.errors import ClosedError, InvalidNameError, JournalNotFoundError, NotAJournalError, SejError
from sej.journal.directory import UNFINISHED, check_name, is_journal, journals_in
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path
from sej.system.watch import Watch, wait_any

_log = logging.getLogger(__name__)
_FAILED: Final = "%s cannot be copied: %s"
_LOOK_AT_STOP_S: Final = 0.25


class Copier:
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
        require(
            path=(path, PATH),
            client=(client, with_methods("a hub's client", "where")),
            journal_dir=(journal_dir, optional(TEXT)),
            accept_gaps=(accept_gaps, FLAG),
            on_progress=(on_progress, PROGRESS),
            backoff_s=(backoff_s, SECONDS),
            max_backoff_s=(max_backoff_s, SECONDS),
            disk=(disk, DISK),
        )
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
        copied = self._pass(Run(self.progress, self._on_progress), following=False)
        for number, (name, error) in enumerate(self.progress.failures.items()):
            if number:
                _log.error(_FAILED, name, error)
        for error in self.progress.failures.values():
            raise error
        return copied

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
                    delay = self._backoff(failures)
                    stop.wait(delay if deadline is None else max(0.0, min(delay, deadline - time.monotonic())))
                else:
                    self._wait(root, stop, deadline)
        finally:
            root.close()
            self.close()
        return self.progress.messages - before

    def close(self) -> None:
        """Close what the copier has opened; the client stays open."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    def __enter__(self) -> Self:
        """Return the copier."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the copier."""
        self.close()

    def __repr__(self) -> str:
        """Show the path."""
        return f"<hub.wire.Copier {self.path!r}>"

    # --- internals

    def _backoff(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row."""
        return backoff(failures, self._backoff_s, self._max_backoff_s)

    def _pass(self, run: Run, *, following: bool = True) -> int:
        """Copy all directories once; errors of one directory are stored in the progress.

        Args:
            run: decides whether the rest is left for later.
            following: log new errors, and skip directories that failed a short while ago.
        """
        self._find(log=following)
        copied = 0
        for feed in self._feeds.values():
            if run.stopped():
                break
            if following and feed.retry_at > time.monotonic():
                continue
            try:
                copied += feed.copy(self._client, run)
            except DirectoryUnavailableError as error:  # the hub has answered: other directories may succeed
                self._failed(feed, error, log=following)
            except (UnavailableError, AccessError, ClosedError):
                raise
            except SejError as error:
                self._failed(feed, error, log=following)
            except OSError as error:
                failure = SejError(
                    f"{error.strerror or error}; correct it on this machine", path=error.filename or feed.path
                )
                failure.__cause__ = error
                self._failed(feed, failure, log=following)
            else:
                self.progress.failures.pop(feed.name, None)
                feed.failures, feed.retry_at = 0, 0.0
        return copied

    def _require_hope(self) -> None:
        """Raise if each directory was refused twice, and only an operator can decide what to do."""
        found = [self.progress.failures[feed.name] for feed in self._feeds.values() if feed.failures > 1]
        if 0 < len(self._feeds) == sum(isinstance(error, (ConflictError, GapError)) for error in found):
            raise found[0]

    def _failed(self, feed: DirectoryFeed, error: SejError, *, log: bool) -> None:
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

    def _wait(self, root: Watch, stop: threading.Event, deadline: float | None) -> None:
        """Wait until something changes here; a new watch wakes immediately."""
        watches = [root, *(feed.watch for feed in self._feeds.values())]
        while not stop.is_set():
            now = time.monotonic()
            if any(feed.retry_at <= now and feed.has_news() for feed in self._feeds.values()):
                return
            left = _LOOK_AT_STOP_S
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return
            if wait_any(watches, left):
                return
