"""The front: :class:`TextQueue`, one queue over one or several ``.tq`` files.

It opens nothing before it is needed, and keeps no descriptor of a queue file between two operations. Several files are
one queue, read one after the other in the order of their names.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Self

from sej.checks import DISK, ITERABLE, PATH, TEXT, a, optional, refuse_pickling, require
from sej.errors import ClosedError
from sej.system.disk import OS, Disk
from textqueue.claims.claim import Claim, Claiming
from textqueue.claims.drain import OnceWriter, drain
from textqueue.editing.append import New, append
from textqueue.editing.archive import archive, refuse
from textqueue.editing.message import Message, marking
from textqueue.editing.reconcile import Conflict, OnRevert
from textqueue.editing.source import Source
from textqueue.errors import InvalidTextError
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.reading.cursor import Cursor, walk
from textqueue.reading.files import files_of
from textqueue.reading.follow import follow
from textqueue.reading.inputs import Inputs

__all__ = ["TextQueue"]

_QUEUED: Final = frozenset({MessageStatus.queued})


class TextQueue:
    """A queue of messages in files that people edit.

    After :meth:`close` whatever needs the files raises :class:`~sej.ClosedError`; any call may raise a
    :class:`~textqueue.TextQueueError`.

    Attributes:
        conflicts: what a person should know, in the order in which it was found.

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
        settle_s: float = 1.0,
        on_revert: OnRevert = "reapply",
        dead_hosts: Collection[str] = (),
        disk: Disk = OS,
    ) -> None:
        """Name the queue; no file is opened or made.

        Args:
            path: a ``.tq`` file, which need not exist yet; a directory, for all ``*.tq`` in it; or a pattern. None:
                ``add_input`` names files later.
            writer: of a directory or pattern: the name, without ``.tq``, of the file that this object appends to;
                by default one for each host and process.
            settle_s: how long, in seconds, a file must have been quiet before a last line without a newline counts.
            on_revert: what to do about a mark of ours that a stale buffer took back: mark it again, or deliver it.
            dead_hosts: names of other hosts whose workers are known to be gone, so that their claims are taken over.
            disk: the seam.

        Raises:
            InvalidTextError: an option is not one of those above.
        """
        require(
            path=(path, optional(PATH)),
            writer=(writer, optional(TEXT)),
            on_revert=(on_revert, TEXT),
            settle_s=(settle_s, a(int, float)),
            dead_hosts=(dead_hosts, ITERABLE),
            disk=(disk, DISK),
        )
        if on_revert not in ("reapply", "deliver"):
            raise InvalidTextError(f"on_revert must be 'reapply' or 'deliver', not {on_revert!r}")
        if not settle_s >= 0:
            raise InvalidTextError(f"settle_s must be 0 or more seconds, not {settle_s!r}")
        self.conflicts: list[Conflict] = []
        self._settle_s = settle_s
        self._disk = disk
        self._walks: dict[tuple[int, frozenset[MessageStatus]], Iterator[Message]] = {}
        self._now: Iterator[Message] = iter(())
        self._threads = threading.RLock()
        self._closed = False
        self._inputs = Inputs(
            None if path is None else files_of(os.fspath(path), writer, disk),
            writer=writer,
            settle_s=settle_s,
            on_revert=on_revert,
            dead_hosts=dead_hosts,
            conflicts=self.conflicts,
            disk=disk,
        )
        self._inputs.look()

    # The published package's interface

    def add_input(self, filename: str | os.PathLike[str]) -> None:
        """Add a file behind the others.

        Raises:
            FileNotFoundError: there is none.
        """
        PATH("filename", filename)
        name = os.fspath(filename)
        self._check_open()
        if self._disk.status(name) is None:
            raise FileNotFoundError(2, "no such queue file; make it, or append to TextQueue(path)", name)
        self._inputs.add(name)

    def get_next(self) -> Message | None:
        """The next queued message that this object has not given out; None when there is none now.

        It takes no claim: where several workers share a queue, use ``claim``.
        """
        try:
            for message in self._now:  # what is left of the window at hand: no lock, it costs as much as the rest
                return message
        except ValueError:
            if not getattr(self._now, "gi_running", False):  # another thread is in there: wait for it below
                raise
        return self._get_next()

    def _get_next(self) -> Message | None:
        with self._threads:
            self._check_open()
            self._inputs.look()
            for _, cursor, _ in self._inputs.found:
                found = self._next_of(cursor)
                if found is not None:
                    self._now = cursor.ready
                    return found
        return None

    def _next_of(self, cursor: Cursor) -> Message | None:
        while True:
            try:
                return cursor.next()
            except ValueError:
                if not getattr(cursor.ready, "gi_running", False):
                    raise
                time.sleep(0)  # another thread is reading there, without a lock, for a few instructions

    def claim(self, owner: str | None = None) -> Claiming:
        """Claim the next free message for the time of a ``with`` block; no other worker gets it meanwhile.

        Example::

            with q.claim() as m:
                if m is not None:
                    work(m.value)

        It is cleared on success. On an exception, which goes on, it is put back, or marked as a critical error when its
        ``retries`` are used up. ``m`` is None when nothing is free.

        Args:
            owner: ``pid@host/start`` of a process to claim for. Anything else, or None: this process.
        """
        return Claiming(lambda: self.take(owner))

    def take(self, owner: str | None = None) -> Claim | None:
        """Claim the next free message, to be ended by hand: ``done``, ``failed``, ``give_back``.

        Args:
            owner: as for :meth:`claim`.

        Returns:
            None when nothing is free.
        """
        with self._threads:
            self._check_open()
            self._inputs.look()
            for again in (False, True):
                for one in self._inputs.found:
                    if again and not one.claimer.later:
                        continue
                    claim = one.claimer.take(owner, again=again)
                    if claim is not None:
                        return claim
        return None

    def held_by(self, owner: str) -> list[Claim]:
        """The claims of another process, to be ended by this one: what a shell holds, for example.

        Args:
            owner: ``pid@host/start`` of that process, as for :meth:`claim`.
        """
        with self._threads:
            self._check_open()
            self._inputs.look()
            return [claim for one in self._inputs.found for claim in one.claimer.held_by(owner)]

    def close(self) -> None:
        """Put back what this object has claimed for this process, and give the descriptors back.

        A second time does nothing.
        """
        self._now = iter(())
        with self._threads:  # what another thread is about to claim is put back as well
            if not self._closed:
                for one in self._inputs.found:
                    one.claimer.give_back()
            self._closed = True
        for source in self._inputs.sources:
            source.file.close()

    def get_next_in_file(
        self,
        file_index: int,
        include_cleared_items: bool = False,
        include_comment_items: bool = False,
        include_critical_items: bool = False,
    ) -> Message | None:
        """The next message of one file, the published package's way; for more than queued ones its own walk is kept.

        Args:
            file_index: the number of the file in :attr:`input_files`, from 0.
            include_cleared_items: done ones too.
            include_comment_items: comments too.
            include_critical_items: failed ones too.
        """
        self._check_open()
        statuses = {MessageStatus.queued}
        statuses |= {MessageStatus.cleared} if include_cleared_items else set()
        statuses |= {MessageStatus.comment} if include_comment_items else set()
        statuses |= {MessageStatus.critical} if include_critical_items else set()
        with self._threads:
            if statuses == _QUEUED:
                return self._next_of(self._inputs.found[file_index].cursor)
            place = (file_index, frozenset(statuses))
            if place not in self._walks:
                self._walks[place] = walk(self._inputs.found[file_index].source, statuses)
            return next(self._walks[place], None)

    @property
    def input_files(self) -> list[str]:
        """The paths of the files, in order."""
        return [source.path for source in self._inputs.sources]

    # Reading

    def messages(self, statuses: Collection[MessageStatus] = _QUEUED) -> Iterator[Message]:
        """Walk over the messages, without giving any out.

        Args:
            statuses: which; queued ones only unless named.

        Raises:
            TypeError: something in statuses is no status.
        """
        self._check_open()
        for status in statuses:
            if not isinstance(status, MessageStatus):
                raise TypeError(f"statuses must hold textqueue.MessageStatus, not {status!r}")
        self._inputs.look()
        return itertools.chain.from_iterable(walk(source, statuses) for source in self._inputs.sources)

    def follow(self, *, timeout: float | None = None, stop: threading.Event | None = None) -> Iterator[Message]:
        """Give out queued messages as ``get_next`` does, and wait for more: appended by programs, or saved by editors.

        Args:
            timeout: end after so many seconds without a message; None: never.
            stop: end soon after this is set.
        """
        return follow(
            self.get_next, lambda: self._inputs.directories, timeout=timeout, settle_s=self._settle_s, stop=stop
        )

    # Writing

    def append(
        self,
        text: str | bytes,
        variables: Sequence[str | bytes] = (),
        *,
        status: MessageStatus = MessageStatus.queued,
    ) -> Message:
        """Write a message at the end, as one write under the lock; the file is made when it is missing.

        Args:
            text: any text; newlines become continuation lines.
            variables: one line each, as in ``"retries=3 "``; trailing spaces reserve room.
            status: of the new message; a comment is one as well.

        Raises:
            InvalidTextError: the format cannot hold it.
        """
        return self._append([(text, variables)], status)[0]

    def append_many(
        self,
        texts: Iterable[str | bytes],
        variables: Sequence[str | bytes] = (),
        *,
        status: MessageStatus = MessageStatus.queued,
    ) -> list[Message]:
        """As ``append``, for many messages in one write; all of them, or none when one cannot be held."""
        return self._append([(text, variables) for text in texts], status)

    def mark_many(self, messages: Iterable[Message], status: MessageStatus, *, reason: str | None = None) -> None:
        """Give many messages a status, under one lock.

        All are found before the first is marked.

        Args:
            messages: of this queue, in any order.
            status: what they get.
            reason: written into the ``reason`` variable of each that has one.

        Raises:
            MessageMovedError: one of them is not in the file any more as it was read; nothing was marked in that file.
        """
        groups: dict[int, tuple[Source, list[Message]]] = {}
        for message in messages:
            groups.setdefault(id(message._source), (message._source, []))[1].append(message)
        for source, group in groups.values():
            places = [message._place for message in group]
            control = CONTROL_OF[status]
            epoch = source.marks.many(places, control[0]) if reason is None else None
            if epoch is not None:
                for message, (position, raw, _) in zip(group, places, strict=True):
                    message._position, message._raw, message._epoch = position, control + raw[1:], epoch
            else:
                changes = [marking(source, raw, position, status, reason) for position, raw, _ in places]
                done = source.edit_many(places, changes, f"mark {len(group)} messages as {status.name}")
                for message, place in zip(group, done, strict=True):
                    message._moved(place)
            source.given.forget_all([raw for _, raw, _ in places])

    def archive(
        self,
        target: str | os.PathLike[str],
        statuses: Collection[MessageStatus] = frozenset({MessageStatus.cleared}),
    ) -> int:
        """Move done messages to the end of another file; a crash in between loses and repeats nothing.

        A comment goes with the messages right below it, up to a blank line or the next comment, when all of them go.

        Args:
            target: the file; made when it is missing.
            statuses: which: ``cleared``, ``critical`` or both.

        Returns:
            How many messages were moved.

        Raises:
            FileInUseError: an editor shows a file of the queue open.
            InvalidTextError: the target would be a part of the queue, or a status is not one of those.
        """
        self._check_open()
        name = os.fspath(target)
        self._inputs.refuse(name)
        there = self._inputs.there()
        for one in there:
            refuse(one.source, name, statuses)
        return sum(archive(one.source, name, statuses) for one in there)

    def drain_to(self, writer: OnceWriter, *, key: Callable[[Message], bytes] | None = None, batch: int = 1000) -> int:
        """Move every free message into a journal, each once, whatever dies in between.

        A message is marked as cleared only after the journal has it on disk.

        Args:
            writer: a ``sej.Writer``, or anything with its ``append_once`` and ``sync``.
            key: makes the key of a message; None: no keys.
            batch: messages that are appended, synced and marked together.

        Returns:
            How many messages were moved.

        Raises:
            LockedError: somebody else drains the same file.
            InvalidTextError: batch is below 1.
            InvalidMessageError: the journal refuses one of a batch, as for a key that is too long; all of that batch
                are put back.
        """
        self._check_open()
        if batch < 1:
            raise InvalidTextError(f"batch must be 1 or more, not {batch}")
        with self._threads:
            self._inputs.look()
            there = self._inputs.there()
        return sum(drain(one.source, one.claimer, writer, key=key, batch=batch) for one in there)

    def sync(self) -> None:
        """Force what is in the files to the medium: after this a power loss takes none of it.

        It holds whatever sync failed before: what may not be on the medium is written again.

        Raises:
            FileInUseError: another program keeps a file open, and more than our own messages may not be on the medium.
            OSError: a write or a sync failed.
        """
        self._check_open()
        for source in self._inputs.sources:
            with suppress(FileNotFoundError):
                source.sync()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Its files."""
        return f"TextQueue({', '.join(source.path for source in self._inputs.sources)})"

    def _append(self, entries: Sequence[New], status: MessageStatus) -> list[Message]:
        self._check_open()
        source = self._inputs.target()
        return [Message(source, raw, position, epoch) for position, raw, epoch in append(source, entries, status)]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this queue was closed; open it anew")
