"""Journals read through a hub's protocol, if Spark's executors share no disk with it.

The hub lists its journals and returns encoded messages: the tasks decode them in batches, as from files. Each task has
its own connection, made after the fork. Several addresses lead to the same hub: journals are spread over them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hub.errors import UnavailableError
from hub.naming import Source, client_of
from pipeline.connection import Line, Remote
from pipeline.options import OptionError
from pipeline.reading.places import Origin, Slice
from pipeline.retrying import Retry
from sej.codec import Columns, columns
from sej.codec.format import OFFSET, OFFSET_SIZE
from sej.errors import JournalNotFoundError
from shard.names import split_name

if TYPE_CHECKING:
    from hub.wire import Listed

__all__ = ["RemoteExtent", "RemoteFollower", "RemoteRoot", "matching", "read"]

_LOOK_S: Final = 0.1
_MESSAGES: Final = 1 << 14


def read(
    remote: Remote, part: Slice, *, skip: bool = False, verify: bool = False, keys: bool = True, values: bool = True
) -> Iterator[tuple[int, Columns]]:
    """Yield the messages of a slice as (first offset, columns), with keys and values or not.

    Yields fewer if the hub has no more.

    A lost connection is made again, and reading continues after the last received message.

    Raises:
        OffsetTooSmallError: the hub deleted them.
        CorruptionError: the hub's copy is damaged, and skip is not set.
        UnavailableError: the hub was out of reach for longer than retry_s.
    """
    due, retry = part.start, Retry(remote.retry_s)
    journal, whose = part.origin.name.partition(".")[2], part.origin.client
    while due < part.stop:
        try:
            with remote.client(part.origin.name, retry.attempts) as client:
                chunks = client.read_encoded(journal, due, part.stop, client_id=whose, skip=skip, verify=verify)
                for chunk in chunks:
                    for first, found in _columns(chunk, part.stop, keys, values):
                        retry.reached()
                        yield first, found
                        due = first + found.messages
            return
        except UnavailableError as error:
            retry.wait(error)


def _columns(chunk: bytes | memoryview, stop: int, keys: bool, values: bool) -> Iterator[tuple[int, Columns]]:
    """Yield a chunk's messages below ``stop``."""
    position, due = 0, OFFSET.unpack(chunk[:OFFSET_SIZE])[0]
    while position < len(chunk) and due < stop:
        found = columns(chunk, position, len(chunk), due, min(_MESSAGES, stop - due), keys, values)
        yield due, found
        position = found.position
        due += found.messages


class RemoteExtent:
    """The extent of a journal on a hub; like :class:`pipeline.reading.extents.Extent`, as far as the hub reports it."""

    def __init__(self, origin: Origin, listed: Listed, remote: Remote) -> None:
        """Store the hub's answer."""
        self.origin = origin
        self.first, self.end = listed.first_offset, listed.next_offset
        self._size = listed.size
        self._remote = remote

    def find_time(self, timestamp: int) -> int:
        """Return the first offset from a timestamp (ns) on; the end if none exists."""
        journal, whose = self.origin.name.partition(".")[2], self.origin.client
        with Line(self._remote) as line:
            return min(line.ask(lambda client: client.find_time(journal, timestamp, client_id=whose)), self.end)

    def slice(self, start: int, stop: int) -> Slice:
        """Return the messages [start, stop)."""
        start, stop = max(start, self.first), min(stop, self.end)
        return Slice(self.origin, start, max(start, stop), self.size_of(start, stop))

    def size_of(self, start: int, stop: int) -> int:
        """Return about how many bytes [start, stop) takes: the hub reports the size of the whole journal."""
        return max(stop - start, 0) * self._size // max(self.end - self.first, 1)

    def cut(self, part: Slice, size: int) -> tuple[Slice, Slice] | None:
        """Divide a slice by count."""
        at = part.start + size * (part.stop - part.start) // max(part.size, 1)
        if not part.start < at < part.stop:
            return None
        return self.slice(part.start, at), self.slice(at, part.stop)


class RemoteFollower:
    """A growing journal on a hub, from the last list; like :class:`pipeline.reading.following.Follower`."""

    def __init__(self, origin: Origin, listed: Listed, remote: Remote) -> None:
        """Store the hub's answer."""
        self.origin = origin
        self.id = listed.id.hex()[:16]
        self.first, self.end = listed.first_offset, listed.next_offset
        self._extent = RemoteExtent(origin, listed, remote)

    @property
    def extent(self) -> RemoteExtent:
        """Return the same as an extent."""
        return self._extent

    def place(self, offset: int) -> None:
        """Return None: the hub reports no positions."""

    def size_of(self, start: int, stop: int) -> int:
        """Return about how many bytes [start, stop) takes."""
        return self._extent.size_of(start, stop)


class RemoteRoot:
    """The journals on a hub that a stream reads, including new ones; like :class:`pipeline.reading.following.Root`.

    Spark polls every 10 ms, but the hub gets ten calls a second: one for all journals.

    Attributes:
        followers: by name.
    """

    def __init__(
        self, remote: Remote, names: Sequence[str], pattern: str | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it without a call."""
        self.followers: dict[str, RemoteFollower] = {}
        self._remote = remote
        self._line = Line(remote)
        self._names = names
        self._pattern = pattern
        self._clock = clock
        self._looked_at = float("-inf")

    def check(self) -> None:
        """Check that the named journals exist, before a stream waits for them.

        Raises:
            JournalNotFoundError: a name is not a journal, sharded journal or client.
        """
        matching(self._line, self._names, None)

    def look(self) -> dict[str, RemoteFollower]:
        """Return the journals of the last list."""
        if self._clock() - self._looked_at >= _LOOK_S:
            found = matching(self._line, self._names, self._pattern, may_be_empty=True)
            self.followers = {
                origin.name: RemoteFollower(origin, listed, self._remote) for origin, listed in found.items()
            }
            self._looked_at = self._clock()
        return self.followers

    def close(self) -> None:
        """Disconnect."""
        self._line.close()


def matching(
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
    from pipeline.reading.discovery import matcher

    clients = {client_of(name) for name in names}
    whose = next(iter(clients)) if len(clients) == 1 else ""
    there = {_origin(listed): listed for listed in line.ask(lambda client: client.journals(whose))}
    if whose and not there:  # the name of a client whose id has dots
        there = {_origin(listed): listed for listed in line.ask(lambda client: client.journals())}
    chosen = {} if names else there
    for name in names:
        meant = {origin: listed for origin, listed in there.items() if name in _called(origin)}
        if not meant and not may_be_empty:
            raise JournalNotFoundError(f"the hub at {line} has no readable journal, sharded journal or client {name!r}")
        chosen |= meant
    if pattern is None:
        return chosen
    matches = matcher(pattern)
    kept = {origin: listed for origin, listed in chosen.items() if matches(origin.name)}
    if chosen and not kept and not may_be_empty:
        raise OptionError(
            f"pattern={pattern!r} matches none of {len(chosen)} journals; one of them is {min(chosen).name!r}"
        )
    return kept


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
