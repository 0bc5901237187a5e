"""Named readers of programs on other machines: their kept offsets in the journals, each held by one program at a time.

A program takes the reader of a journal with an id of its own, the holder, and a lease. While the lease lasts, no other
program gets the reader, and the hub holds the reader's lock in ``ofs/``, so no local program gets it either. Each call
of the holder renews the lease:

===========================  ===================================  ==================================================
the reader is                another program asks to take it      the holder calls again
===========================  ===================================  ==================================================
held, the lease lasts        refused: held                        commits, and renews the lease
held, the lease has ended    takes it                             the same, if no other program has moved the offset
taken by another program     refused, while that lease lasts      refused: the lease is lost
removed with its journal     refused: no such journal             refused, until it takes the reader again
===========================  ===================================  ==================================================

``.readers/NAME.json`` names the holder in each journal. It is replaced, durably, before a holder gets an answer. So a
hub that was restarted still knows whose calls to refuse, and waits for one lease before it gives a reader to another
program. The offsets are those of :class:`sej.Offset`: retention, merges of segments and all tools see them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from hub.errors import HubError, ReaderHeldError, UnavailableError
from hub.naming import Source, check_journal, source_path
from hub.store import Store
from sej.errors import (
    ClosedError,
    CorruptionError,
    InvalidNameError,
    JournalNotFoundError,
    LeaseLostError,
    LockedError,
    LockLostError,
)
from sej.journal.directory import Directory, check_name, journal_id
from sej.message import FIRST
from sej.reading.offset import Offset, read_offset
from sej.system.disk import OS, absolute_path
from sej.system.sealed import SealedFile, whole

_log = logging.getLogger(__name__)
MAX_LEASE_S: Final = 600.0
_FOLDER: Final = ".readers"
_RECORD_BYTES: Final = 1 << 28
_READER_BYTES: Final = 4096
"""About the bytes that a new reader takes on the disk."""
_HOLDER_CHARS: Final = 64
MAX_LEASES: Final = 4096
"""Leases at one time: each holds an open file."""


_Row = tuple[Source, str, float, str]
"""A journal, the holder of the reader there, its lease, and the identity of the journal."""
_LOCKS: Final = 64
"""So that two readers seldom wait for each other."""


class Kept(NamedTuple):
    """The state of a reader in one journal.

    Attributes:
        offset: the next offset to read.
        kept: False if the reader has never committed there.
    """

    offset: int
    kept: bool


class Place(NamedTuple):
    """A journal in a call.

    Attributes:
        source: the journal.
        offset: an offset, or None.
        reset: set the offset whatever is kept, also backwards.
    """

    source: Source
    offset: int | None = None
    reset: bool = False


class Holder(NamedTuple):
    """The program that has a reader of a journal, or had it last.

    Attributes:
        name: ``host:pid``, or ``"another program"`` if it does not name itself.
        lease_s: the seconds of its lease.
    """

    name: str
    lease_s: float


@dataclass
class _Held:
    """A reader of a journal that a program has.

    Attributes:
        holder: the program.
        lease_s: the seconds of its lease.
        identity: the journal's, in hex, when the reader was taken; empty: it had none.
        until: when the lease ends.
        offset: None: the lease has ended, or the hub was restarted.
        value: the offset after the last call; None: not known since the hub was started.
        is_gone: True if the journal was removed or re-created, with the offset: the holder must take the reader again.
    """

    holder: str
    lease_s: float = -1.0
    identity: str = ""
    until: float = 0.0
    offset: Offset | None = None
    value: int | None = None
    is_gone: bool = False

    def release(self) -> None:
        """Release the lock."""
        if self.offset is not None:
            self.offset.close()
            self.offset = None


class _Name:
    """One reader's name: who has it in each journal, and what of that is recorded."""

    def __init__(self, recorded: list[_Row], started: float) -> None:
        self.recorded = recorded
        self.held = {
            source: _Held(holder, lease_s, identity, started + lease_s)
            for source, holder, lease_s, identity in recorded
        }


class Readers:
    """The named readers of a store; threads may share it.

    Example:
        >>> import tempfile, hub, sej
        >>> from hub.naming import Source
        >>> with hub.Store(tempfile.mkdtemp()) as store:
        ...     _ = store.put("EWR", "orders", [sej.Message(0, 1, 0, b"", b"a")])
        ...     readers, orders = Readers(store), Source("EWR", "orders")
        ...     print(*readers.hold("report", "01", 30.0, [Place(orders)], take=True))
        ...     print(*readers.hold("report", "01", 30.0, [Place(orders, 1)]))
        ...     readers.close()
        Kept(offset=0, kept=False)
        Kept(offset=1, kept=True)
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Use a store; nothing is read yet."""
        self._store = store
        self._clock = clock
        self._started = clock()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._names: dict[str, _Name] = {}
        """A name that no program holds takes no memory."""

    @property
    def held(self) -> int:
        """The number of leases that last."""
        now = self._clock()
        names = list(self._names.values())
        return sum(held.until > now for name in names for held in list(name.held.values()))

    def hold(
        self, reader: str, holder: str, lease_s: float, places: Sequence[Place], *, take: bool = False
    ) -> list[Kept]:
        """Take a reader, or renew its lease, and commit offsets; may be repeated after a lost answer.

        If a commit fails, the places before it are done. If the reader cannot be taken in a place, it is taken in none.

        If a journal was removed or re-created, its holder gets JournalNotFoundError until it takes the reader again.

        Args:
            reader: the reader's name.
            holder: identifies the program; a new one for each opening. People see the part before the last colon.
            lease_s: the program must call again within so many seconds; 0: give the reader back.
            places: the journals.
            take: take the reader. Then the offset of a place is where a reader that never committed starts. Otherwise
                it is committed; one at or below the kept one changes nothing.

        Returns:
            The state of each place.

        Raises:
            ReaderHeldError: another program has the reader.
            LeaseLostError: another program took it, or moved its offset.
            JournalNotFoundError: there is no such journal, or it was removed or re-created, with the offset.
            InvalidNameError: this name is not for readers of programs elsewhere.
            QuotaError, DiskLowError: a new reader does not fit.
            OffsetBeyondEndError: the journal ends before the offset.
            SejError: as :class:`sej.Offset`.
        """
        if not 0 <= lease_s <= MAX_LEASE_S:
            raise ValueError(f"lease_s must be 0 to {MAX_LEASE_S:g} seconds, got {lease_s}")
        if not 0 < len(holder) <= _HOLDER_CHARS or not (holder.isascii() and holder.isprintable()):
            raise ValueError(f"holder must be 1 to {_HOLDER_CHARS} printable ASCII characters, got {holder[:80]!r}")
        if not places:  # the caller's right to each place was checked: without one, the caller may be unknown
            raise ValueError("places must have at least 1 journal, got none")
        act = self._take if take else self._renew
        with self._named(reader) as name:
            before = dict(name.held)
            try:
                return [act(reader, name, holder, lease_s, place) for place in places]
            except BaseException:
                if take:
                    self._give_back(name, holder, places, before)
                raise

    def _take(self, reader: str, name: _Name, holder: str, lease_s: float, place: Place) -> Kept:
        source, start, reset = place
        old, now = name.held.get(source), self._clock()
        is_new = old is None or old.holder != holder
        if old is not None:
            if is_new and old.until > now:
                raise ReaderHeldError(
                    f"reader {reader!r} of {source} is held by {_shown(old.holder)}, whose lease ends in"
                    f" {old.until - now:.0f} s unless it is renewed; stop that program, wait, or use another name"
                )
            old.release()  # opened again: the journal may have been re-created
        path = self._check(reader, source)
        if is_new:
            if self.held >= MAX_LEASES:
                raise UnavailableError(f"the hub already has {MAX_LEASES} leases of readers; try again later")
            if OS.status(os.path.join(path, "ofs", f"{reader}.ofs")) is None:
                self._store.admit(source.client, _READER_BYTES)  # an estimate: no count of files has them
        identity = _identity(path)
        offset = self._open(reader, source, FIRST if start is None else start, rewind=reset)
        held = name.held[source] = _Held(holder, lease_s, identity, self._clock() + lease_s, offset)
        if reset and start is not None:
            offset.reset(start)
        held.value = offset.value
        return Kept(offset.value, read_offset(path, reader) is not None)

    def _renew(self, reader: str, name: _Name, holder: str, lease_s: float, place: Place) -> Kept:
        source = place.source
        held = name.held.get(source)
        if held is None or held.holder != holder:
            raise LeaseLostError(
                f"reader {reader!r} of {source} is not held by this program any more: its lease ended and another"
                " program took it, or it was given back; open the reader again"
            )
        try:
            kept = self._continue(reader, held, place)
        except LeaseLostError:
            self._drop(name, source)
            raise
        except (ClosedError, LockLostError, FileNotFoundError, JournalNotFoundError) as error:
            held.is_gone = True
            held.release()
            raise JournalNotFoundError(
                f"{source} was removed or re-created, with the kept offset of reader {reader!r}; open the reader again"
            ) from error
        held.value, held.until = kept.offset, self._clock() + lease_s
        if not lease_s:
            self._drop(name, source)
        return kept

    def _continue(self, reader: str, held: _Held, place: Place) -> Kept:
        """Commit an offset for the holder; take the lock again if the lease had ended."""
        source, commit, reset = place
        path = self._check(reader, source)
        if held.is_gone or (held.offset is None and held.identity not in ("", _identity(path))):
            raise JournalNotFoundError("another journal", path=path)
        if held.offset is None:
            try:
                held.offset = self._open(reader, source, FIRST)
            except ReaderHeldError as error:
                raise LeaseLostError(
                    f"the lease of reader {reader!r} of {source} ended, and a program on the hub's machine took it;"
                    " stop that program, and open the reader again"
                ) from error
            if held.value not in (None, held.offset.value):
                raise LeaseLostError(
                    f"the lease of reader {reader!r} of {source} ended, and a local program moved its offset from"
                    f" {held.value} to {held.offset.value}; open the reader again"
                )
        if commit is not None:
            (held.offset.reset if reset else held.offset.commit)(commit)
        return Kept(held.offset.value, read_offset(path, reader) is not None)

    def _give_back(self, name: _Name, holder: str, places: Sequence[Place], before: dict[Source, _Held]) -> None:
        """Undo a call that could not take the reader in all places, except where the holder had it already."""
        for source in {place.source for place in places}:
            held, old = name.held.get(source), before.get(source)
            if held is None or held.holder != holder or (old is not None and old.holder == holder):
                continue
            self._drop(name, source)
            if old is not None:  # its lease has ended, but its program may continue
                name.held[source] = old

    def sweep(self) -> None:
        """Release the locks of leases that have ended, so that local programs may use these readers."""
        now = self._clock()
        for reader, name in list(self._names.items()):
            if not (lock := self._lock_of(reader)).acquire(blocking=False):
                continue  # a call is in progress; the next sweep looks again
            try:
                for held in name.held.values():
                    if held.until <= now:
                        held.release()
            finally:
                lock.release()

    def close(self) -> None:
        """Release all locks. The holders continue after the next start."""
        for reader, name in list(self._names.items()):
            with self._lock_of(reader):
                for held in name.held.values():
                    held.release()

    def _lock_of(self, reader: str) -> threading.Lock:
        return self._locks[crc32(reader.encode()) % _LOCKS]

    @contextlib.contextmanager
    def _named(self, reader: str) -> Iterator[_Name]:
        """Return a name for one call, which no other thread uses; what the call has changed is recorded."""
        with self._lock_of(check_name(reader, "a reader's name")):
            folder = os.path.join(self._store.root, _FOLDER)
            path = os.path.join(folder, f"{reader}.json")
            name = self._names.get(reader) or self._names.setdefault(reader, _Name(_read(path), self._started))
            try:
                yield name
            finally:
                rows = [
                    (source, held.holder, held.lease_s, held.identity) for source, held in sorted(name.held.items())
                ]
                if rows != name.recorded:
                    if OS.status(folder) is None:
                        OS.mkdir(folder)
                    _file(path).store({"format": 1, "holders": [[*source, *rest] for source, *rest in rows]})
                    name.recorded = rows
                if not rows:
                    del self._names[reader]

    def _check(self, reader: str, source: Source) -> str:
        """Return the journal's path; refuse names that have another meaning there."""
        path = self._store.existing(source).path
        if OS.status(os.path.join(self._store.root, ".merge", f"{reader}.json")) is not None:
            raise InvalidNameError(f"{reader!r} is a merge of this hub; choose another name for the reader")
        return path

    def _open(self, reader: str, source: Source, start: Any, *, rewind: bool = False) -> Offset:
        path = source_path(self._store.root, source)
        try:
            return Offset(path, reader, start, beyond_end="rewind" if rewind else "raise")
        except LockedError as error:
            raise ReaderHeldError(
                f"reader {reader!r} of {source} is held by a program on the hub's machine; stop it, or use another name"
            ) from error
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise UnavailableError("the hub has no file descriptor left for this reader; try again later") from error

    def _drop(self, name: _Name, source: Source) -> None:
        name.held.pop(source).release()


def holders(root: str) -> dict[Source, dict[str, Holder]]:
    """Return the recorded holders of the readers in each journal of a root, by the reader's name; takes no lock.

    A record that cannot be read is logged.
    """
    found: dict[Source, dict[str, Holder]] = {}
    folder = os.path.join(absolute_path(root), _FOLDER)
    for name in sorted(OS.list(folder)) if OS.status(folder) is not None else ():
        reader, suffix = os.path.splitext(name)
        if suffix != ".json":
            continue
        try:
            for source, holder, lease_s, _ in _read(os.path.join(folder, name)):
                found.setdefault(source, {})[reader] = Holder(_shown(holder), lease_s)
        except HubError as error:
            _log.warning("%s", error)
    return found


def _identity(path: str) -> str:
    try:
        found = journal_id(Directory(path, OS))
    except CorruptionError:  # of the identity: the journal can be read without it
        return ""
    return found.hex() if found else ""


def _shown(holder: str) -> str:
    return holder.rpartition(":")[0] or "another program"


def _read(path: str) -> list[_Row]:
    file = _file(path)
    content = file.load()
    if content is None:
        return []
    with file.checking():
        whole(content["format"], 1, 1)
        return [
            (check_journal(client, journal), str(holder), float(lease_s), str(identity))
            for client, journal, holder, lease_s, identity in content["holders"]
        ]


def _file(path: str) -> SealedFile:
    return SealedFile(
        OS,
        path,
        "a record of the holders of a reader",
        "stop the hub, and remove the file after every program that uses this reader has ended",
        max_bytes=_RECORD_BYTES,
        error=HubError,
    )
