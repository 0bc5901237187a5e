"""The public class :class:`TextQueue`: one queue over one or more ``.tq`` files.

A queue opens no file before it needs it. Between two operations it has no queue file open. It reads several files one
after the other, sorted by name.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final, Self, TypeVar

from sej.checks import (
    ITERABLE,
    PATH,
    POSITIVE_SECONDS,
    TEXT,
    Seconds,
    instance_of,
    optional,
    refuse_pickling,
    require,
    seconds,
    with_methods,
)
from sej.errors import ClosedError
from sej.fork import watch_forks
from sej.system.clock import SYSTEM, Clock
from sej.system.disk import OS, Disk, absolute_name, absolute_path
from textqueue.claiming import Claim, claiming
from textqueue.cursor import Cursor, walk
from textqueue.drain import OnceWriter, drain
from textqueue.editing.archive_and_split import archive, check_target
from textqueue.editing.message import Message, New, append, marking
from textqueue.editing.queue_file import OnRevert, Options
from textqueue.editing.tq_file import TqFile
from textqueue.errors import Conflict, InvalidTextError
from textqueue.files import Inputs, files_of
from textqueue.format.parser import CONTROL_OF, MessageStatus

_QUEUED: Final = frozenset({MessageStatus.queued})
_STATUS: Final = instance_of(MessageStatus)
_WRITER: Final = with_methods("a sej.Writer, or an object", "append_once", "sync")
_MESSAGE: Final = instance_of(Message)
_Found = TypeVar("_Found")
_SETTLE_MOST_S: Final = 2.0
_SETTLE_PAUSE_S: Final = 0.02
"""The longest wait for a last message to be complete, and how often to look."""


class TextQueue:
    """A queue of messages in text files that users may edit at any time.

    After :meth:`close`, every method that needs the files raises :class:`~sej.ClosedError`. Any call may raise a
    :class:`~textqueue.TextQueueError`.

    Attributes:
        conflicts: the conflicts with edits of other programs, in the order in which they were found.

    Example:
        >>> import tempfile
        >>> q = TextQueue(tempfile.mkdtemp() + "/jobs.tq")
        >>> _ = q.append("ship 17")
        >>> m = q.get_next()
        >>> m.value
        'ship 17'
        >>> m.mark_as_cleared()
        >>> print(q.get_next())
        None
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        writer: str | None = None,
        settle_s: Seconds = 1.0,
        on_revert: OnRevert = "reapply",
        lease_s: Seconds | None = None,
        disk: Disk = OS,
        clock: Clock = SYSTEM,
    ) -> None:
        """Create a queue object. No file is opened or created.

        Args:
            path: a ``.tq`` file, which need not exist; a directory, for all ``*.tq`` files in it; or a pattern. None:
                files are added with ``add_input``.
            writer: if path is a directory or pattern: the name, without ``.tq``, of the file to append to. The default
                is the name of the user (``$USER``).
            settle_s: how long, in seconds, other programs must leave a file unchanged before its last message counts as
                complete: they may write a message in several steps. A message that this library appended is complete
                immediately.
            on_revert: what to do if an editor saved an old buffer and so reverted a mark: ``"reapply"`` marks the
                message again, ``"deliver"`` delivers it again.
            lease_s: the lease of each claim, in seconds: after it, another worker may take the message, even if the
                process that claimed it is alive. None: a claim lasts as long as its process.
            disk: the file system.
            clock: the clocks.

        Raises:
            InvalidTextError: an option has an invalid value.
            ValueError: lease_s is not more than 0.
        """
        settle_s, lease_s = seconds("settle_s", settle_s), seconds("lease_s", lease_s)
        require(on_revert=on_revert, disk=disk, clock=clock)
        require(writer=(writer, optional(TEXT)), settle_s=(settle_s, instance_of(int, float)))
        optional(PATH)("path", path)
        optional(POSITIVE_SECONDS)("lease_s", lease_s)
        if on_revert not in ("reapply", "deliver"):
            raise InvalidTextError(f"on_revert must be 'reapply' or 'deliver', got {on_revert!r}")
        if not settle_s >= 0:
            raise InvalidTextError(f"settle_s must be at least 0 seconds, got {settle_s!r}")
        self.conflicts: list[Conflict] = []
        self._settle_s = settle_s
        self._lease_s = lease_s
        self._disk = disk
        self._iterators: dict[tuple[int, frozenset[MessageStatus]], Iterator[Message]] = {}
        self._window: Iterator[Message] = iter(())
        self._threads = threading.RLock()
        self._closed = False
        watch_forks(self)
        self._inputs = Inputs(
            None if path is None else files_of(os.fspath(path), writer, disk),
            writer,
            Options(disk, clock, settle_s, on_revert, self.conflicts),
        )
        self._inputs.discover()

    # The published package's interface

    def add_input(self, filename: str | os.PathLike[str]) -> None:
        """Add a file after the others.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        PATH("filename", filename)
        name = absolute_name(filename)
        self._check_open()
        if self._disk.status(name) is None:
            raise FileNotFoundError(2, "the queue file does not exist; create it, or append to TextQueue(path)", name)
        self._inputs.add(name)

    def get_next(self) -> Message | None:
        """Return the next queued message that this object has not returned before, or None if all were returned.

        It does not claim the message. If several workers share a queue, use ``claim``. If the only message may still
        grow (``settle_s``), the call waits for it, for two seconds at most. A last line without a newline is not waited
        for.

        Raises:
            TextQueueError: a file has conflict markers of Git, or is a conflict copy: merge its versions first.
        """
        try:
            for message in self._window:  # without the lock, which would double the cost
                return message
        except ValueError:
            if not getattr(self._window, "gi_running", False):  # another thread runs the iterator: wait for it below
                raise
        return self._settling(self._get_next)

    def _settling(self, find: Callable[[], _Found | None]) -> _Found | None:
        """Return what a search finds. If it finds only a last message that may still grow, wait until it is complete.

        It waits for ``settle_s`` at most, and not longer than two seconds. No lock is held meanwhile.
        """
        until = time.monotonic() + min(self._settle_s, _SETTLE_MOST_S)
        while True:
            for one in self._inputs.found:
                one.source.growing = False
            found = find()
            if found is not None or time.monotonic() > until:
                return found
            if not [one for one in self._inputs.found if one.source.growing]:
                return None
            time.sleep(_SETTLE_PAUSE_S)

    def _get_next(self) -> Message | None:
        with self._threads:
            self._check_open()
            self._inputs.discover()
            for _, cursor, _ in self._inputs.found:
                found = self._next_of(cursor)
                if found is not None:
                    self._window = cursor.ready
                    return found
        return None

    def _next_of(self, cursor: Cursor) -> Message | None:
        while True:
            try:
                return cursor.next()
            except ValueError:
                if not getattr(cursor.ready, "gi_running", False):
                    raise
                time.sleep(0)  # another thread runs the iterator, without the lock, for a few instructions

    def claim(
        self, owner: str | None = None, *, lease_s: Seconds | None = None
    ) -> AbstractContextManager[Message | None]:
        """Claim the next free message for a ``with`` block. No other worker gets it in the meantime.

        Example::

            with q.claim() as m:
                if m is not None:
                    work(m.value)

        If the block succeeds, the message is marked as cleared. If it raises, the message is put back, or marked as a
        critical error if its ``retries`` are used up, and the exception propagates. ``m`` is None if no message is
        free.

        Args:
            owner: the process to claim for, as ``pid@host/start``. Any other text, or None, means this process.
            lease_s: the lease of this claim, in seconds; None: that of the queue. Infinity: none.

        Raises:
            TextQueueError: a file has conflict markers of Git, or is a conflict copy: merge its versions first. Or
                other programs changed the file 100 times in 10 seconds.
        """
        return claiming(partial(self._settling, self._taking(owner, lease_s)))

    def take(self, owner: str | None = None, *, lease_s: Seconds | None = None) -> Claim | None:
        """Claim the next free message. The caller ends the claim: ``done``, ``failed``, ``give_up`` or ``give_back``.

        It waits for a message that may still grow, as :meth:`get_next` does.

        Args:
            owner: as for :meth:`claim`.
            lease_s: as for :meth:`claim`.

        Returns:
            The claim, or None if no message is free.

        Raises:
            TextQueueError: as for :meth:`claim`.
        """
        return self._settling(self._taking(owner, lease_s))

    def _taking(self, owner: str | None, lease_s: Seconds | None) -> Callable[[], Claim | None]:
        """Check the arguments of :meth:`take`, and return what takes a message."""
        if owner is not None:
            TEXT("owner", owner)
        if lease_s is not None:
            lease_s = seconds("lease_s", lease_s)
            POSITIVE_SECONDS("lease_s", lease_s)
        return partial(self._take_now, owner, lease_s)

    def _take_now(self, owner: str | None = None, lease_s: float | None = None) -> Claim | None:
        """As :meth:`take`, without waiting for a message that another program may still be writing."""
        lease_s = self._lease_s if lease_s is None else lease_s
        with self._threads:
            self._check_open()
            self._inputs.discover()
            for again in (False, True):
                for one in self._inputs.found:
                    if again and not one.claimer.deferred:
                        continue
                    claim = one.claimer.take(owner, lease_s=lease_s, again=again)
                    if claim is not None:
                        return claim
        return None

    def held_by(self, owner: str) -> list[Claim]:
        """Return the claims of another process, such as a shell, so that this process can end them.

        Args:
            owner: that process, as ``pid@host/start``.
        """
        with self._threads:
            self._check_open()
            self._inputs.discover()
            return [claim for one in self._inputs.found for claim in one.claimer.held_by(owner)]

    def close(self) -> None:
        """Give back the messages that this object has claimed for this process, and close the files.

        A second call does nothing. If messages cannot be given back, as on a full disk, it warns: they remain claimed
        until this process ends.

        Raises:
            FileInUseError: this is a signal handler that interrupted another call.
        """
        if not self._closed:
            for source in self._inputs.sources:
                source.file.check_open()
        self._window = iter(())
        failed: dict[str, OSError] = {}
        with self._threads:  # a message that another thread is about to claim is given back as well
            if not self._closed:
                for one in self._inputs.found:
                    error = one.claimer.give_back()
                    if error is not None:
                        failed[one.source.path] = error
            self._closed = True
        for source in self._inputs.sources:
            source.file.close()
        if failed:  # at the end, because a warning may be an error
            warnings.warn(
                f"{', '.join(failed)}: messages could not be given back, so they remain claimed until this process ends"
                f" or their leases end: {next(iter(failed.values()))}",
                RuntimeWarning,
                stacklevel=2,
            )

    def get_next_in_file(
        self,
        file_index: int,
        include_cleared_items: bool = False,
        include_comment_items: bool = False,
        include_critical_items: bool = False,
    ) -> Message | None:
        """Return the next message of one file, or None. The published package has this method.

        Each combination of a file and statuses has a position of its own.

        Args:
            file_index: the number of the file in :attr:`input_files`, from 0.
            include_cleared_items: whether to include messages that are done.
            include_comment_items: whether to include comments.
            include_critical_items: whether to include messages that failed.

        Raises:
            IndexError: the queue has fewer files.
        """
        self._check_open()
        if not -len(self._inputs.found) <= file_index < len(self._inputs.found):
            raise IndexError(
                f"file_index must be below {len(self._inputs.found)}, the number of files, got {file_index}"
            )
        statuses = {MessageStatus.queued}
        statuses |= {MessageStatus.cleared} if include_cleared_items else set()
        statuses |= {MessageStatus.comment} if include_comment_items else set()
        statuses |= {MessageStatus.critical} if include_critical_items else set()
        with self._threads:
            if statuses == _QUEUED:
                return self._next_of(self._inputs.found[file_index].cursor)
            place = (file_index, frozenset(statuses))
            if place not in self._iterators:
                self._iterators[place] = walk(self._inputs.found[file_index].source, statuses)
            return next(self._iterators[place], None)

    @property
    def input_files(self) -> list[str]:
        """The paths of the files, in order."""
        return [source.path for source in self._inputs.sources]

    # Reading

    def messages(self, statuses: Collection[MessageStatus] = _QUEUED) -> Iterator[Message]:
        """Iterate over the messages. ``get_next`` still returns them afterwards.

        Args:
            statuses: the statuses to include; by default only queued messages.

        Raises:
            TypeError: statuses has something other than a :class:`MessageStatus`.
        """
        self._check_open()
        for status in statuses:
            if not isinstance(status, MessageStatus):
                raise TypeError(
                    f"statuses must be some of textqueue.MessageStatus, as in [MessageStatus.queued], got {statuses!r}"
                )
        self._inputs.discover()
        return itertools.chain.from_iterable(walk(source, statuses) for source in self._inputs.sources)

    def follow(self, *, timeout: Seconds | None = None, stop: threading.Event | None = None) -> Iterator[Message]:
        """Yield queued messages as ``get_next`` does, and wait for more from programs and editors.

        Args:
            timeout: end after this many seconds without a message; None: no limit.
            stop: end soon after this event is set.
        """
        timeout = seconds("timeout", timeout)
        return self._inputs.follow(self.get_next, timeout=timeout, stop=stop)

    # Writing

    def append(
        self,
        text: str | bytes,
        variables: Sequence[str | bytes] = (),
        *,
        status: MessageStatus = MessageStatus.queued,
    ) -> Message:
        """Append a message, in one write under the lock. The file is created if it is missing.

        Args:
            text: any text that is not empty; newlines become continuation lines.
            variables: one line each, such as ``"retries=3 "``; trailing spaces reserve space for longer values.
            status: the status of the new message; ``MessageStatus.comment`` writes a comment.

        Raises:
            InvalidTextError: a message has no text, the format has no way to write the text or a variable, or the file
                is in UTF-16.
            TypeError: an argument has another type.
        """
        ITERABLE("variables", variables)
        return self._append([(text, variables)], status)[0]

    def append_many(
        self,
        texts: Iterable[str | bytes],
        variables: Sequence[str | bytes] = (),
        *,
        status: MessageStatus = MessageStatus.queued,
    ) -> list[Message]:
        """Append many messages in one write: all of them, or none if one is invalid."""
        require(texts=texts, variables=variables)
        return self._append([(text, variables) for text in texts], status)

    def mark_many(self, messages: Iterable[Message], status: MessageStatus, *, reason: str | None = None) -> None:
        """Give many messages a status, under one lock.

        All messages of a file are found before the first is marked.

        Args:
            messages: messages of this queue, in any order.
            status: their new status.
            reason: written into the ``reason`` variable of each message that has one.

        Raises:
            MessageMovedError: a message was changed or removed since it was read; nothing was marked in that file.
            TypeError: an argument has another type.
        """
        require(status=(status, _STATUS))
        groups: dict[int, tuple[TqFile, list[Message]]] = {}
        for message in messages:
            if type(message) is not Message:
                _MESSAGE("each message", message)
            source = message.source
            groups.setdefault(id(source), (source, []))[1].append(message)
        for source, group in groups.values():
            places = [message.place for message in group]
            claims = [message.claim for message in group]
            what = f"mark {len(group)} messages as {status.name}"
            done = source.edit_many(places, marking(source, status, reason), what, claims if any(claims) else ())
            for message, place in zip(group, done, strict=True):
                message.position, message.raw, message.epoch = place
            for _, raw, _ in places:
                if raw[:1] == CONTROL_OF[MessageStatus.queued]:
                    source.delivered.forget(raw)

    def archive(
        self,
        target: str | os.PathLike[str],
        statuses: Collection[MessageStatus] = frozenset({MessageStatus.cleared}),
    ) -> int:
        """Move done messages to the end of another file. A crash in between loses and repeats nothing.

        A comment belongs to the messages right below it, up to a blank line or the next comment. It is moved if all of
        them are moved.

        Args:
            target: the other file, which is created if it is missing.
            statuses: the statuses to move: ``cleared``, ``critical`` or both.

        Returns:
            The number of moved messages.

        Raises:
            FileInUseError: other programs changed a file of the queue in every attempt.
            InvalidTextError: the target would be a part of the queue, or statuses has another status.
        """
        self._check_open()
        name = absolute_path(target)
        self._inputs.require_outside(name)
        there = self._inputs.existing()
        for one in there:
            check_target(one.source, name, statuses)
        return sum(archive(one.source, name, statuses) for one in there)

    def drain_to(self, writer: OnceWriter, *, key: Callable[[Message], bytes] | None = None, batch: int = 1000) -> int:
        """Move every free message into a journal, each exactly once, even if a process or the power fails.

        A message is marked as cleared only after the journal has it on disk.

        Args:
            writer: a ``sej.Writer``, or any object with its methods ``append_once`` and ``sync``.
            key: a function that returns the key of a message; None: no keys.
            batch: the number of messages that are appended, synced and marked together.

        Returns:
            The number of moved messages.

        Raises:
            LockedError: another process drains the same file.
            InvalidTextError: batch is below 1.
            InvalidMessageError: the journal refused a message, for example because its key is too long. The whole
                batch is put back.
        """
        self._check_open()
        require(writer=(writer, _WRITER))
        if batch < 1:
            raise InvalidTextError(f"batch must be at least 1, got {batch}")
        with self._threads:
            self._inputs.discover()
            there = self._inputs.existing()

        def one_pass() -> int | None:
            return sum(drain(one.source, one.claimer, writer, key=key, batch=batch) for one in there) or None

        return sum(iter(partial(self._settling, one_pass), None))

    def sync(self) -> None:
        """Sync the files to disk. Their contents then survive a power loss.

        This is true even if an earlier sync failed: bytes that may not be on disk are written again.

        Raises:
            FileInUseError: bytes of another program may not be on disk, and a program has the file open.
            OSError: a write or a sync failed.
        """
        self._check_open()
        for source in self._inputs.sources:
            with suppress(FileNotFoundError):
                source.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TextQueue({', '.join(source.path for source in self._inputs.sources)})"

    def _append(self, entries: Sequence[New], status: MessageStatus) -> list[Message]:
        self._check_open()
        require(status=(status, _STATUS))
        source = self._inputs.target()
        return [Message(source, raw, position, epoch) for position, raw, epoch in append(source, entries, status)]

    def _after_fork(self) -> None:
        """In a forked child: a thread that does not exist here may have held the mutex."""
        self._threads = threading.RLock()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "this queue was closed; reopen it", path=next((one.path for one in self._inputs.sources), None)
            )
