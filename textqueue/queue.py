"""The front: :class:`TextQueue`, one queue over one or several ``.tq`` files.

It opens nothing before it is needed, and keeps no descriptor of a queue file between two operations. Several files are
one queue, read one after the other in the order of their names.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Self

from sej.disk import OS, Disk, File, Status
from sej.errors import ClosedError
from textqueue.claims import Claim, Claimer, Claiming
from textqueue.cursor import Cursor, walk
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.grammar import CONTROL_OF, MessageStatus
from textqueue.message import Message, marking
from textqueue.parser import render
from textqueue.reconcile import Conflict, OnRevert
from textqueue.source import Source

__all__ = ["TextQueue"]

_QUEUED: Final = frozenset({MessageStatus.queued})


class TextQueue:
    """A queue of messages in files that people edit.

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

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        settle_s: float = 1.0,
        on_revert: OnRevert = "reapply",
        dead_hosts: Collection[str] = (),
        disk: Disk = OS,
    ) -> None:
        """Name the queue; no file is opened or made.

        Args:
            path: a ``.tq`` file, which need not exist yet. None: ``add_input`` names files later.
            settle_s: how long, in seconds, a file must have been quiet before a last line without a newline counts.
            on_revert: what to do about a mark of ours that a stale buffer took back: mark it again, or deliver it.
            dead_hosts: names of other hosts whose workers are known to be gone, so that their claims are taken over.
            disk: the seam.

        Raises:
            ValueError: an option is not one of those above.
        """
        if on_revert not in ("reapply", "deliver"):
            raise InvalidTextError(f"on_revert must be 'reapply' or 'deliver', not {on_revert!r}")
        if not settle_s >= 0:
            raise InvalidTextError(f"settle_s must be 0 or more seconds, not {settle_s!r}")
        self.conflicts: list[Conflict] = []
        self._settle_s = settle_s
        self._on_revert: OnRevert = on_revert
        self._disk = disk
        self._sources: list[Source] = []
        self._cursors: list[Cursor] = []
        self._now: Iterator[Message] = iter(())
        self._claimers: list[Claimer] = []
        self._dead_hosts = frozenset(dead_hosts)
        self._threads = threading.RLock()
        self._closed = False
        if path is not None:
            self._add(os.fspath(path))

    # The published package's interface

    def add_input(self, filename: str | os.PathLike[str]) -> None:
        """Add a file behind the others.

        Raises:
            FileNotFoundError: there is none.
        """
        name = os.fspath(filename)
        self._check_open()
        if self._disk.status(name) is None:
            raise FileNotFoundError(2, "no such queue file; make it, or append to TextQueue(path)", name)
        self._add(name)

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
            for cursor in self._cursors:
                found = cursor.next()
                if found is not None:
                    self._now = cursor.ready
                    return found
        return None

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

        Returns:
            None when nothing is free.
        """
        self._check_open()
        with self._threads:
            for claimer in self._claimers:
                claim = claimer.take(owner)
                if claim is not None:
                    return claim
        return None

    def close(self) -> None:
        """Give the descriptors back; a second time does nothing."""
        self._closed = True
        self._now = iter(())
        for source in self._sources:
            source.close()

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
        return itertools.chain.from_iterable(walk(source, statuses) for source in self._sources)

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

        Raises:
            MessageMovedError: one of them is not in the file any more as it was read; nothing was marked in that file.
        """
        groups: dict[int, tuple[Source, list[Message]]] = {}
        for message in messages:
            groups.setdefault(id(message._source), (message._source, []))[1].append(message)
        for source, group in groups.values():
            places = [message._place for message in group]
            names = [hash(raw) for _, raw, _ in places]
            done = source.mark_many(places, CONTROL_OF[status]) if reason is None else None
            if done is None:
                changes = [marking(source, raw, position, status, reason) for position, raw, _ in places]
                done = source.edit_many(places, changes, f"mark {len(group)} messages as {status.name}")
            for message, place, name in zip(group, done, names, strict=True):
                message._moved(place)
                source.given.forget(name)

    def sync(self) -> None:
        """Force what was written to the medium: after this a power loss takes none of it."""
        for source in self._sources:
            try:
                file = self._disk.open(source.path, "edit")
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Its files."""
        return f"TextQueue({', '.join(source.path for source in self._sources)})"

    def _add(self, path: str) -> Source:
        status = self._disk.status(path)
        if status is not None and status.is_dir:
            raise TextQueueError("this is a directory and no .tq file; name the file", path=path)
        source = Source(
            path, disk=self._disk, settle_s=self._settle_s, on_revert=self._on_revert, conflicts=self.conflicts
        )
        self._sources.append(source)
        self._cursors.append(Cursor(source))
        self._claimers.append(Claimer(source, dead_hosts=self._dead_hosts))
        return source

    def _append(
        self, entries: Sequence[tuple[str | bytes, Sequence[str | bytes]]], status: MessageStatus
    ) -> list[Message]:
        self._check_open()
        source = self._target()
        for text, variables in entries:  # before the file is touched
            render(text, variables, status=status)

        def build(file: File, state: Status) -> tuple[bytes, list[bytes]]:
            end = file.read(2, max(state.size - 2, 0))
            newline = b"\r\n" if end == b"\r\n" else b"\n"
            mend = b"" if not end or end.endswith(b"\n") or _only_bom(file, state) else b"\n"
            return mend, [render(text, each, status=status, newline=newline) for text, each in entries]

        places = source.append(build)
        return [Message((source, raw, position, epoch)) for position, raw, epoch in places]

    def _target(self) -> Source:
        if not self._sources:
            raise TextQueueError("this queue has no file to append to: name one, TextQueue(path)")
        return self._sources[-1]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this queue was closed; open it anew")


def _only_bom(file: File, state: Status) -> bool:
    return state.size == 3 and file.read(3, 0) == b"\xef\xbb\xbf"
