"""Journals read through a hub's protocol, if Spark's executors share no disk with it.

The hub lists its journals and returns encoded messages: the tasks decode them in batches, as from files. Each task has
its own connection, made after the fork. Several addresses lead to the same hub: journals are spread over them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from hub.errors import ReaderHeldError, UnavailableError
from hub.naming import Source, client_of
from pipeline.connection import Line, Remote
from pipeline.reading.discovery import ID_BYTES, NEWEST, OLDEST, Chosen, Origin, Slice, Way, matching
from sej.errors import JournalNotFoundError, TruncatedError
from shard.names import split_name

if TYPE_CHECKING:
    from hub.readers import Kept
    from hub.wire import Listed, Rows

_LOOK_S: Final = 0.1
_LEASE_S: Final = 10.0
"""Spark kills the process that plans a stream. The next run waits until the lease of the one before has ended."""
_SPARE_S: Final = 5.0
_HELD_S: Final = 1.0
_T = TypeVar("_T")
_log = logging.getLogger("pipeline")


def read(part: Slice, columns: Iterable[str], way: Way, chosen: Chosen) -> Iterator[Rows]:
    """Yield the messages of a slice, with these columns. The hub may leave out those of other times.

    Yields fewer if the hub has no more.

    A lost connection is made again, and reading continues after the last received message.

    Raises:
        OffsetTooSmallError: the hub deleted them.
        CorruptionError: the hub's copy is damaged, and that is not skipped.
        TruncatedError: the journal was re-created since the read was planned.
        UnavailableError: the hub was out of reach for longer than retry_s.
    """
    assert way.remote is not None
    due, names, retry = part.start, tuple(columns), way.remote.retry()
    journal, whose = part.origin.name.partition(".")[2], part.origin.client
    how = {"skip": way.on_corruption == "skip", "verify": way.verify}
    since, until = _bound(chosen.since, OLDEST), _bound(chosen.until, NEWEST)
    while due < part.stop:
        try:
            retry.trying()
            with way.remote.client(part.origin.name, retry.attempts) as client:
                is_checked = False
                for rows in client.read_columns(
                    journal, due, part.stop, columns=names, since=since, until=until, client_id=whose, **how
                ):
                    retry.reached()
                    if not is_checked:  # one call returns the messages of one journal
                        _check_identity(client.identity(journal, client_id=whose), part)
                        is_checked = True
                    yield rows
                    due = rows.stop
            return
        except UnavailableError as error:
            retry.wait(error)


def _bound(time: int, limit: int) -> int | None:
    """Return a bound as the hub takes it, which sends the time of each message if there is one."""
    return None if time == limit else time


def _check_identity(found: bytes, part: Slice) -> None:
    if part.id and found and _short(found) != part.id:
        raise TruncatedError(
            "the journal was removed or re-created on the hub since the read was planned; read again",
            path=part.origin.path,
            offset=part.start,
        )


def _short(identity: bytes) -> str:
    return identity[:ID_BYTES].hex()


def has(way: Way, part: Slice) -> bool:
    """Return whether a journal still reaches to a slice's end: then messages of it that a read left out are damaged."""
    assert way.remote is not None
    journal, whose = part.origin.name.partition(".")[2], part.origin.client
    with Line(way.remote) as line:
        return line.ask(lambda client: client.end_offset(journal, client_id=whose)) >= part.stop


class RemoteExtent:
    """A journal on a hub, as the hub lists it: an extent and a follower, like those of ``pipeline.reading.extents``."""

    def __init__(self, origin: Origin, listed: Listed, remote: Remote) -> None:
        """Store the hub's answer."""
        self.origin = origin
        self.first, self.end = listed.first_offset, listed.next_offset
        self.id = _short(listed.id)
        self._size = listed.size
        self._messages = listed.messages
        self._remote = remote

    def extent(self, *, judge: bool = False) -> RemoteExtent:
        """Return this object: the hub has judged the journal."""
        del judge
        return self

    def place(self, offset: int) -> None:
        """Return None: the hub reports no positions."""

    def count(self, start: int, stop: int) -> int | None:
        """Return the number of messages [start, stop); None if the hub's answer does not say it."""
        start, stop = max(start, self.first), min(stop, self.end)
        if self._messages is None:
            return None
        if self._messages == self.end - self.first:
            return max(stop - start, 0)
        return self._messages if (start, stop) == (self.first, self.end) else None

    def find_time(self, timestamp: int) -> int:
        """Return the first offset from a timestamp (ns) on; the end if none exists."""
        journal, whose = self.origin.name.partition(".")[2], self.origin.client
        with Line(self._remote) as line:
            return min(line.ask(lambda client: client.find_time(journal, timestamp, client_id=whose)), self.end)

    def slice(self, start: int, stop: int) -> Slice:
        """Return the messages [start, stop)."""
        start, stop = max(start, self.first), min(stop, self.end)
        return Slice(self.origin, start, max(start, stop), self.size_of(start, stop), id=self.id)

    def size_of(self, start: int, stop: int) -> int:
        """Return about how many bytes [start, stop) takes: the hub reports the size of the whole journal."""
        return max(stop - start, 0) * self._size // max(self.end - self.first, 1)

    def cut(self, part: Slice, size: int) -> tuple[Slice, Slice] | None:
        """Divide a slice by count."""
        at = part.start + size * (part.stop - part.start) // max(part.size, 1)
        if not part.start < at < part.stop:
            return None
        return self.slice(part.start, at), self.slice(at, part.stop)


class RemoteRoot:
    """The journals on a hub that a stream reads, including new ones; like :class:`pipeline.reading.extents.Root`.

    Spark polls every 10 ms, but the hub gets ten calls a second: one for all journals.

    Attributes:
        followers: by name.
    """

    def __init__(self, names: Sequence[str], way: Way) -> None:
        """Create it without a call."""
        assert way.remote is not None
        self.followers: dict[str, RemoteExtent] = {}
        self._remote = way.remote
        self._line = Line(way.remote)
        self._names = names
        self._pattern = way.pattern
        self._looked_at = float("-inf")

    def check(self) -> None:
        """Check that the named journals exist, before a stream waits for them.

        Raises:
            JournalNotFoundError: a name is not a journal, sharded journal or client.
        """
        listed_on(self._line, self._names, None)

    def look(self) -> dict[str, RemoteExtent]:
        """Return the journals of the last list."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            found = listed_on(self._line, self._names, self._pattern, may_be_empty=True)
            self.followers = {
                origin.name: RemoteExtent(origin, listed, self._remote) for origin, listed in found.items()
            }
            self._looked_at = time.monotonic()
        return self.followers

    def again(self, name: str) -> RemoteExtent:
        """Return a known journal as the hub lists it now; as it was if it is gone."""
        before = self.followers[name]
        self._looked_at = float("-inf")
        return self.look().get(name, before)

    def close(self) -> None:
        """Disconnect."""
        self._line.close()


class RemoteProgress:
    """A reader's offsets in journals on a hub; like :class:`pipeline.reading.progress.Progress`."""

    def __init__(self, remote: Remote, reader: str) -> None:
        """Set the reader; nothing is taken yet."""
        from hub.wire.named_readers import HeldReaders

        self._remote = remote
        self._line = Line(remote._replace(retry_s=0.0))  # a renewal in an outage must not hold up the end of a stream
        self._held = HeldReaders(self._line, reader, _LEASE_S)
        self._ids: dict[str, str] = {}

    def take(self, starts: Mapping[str, int | None], *, reset: bool = False) -> dict[str, Kept]:
        """Take the reader in journals; waits if another program has it, because a program that died has a lease.

        Args:
            starts: by name; see :meth:`hub.wire.named_readers.HeldReaders.take`.
            reset: as there.

        Raises:
            ReaderHeldError: another program still has it after the time of a lease.
            JournalNotFoundError: a journal does not exist; the reader was taken in the others.
            UnavailableError: the hub was out of reach for longer than retry_s.
        """
        if not starts:
            return {}
        sources = {_source(name): start for name, start in starts.items()}
        until = time.monotonic() + _LEASE_S + _SPARE_S
        while True:
            try:
                taken = self._patiently(lambda: self._held.take(sources, reset=reset))
                return dict(zip(starts, taken.values(), strict=True))
            except ReaderHeldError as error:
                if time.monotonic() >= until:
                    raise
                _log.warning("%s", error)
                time.sleep(_HELD_S)

    def begin(self, places: Mapping[str, tuple[int, str]]) -> list[str]:
        """Register as the reader of journals, as :meth:`pipeline.reading.progress.Progress.begin` does."""
        fresh: dict[str, int | None] = {
            name: offset
            for name, (offset, identity) in places.items()
            if self._ids.get(name) != identity or not self._held.holds(_source(name))
        }
        with suppress(JournalNotFoundError):
            self.take(fresh, reset=True)
        held = [name for name in places if self._held.holds(_source(name))]
        self._ids.update((name, places[name][1]) for name in held)
        return held

    def keep(self, offsets: Mapping[str, int], *, wait: bool = False) -> None:
        """Commit offsets by name, before it returns; a journal that was removed is logged.

        Raises:
            LeaseLostError: another program has taken the reader.
        """
        del wait
        held = {source: offset for name, offset in offsets.items() if self._held.holds(source := _source(name))}
        try:
            self._patiently(lambda: self._held.commit(held))
        except JournalNotFoundError as error:  # the stream itself decides what to do
            _log.warning("%s", error)

    def close(self) -> None:
        """Give the reader back, and disconnect."""
        self._held.close()
        self._line.close()

    def _patiently(self, act: Callable[[], _T]) -> _T:
        retry = self._remote.retry()
        while True:
            try:
                retry.trying()
                return act()
            except UnavailableError as error:
                retry.wait(error)


def _source(name: str) -> Source:
    return Source(client_of(name), name.partition(".")[2])


def listed_on(
    line: Line, names: Sequence[str], pattern: str | None, *, may_be_empty: bool = False
) -> dict[Origin, Listed]:
    """Return the requested journals on a hub.

    Args:
        line: the connection to the hub.
        names: ``berlin.orders.3.005`` is a journal, ``berlin.orders.3`` all shards of a sharded journal, ``berlin`` all
            journals of a client; none: every readable journal.
        pattern: only names that match it, as on a disk.
        may_be_empty: whether missing journals are accepted.

    Raises:
        JournalNotFoundError: a name is not a journal, sharded journal or client there.
        OptionError: the pattern matches none.
        UnavailableError: the hub cannot be reached.
    """
    clients = {client_of(name) for name in names}
    whose = next(iter(clients)) if len(clients) == 1 else ""
    there = {_origin(listed): listed for listed in line.ask(lambda client: client.journals(whose))}
    if whose and not there:  # the name of a client whose id has dots
        there = {_origin(listed): listed for listed in line.ask(lambda client: client.journals())}
    chosen = {} if names else there
    for name in names:
        meant = {origin: listed for origin, listed in there.items() if name in _called(origin)}
        if not meant and not may_be_empty:
            raise JournalNotFoundError(
                f"the hub at {line} has no readable journal, sharded journal or client {name!r}; check the name, and"
                " which client ids the token allows"
            )
        chosen |= meant
    kept = matching(pattern, {origin: origin.name for origin in chosen}, may_be_empty=may_be_empty)
    return {origin: chosen[origin] for origin in kept}


def _origin(listed: Listed) -> Origin:
    name = Source(listed.client, listed.journal_dir).name
    shard = split_name(listed.journal_dir)
    if shard is None:
        return Origin(name, name, listed.client)
    return Origin(name, name, listed.client, shard[0] or None, shard[1], shard[2])


def _called(origin: Origin) -> tuple[str, ...]:
    """Return the names that select a journal: its own, its sharded journal's, its client's."""
    own = (origin.name, str(origin.client))
    return own if not origin.bits else (*own, origin.name.rpartition(".")[0])
