"""Named readers of a hub: programs on other machines whose offsets the hub keeps, as a local reader's in ``ofs/``.

:class:`Reader` follows one journal. :class:`HeldReaders` holds one name in many journals, for callers that read in
their own way. Both renew the lease in a thread. While the hub cannot be reached they try again. After an outage they
continue, unless another program has taken the reader: then every call raises :class:`~sej.LeaseLostError`.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol

from hub.errors import UnavailableError
from hub.naming import Source, check_journal
from hub.readers import MAX_LEASE_S, Kept
from hub.wire import hub_pb2 as pb
from hub.wire.client import Client
from sej.checks import OFFSET, TEXT, Seconds, backoff, instance_of, optional, refuse_pickling, require, seconds
from sej.errors import (
    ClosedError,
    CorruptionError,
    JournalNotFoundError,
    LeaseLostError,
    OffsetBeyondEndError,
    OffsetGapError,
    OffsetTooSmallError,
    SejError,
)
from sej.journal.directory import check_name
from sej.message import Message
from sej.system.lifecycle import Closing
from sej.system.locks import host_name

_LEASE_S: Final = 30.0
_UNNAMED: Final = re.compile(r"[^0-9A-Za-z._-]")
_HOST_CHARS: Final = 36
"""Less than the hub's limit for host, pid and a random number together."""
_RENEWALS: Final = 3
"""Calls in the time of one lease, if nothing is committed."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class Holding(Protocol):
    """What makes the calls of named readers; :class:`hub.wire.Client` implements it."""

    def hold(self, request: pb.HoldRequest) -> list[Kept]:
        """Take a reader, or renew its lease; returns the state of each place."""


class HeldReaders:
    """A reader's name in journals of a hub, held by this object until it is closed; threads may share it."""

    __reduce__ = refuse_pickling

    def __init__(self, hub: Holding, name: str, lease_s: Seconds) -> None:
        """Set the name; nothing is held yet.

        Args:
            hub: a client, or what calls one and may try again.
            name: the reader's name.
            lease_s: how long the hub waits for this program before another one may take the reader.
        """
        lease_s = seconds("lease_s", lease_s)
        require(lease_s=lease_s)
        if lease_s > MAX_LEASE_S:
            raise ValueError(f"lease_s must be at most {MAX_LEASE_S:g} seconds, got {lease_s}")
        self.name = check_name(name, "a reader's name")
        self._hub = hub
        self._lease_s = lease_s
        self._holder = f"{_UNNAMED.sub('-', host_name())[:_HOST_CHARS]}:{os.getpid()}:{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._kept: dict[Source, int] = {}
        self._failure: SejError | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, starts: Mapping[Source, int | None], *, reset: bool = False) -> dict[Source, Kept]:
        """Take the reader in journals, by one call of the hub.

        Args:
            starts: for each journal, where a reader that never committed starts; None: the first message.
            reset: commit these offsets whatever is kept.

        Raises:
            ReaderHeldError: another program has it in one of them.
            NotSupportedError: the hub is an original one.
            JournalNotFoundError: a journal does not exist; the reader was taken in the others.
            SejError: as :meth:`hub.readers.Readers.hold`.
        """
        self.check()
        try:
            return dict(zip(starts, self._send(starts, take=True, reset=reset), strict=True))
        finally:
            if self._thread is None and self._kept:
                self._thread = threading.Thread(target=self._renew, name=f"reader {self.name}", daemon=True)
                self._thread.start()

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Commit offsets, durably on the hub when it returns; one at or below the kept one changes nothing.

        Raises:
            LeaseLostError: another program has taken the reader: nothing was committed there.
            JournalNotFoundError: a journal was removed or re-created, and is not held any more; the others are
                committed.
            SejError: as :meth:`hub.readers.Readers.hold`.
        """
        self.check()
        changed = {source: offset for source, offset in offsets.items() if offset > self._kept.get(source, -1)}
        if changed:
            self._send(changed)

    def holds(self, source: Source) -> bool:
        """Return whether the reader was taken in a journal, and the journal was not removed since."""
        return source in self._kept

    def check(self) -> None:
        """Check that the reader is still held, as far as this program knows.

        Raises:
            LeaseLostError: another program has taken it.
            ClosedError: it was closed, or made before a fork by the parent process.
        """
        if self._closed.is_set() or self._pid != os.getpid():
            raise ClosedError(f"reader {self.name!r} is closed")
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Give the reader back; if the hub cannot be reached, its lease ends by itself."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._pid != os.getpid():
            return
        if self._thread is not None:
            self._thread.join()
        try:
            if self._kept and self._failure is None:
                self._send(dict.fromkeys(self._kept), lease_s=0.0)
        except SejError:
            pass  # the lease ends by itself

    def _send(
        self,
        offsets: Mapping[Source, int | None],
        *,
        take: bool = False,
        reset: bool = False,
        lease_s: float | None = None,
    ) -> list[Kept]:
        """Call the hub for all journals; if one was removed, for each of them by itself, so that no other is lost."""
        ask = partial(self._ask_hub, take=take, reset=reset, lease_s=self._lease_s if lease_s is None else lease_s)
        kept: list[Kept] = []
        gone: JournalNotFoundError | None = None
        with self._lock:
            try:
                return ask(offsets)
            except JournalNotFoundError:
                pass
            for source, offset in offsets.items():
                try:
                    kept += ask({source: offset})
                except JournalNotFoundError as error:
                    self._kept.pop(source, None)
                    gone = error
        if gone is not None:
            raise gone
        return kept

    def _ask_hub(self, offsets: Mapping[Source, int | None], *, take: bool, reset: bool, lease_s: float) -> list[Kept]:
        places = [
            pb.Place(ClientID=client, JournalDir=name, Offset=at, Reset=reset) for (client, name), at in offsets.items()
        ]
        try:
            kept = self._hub.hold(
                pb.HoldRequest(
                    Reader=self.name, Holder=self._holder, LeaseMs=round(lease_s * 1000), Take=take, Places=places
                )
            )
        except LeaseLostError as error:
            self._failure = error
            raise
        self._kept.update(zip(offsets, (each.offset for each in kept), strict=True))
        return kept

    def _renew(self) -> None:
        """Renew the lease until the end, or until it is lost."""
        while not self._closed.wait(self._lease_s / _RENEWALS):
            held = dict.fromkeys(list(self._kept))
            try:
                if held:
                    self._send(held)
            except (JournalNotFoundError, UnavailableError):
                continue  # what was removed is not held any more; a restarted hub waits for the next call
            except SejError as error:
                self._failure = error
                return


def batches(
    client: Client,
    source: Source,
    offset: int,
    *,
    was_there: bool,
    wait: bool,
    verify: bool,
    on_retry: Callable[[UnavailableError], object] | None,
) -> Iterator[list[Message]]:
    """Yield the messages of a journal from an offset on; while the hub cannot be reached, try again.

    Args:
        client: the connection.
        source: the journal.
        offset: the first message's offset.
        was_there: the journal had the messages before the offset, so it cannot end earlier.
        wait: wait for new messages; False: end after the existing ones.
        verify: as for :meth:`Client.get`.
        on_retry: called when the hub cannot be reached, once for each outage; None: raise that.

    Raises:
        OffsetBeyondEndError: the hub lost messages that were read, also if others have their offsets now.
        SejError: as :meth:`Client.follow`.
    """
    failures, last = 0, None
    while True:
        try:
            if was_there:
                _check_end(client, source, offset, last)
            if wait:
                found = client.follow(source.journal_dir, offset, client_id=source.client, verify=verify)
            else:
                found = _existing(client, source, offset, verify=verify)
            for messages in filter(None, found):
                failures, was_there, last = 0, True, messages[-1]
                offset = last.offset + 1
                yield messages
            if not wait:
                return
        except UnavailableError as error:
            if on_retry is None:
                raise
            if not failures:
                on_retry(error)
            failures += 1
            time.sleep(backoff(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))


def _existing(client: Client, source: Source, offset: int, *, verify: bool) -> Iterator[list[Message]]:
    while messages := client.get(source.journal_dir, offset, client_id=source.client, verify=verify):
        yield messages
        offset = messages[-1].offset + 1


def _check_end(client: Client, source: Source, offset: int, last: Message | None) -> None:
    """Check that a journal still has the messages before an offset; ``last`` is the one that was read last, if known.

    Raises:
        OffsetBeyondEndError: the journal ends before the offset, or has another message there.
    """
    end = client.end_offset(source.journal_dir, client_id=source.client)
    if end < offset:
        what = f"{source} ends at {end}"
    elif last is None or _is_there(client, source, last):
        return
    else:
        what = f"message {offset - 1} of {source} is not the one that was read"
    raise OffsetBeyondEndError(
        f"the next offset is {offset}, but {what}: the hub lost messages, or the journal was re-created; forget the"
        " old offset, and begin at an offset that the hub has",
        path=f"hub at {client.address}",
        offset=offset,
    )


def _is_there(client: Client, source: Source, last: Message) -> bool:
    """Return whether the journal has a message; one that was deleted or damaged may be there."""
    try:
        found = client.get(source.journal_dir, last.offset, 1, client_id=source.client, verify=False)
    except (OffsetTooSmallError, CorruptionError, OffsetGapError):
        return True
    return not found or found[0].offset != last.offset or found[0] == last


class Reader(Closing):
    """The messages of a journal on a hub, from the offset that the hub keeps for a name; a context manager.

    One program at a time has a name in a journal. Retention on the hub waits for it, and `sej hub ls` shows its lag.
    Each message is delivered at least once: after a crash, those since the last commit are delivered again. Use it from
    one thread.

    Example:
        >>> import tempfile, hub, sej
        >>> from hub.wire import Client, Server
        >>> with hub.Store(tempfile.mkdtemp()) as store, Server(store, "127.0.0.1:0") as server:
        ...     _ = store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"a"), sej.Message(1, 2, 0, b"", b"b")])
        ...     with Client(server.address) as client:
        ...         with Reader(client, "report", "EWR", "orders", wait=False) as reader:
        ...             for messages in reader:
        ...                 print([message.value for message in messages])
        ...                 reader.commit()
        [b'a', b'b']
    """

    def __init__(
        self,
        client: Client,
        name: str,
        client_id: str,
        journal_dir: str,
        *,
        start: int | None = None,
        wait: bool = True,
        verify: bool = True,
        lease_s: Seconds = _LEASE_S,
        on_retry: Callable[[UnavailableError], object] = lambda _: None,
    ) -> None:
        """Take the reader.

        Args:
            client: the connection; the caller closes it after the reader.
            name: letters, digits, ``_``, ``-`` and ``.`` (not first).
            client_id: the journal's client.
            journal_dir: the journal's name on the hub.
            start: where a reader that never committed starts; None: the first message.
            wait: wait for new messages; False: end after the existing ones.
            verify: as for :meth:`Client.get`.
            lease_s: the most seconds, up to 600, that the hub waits for this program when it does not answer, before
                another one may take the reader.
            on_retry: called when the hub cannot be reached, once for each outage.

        Raises:
            ReaderHeldError: another program has the reader.
            NotSupportedError: the hub is an original one.
            AccessError: the token does not allow it: its role must be ``reader``.
            JournalNotFoundError: the hub has no such journal.
            UnavailableError: the hub cannot be reached.
        """
        require(client_id=client_id, wait=wait, verify=verify, on_retry=on_retry)
        require(client=(client, instance_of(Client)), journal_dir=(journal_dir, TEXT), start=(start, optional(OFFSET)))
        self._source = check_journal(client_id, journal_dir)
        self._batches = partial(
            batches, client, self._source, was_there=False, wait=wait, verify=verify, on_retry=on_retry
        )
        self._held = HeldReaders(client, name, lease_s)
        kept = self._held.take({self._source: start})[self._source]
        self.is_new = not kept.kept
        """True if the reader has never committed."""
        self.offset = kept.offset
        """The offset after the last message that was delivered."""

    def __iter__(self) -> Iterator[list[Message]]:
        """Yield messages in batches. While the hub cannot be reached, try again.

        Raises:
            LeaseLostError: another program has taken the reader.
            OffsetTooSmallError: messages were deleted before they were read.
            OffsetBeyondEndError: the hub lost messages that were read, also if others have their offsets now.
            SejError: as :meth:`Client.follow`.
        """
        for messages in self._batches(self.offset):
            self._held.check()
            self.offset = messages[-1].offset + 1
            yield messages

    def commit(self, offset: int | None = None) -> None:
        """Commit an offset, durably on the hub when it returns; None: after the last messages that were delivered.

        Raises:
            LeaseLostError: another program has taken the reader.
            JournalNotFoundError: the journal was removed or re-created, with the offset.
            OffsetBeyondEndError: the journal ends before it.
            UnavailableError: the hub cannot be reached; commit again later.
        """
        optional(OFFSET)("offset", offset)
        self._held.commit({self._source: self.offset if offset is None else offset})

    def close(self) -> None:
        """Give the reader back."""
        self._held.close()
