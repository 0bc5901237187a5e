"""Journals that are read through a hub's protocol, where Spark's executors share no disk with it.

The hub is not asked for a list, so ``load`` names what is read: ``berlin.orders.3.005`` is one journal,
``berlin.orders.3`` all shards of a tree that the hub has. Each task has its own connection, made after the fork.
Several addresses are several ways to the same hub: journals are spread over them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from hub.naming import parse_source
from pipeline.options import OptionError, Options
from pipeline.places import Origin, Slice
from sej.codec import Columns
from sej.errors import JournalNotFoundError
from sej.message import Message
from shard.names import Path, split_name

if TYPE_CHECKING:
    from hub.wire import Client

__all__ = ["Remote", "RemoteExtent", "RemoteFollower", "origins"]

_MESSAGES: Final = 10_000
_MESSAGE_BYTES: Final = 256
"""What a message is taken to weigh: the hub tells offsets, not bytes."""


class Remote(NamedTuple):
    """How to reach a hub; travels to the tasks.

    Attributes:
        addresses: ``host:port`` each.
        token: shown with every call.
        ca: a PEM file: who signed the hub's certificate; with it or a certificate, TLS is used.
        certificate: a PEM file, for mutual TLS.
        key: a PEM file, for mutual TLS.
        server_name: in the hub's certificate, where it is not the address.
    """

    addresses: tuple[str, ...]
    token: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    @classmethod
    def of(cls, options: Options) -> Remote | None:
        """What the options say; None where no hub is given."""
        if not options["hub"]:
            return None
        names = ("hubToken", "hubCa", "hubCertificate", "hubKey", "hubServerName")
        return cls(options["hub"], *(options[name] for name in names))

    def client(self, name: str) -> Client:
        """A connection for one journal."""
        from hub.wire import Client, ClientTLS

        secure = any((self.ca, self.certificate, self.server_name))
        tls = ClientTLS(self.ca, self.certificate, self.key, self.server_name) if secure else None
        return Client(self.addresses[crc32(name.encode()) % len(self.addresses)], token=self.token, tls=tls)

    def read(self, part: Slice) -> Iterator[tuple[int, Columns]]:
        """The messages of a slice as (first offset, columns); fewer where the hub has no more.

        Raises:
            OffsetTooSmallError: the hub deleted them.
        """
        due = part.start
        with self.client(part.origin.name) as client:
            while due < part.stop:
                limit = min(_MESSAGES, part.stop - due)
                found = client.get(_journal(part.origin), due, limit, client_id=part.origin.client)
                if not found:
                    return
                yield found[0].offset, _columns(found)
                due = found[-1].offset + 1


class RemoteExtent:
    """What a journal on a hub holds; as :class:`pipeline.extents.Extent`, as far as the hub tells."""

    def __init__(self, origin: Origin, remote: Remote) -> None:
        """Ask.

        Raises:
            JournalNotFoundError: the hub has no such journal.
            UnavailableError: the hub cannot be reached.
        """
        self.origin = origin
        with remote.client(origin.name) as client:
            standing = client.where(_journal(origin), client_id=origin.client)
        if not standing.known:
            raise JournalNotFoundError(f"the hub at {', '.join(remote.addresses)} has no journal {origin.name!r}")
        self.first, self.end = standing.first_offset, standing.next_offset

    def find_time(self, timestamp: int) -> int:
        """The hub does not look for times."""
        raise OptionError("a hub is not asked for times: give offsets, or filter on timestamp_ns")

    def slice(self, start: int, stop: int) -> Slice:
        """The messages [start, stop)."""
        start, stop = max(start, self.first), min(stop, self.end)
        return Slice(self.origin, start, max(start, stop), max(stop - start, 0) * _MESSAGE_BYTES)

    def cut(self, part: Slice, size: int) -> tuple[Slice, Slice] | None:
        """Divide a slice by count."""
        at = part.start + size // _MESSAGE_BYTES
        if not part.start < at < part.stop:
            return None
        return self.slice(part.start, at), self.slice(at, part.stop)


class RemoteFollower:
    """A growing journal on a hub; as :class:`pipeline.following.Follower`."""

    id = ""

    def __init__(self, origin: Origin, remote: Remote) -> None:
        """Nothing is asked yet."""
        self.origin = origin
        self.first = self.end = 0
        self._remote = remote

    @cached_property
    def _client(self) -> Client:
        return self._remote.client(self.origin.name)

    def look(self) -> int:
        """Ask; returns the end."""
        standing = self._client.where(_journal(self.origin), client_id=self.origin.client)
        self.first, self.end = standing.first_offset, standing.next_offset
        return self.end

    def place(self, offset: int) -> None:
        """The hub tells no places."""

    def size_of(self, start: int, stop: int) -> int:
        """About how many bytes [start, stop) take."""
        return (stop - start) * _MESSAGE_BYTES


def origins(names: Sequence[str], remote: Remote) -> list[Origin]:
    """The journals that names mean.

    Raises:
        OptionError: a name is no journal's on a hub.
        JournalNotFoundError: the hub has no shard of a tree.
    """
    found = []
    for name in names:
        source = parse_source(name)
        if source is None:
            raise OptionError(
                f"{name!r}: with the option hub, load names journals: client.journal, or client.prefix.bits"
            )
        tree = _tree(source.journal_dir)
        if tree is None:
            shard = split_name(source.journal_dir)
            found.append(_origin(name, source.client, shard))
            continue
        there = []
        with remote.client(name) as client:
            for index in range(tree.count):
                journal = tree.dir(index)
                if client.where(journal, client_id=source.client).known:
                    parts = (tree.prefix, tree.bits, index)
                    there.append(_origin(f"{source.client}.{journal}", source.client, parts))
        if not there:
            raise JournalNotFoundError(f"the hub at {', '.join(remote.addresses)} has no shard of {name!r}")
        found += there
    return found


def _tree(journal: str) -> Path | None:
    """The tree that ``prefix.bits`` or ``bits`` names, or None where it is a journal's own name."""
    prefix, _, bits = journal.rpartition(".")
    shard = split_name(f"{journal}.000")
    return Path("", prefix, int(bits, 16)) if shard is not None and shard[1] else None


def _origin(name: str, client: str, shard: tuple[str, int, int] | None) -> Origin:
    if shard is None:
        return Origin(name, name, client)
    return Origin(name, name, client, shard[0] or None, shard[1], shard[2])


def _journal(origin: Origin) -> str:
    return origin.name.partition(".")[2]


def _columns(messages: list[Message]) -> Columns:
    return Columns(
        len(messages),
        0,
        array("q", [message.timestamp for message in messages]).tobytes(),
        array("i", [message.type for message in messages]).tobytes(),
        array("i", accumulate((len(message.key) for message in messages), initial=0)).tobytes(),
        b"".join(message.key for message in messages),
        array("i", accumulate((len(message.value) for message in messages), initial=0)).tobytes(),
        b"".join(message.value for message in messages),
    )
