"""What both formats share in moving to SEJ journals and back: messages, checksums, the export, and the plan of a move.

The mapping: the data is the value, the add time the timestamp, and an expiry, which SEJ does not have, is stored in
the key as ``expiry=<ms>``, or as ``expired=<ms>`` if it had passed when the export began. SEJ's types and other keys
have no place in Kestrel: importing them is refused unless they may be dropped.

A move is decided in a plan before it acts. A call that was cut short is finished by calling it again::

    export   plan: what the queue holds, and the journal's next offset   then append; the offset says how far it is
    import   stage all messages in ``kept/``; plan: their checksum, and where they will be   then add them

The plan remains as the record of the move. So a repetition of a move that finished moves nothing.

This module knows SEJ only by :class:`~sej.Message` and the methods of :class:`WriterLike`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from kestrel.errors import Damage, MoveError
from kestrel.files import KEPT, Place, join
from kestrel.reading import Pinned
from sej.checks import one_of, require, with_methods
from sej.message import NO_TIMESTAMP, Message
from sej.system.disk import Disk, File
from sej.system.sealed import SealedFile

Expired = Literal["mark", "leave"]
"""What an export does with an item that has expired: its key says ``expired``, or it is left out."""

BATCH: Final = 1000
"""Messages that are moved together."""
_PLAN_BYTES: Final = 1 << 26
_NS: Final = 1_000_000
_MAX_MS: Final = (2**63 - 1) // _NS
_MIN_MS: Final = -(2**63) // _NS + 1
_EXPIRY_KEY: Final = re.compile(rb"(?:expiry|expired)=([0-9]{1,19})")


class WriterLike(Protocol):
    """What an export writes to: a ``sej.Writer``."""

    path: str
    """The journal, in which the plan is stored."""

    @property
    def offset(self) -> int:
        """The next offset."""

    def append_many(
        self, values: Sequence[bytes], keys: Sequence[bytes] | None = None, *, timestamp: Sequence[int] | None = None
    ) -> object:
        """Append messages."""

    def sync(self) -> object:
        """Make them durable."""


class Moved(NamedTuple):
    """What was moved.

    Attributes:
        count: how many items.
        checksum: CRC32 over all of them, see :func:`checksum`.
        first_offset: of an export: the first one's offset in the SEJ journal.
        damage: what was unreadable in the Kestrel journal.
    """

    count: int  # type: ignore[assignment]  # a tuple's own count has no use here
    checksum: int
    first_offset: int | None
    damage: list[Damage]


class Fields(NamedTuple):
    """A message as Kestrel stores it.

    Attributes:
        data: the item's bytes.
        add_time: when it was put, in ms since the epoch.
        expiry: when it expires, in ms since the epoch; 0: never.
    """

    data: bytes
    add_time: int
    expiry: int


def plan_at(path: str, disk: Disk) -> SealedFile:
    """The plan of a move: a small file that is replaced whole."""
    return SealedFile(
        disk,
        path,
        "a readable record of a move",
        "look for the items at their target: if they are there, do not move them again, otherwise remove this file",
        temporary=f"{path}.part",
        max_bytes=_PLAN_BYTES,
        error=MoveError,
    )


def checksum(messages: Iterable[Message], start: int = 0) -> tuple[int, int]:
    """How many messages, and the CRC32 over their sizes, timestamps, keys and values; start: the CRC32 so far."""
    count, found = 0, start
    for message in messages:
        head = b"%d %d %b" % (len(message.value), message.timestamp, message.key)
        found = zlib.crc32(message.value, zlib.crc32(head, found))
        count += 1
    return count, found


def export_to(
    writer: WriterLike,
    source: Pinned,
    items: Iterable[tuple[bytes, int | None, int | None]],
    holds: list[Any],
    *,
    expired: Expired,
    read_back: Callable[[int], Iterable[Message]] | None,
    grace_ms: int,
    reader: str = "",
) -> Moved:
    """Append what a queue holds to a SEJ journal, from where an earlier call stopped.

    Args:
        writer: of the journal.
        source: the queue.
        items: data, add time and expiry of each item.
        holds: what the queue holds, as JSON.
        expired: what to do with items that have expired.
        read_back: what reads the journal, or None.
        grace_ms: how long after its expiry an item expires.
        reader: what follows the queue's name in the name of the plan.

    Raises:
        TypeError: an argument has another type.
        ValueError: expired is another word.
    """
    require(read_back=read_back)
    require(writer=(writer, with_methods("a sej.Writer", "append_many", "sync")))
    require(expired=(expired, one_of(get_args(Expired))))
    place = source.place
    written = [list(one) for one in source.written()]
    plan = plan_at(join(writer.path, f"{place.name}{reader}.exported"), place.disk)
    decided = plan.load()
    if decided is not None and decided["count"] is not None:
        end = decided["start"] + decided["count"]
        if (decided["holds"], decided["written"]) != (holds, written) or writer.offset < end:
            decided = None  # it finished, and the queue or the journal is another one
    if decided is None:
        decided = {"holds": holds, "written": written, "start": writer.offset, "count": None}
        decided["time"] = place.now_ms()
        plan.store(decided)
    elif decided["holds"] != holds:
        raise MoveError(
            "the queue was changed after an interrupted export; to start again, remove this file and the messages"
            f" that were appended from offset {decided['start']} on",
            path=plan.path,
        )
    start = decided["start"]
    rows = rows_of(items, decided["time"], decided["time"] + 1 - grace_ms, expired)
    if decided["count"] is not None:
        found = checksum(rows)
        source.check()
        if found != (decided["count"], decided["checksum"]):
            raise MoveError(
                f"an earlier export wrote this queue to offset {start} and later ones, with other options; to"
                " export it again, remove this file",
                path=plan.path,
            )
        return Moved(*found, start, source.damage)
    there = writer.offset - start
    count, found_sum = checksum(islice(rows, there)) if there >= 0 else (0, 0)
    if count != there or (read_back is not None and checksum(islice(read_back(start), there)) != (count, found_sum)):
        raise MoveError(
            f"another program wrote to the SEJ journal: its {there} messages from offset {start} on are not the"
            " items of the queue; remove this file to export all items again, after these messages",
            path=plan.path,
        )
    while batch := list(islice(rows, BATCH)):
        source.check()
        writer.append_many(
            [row.value for row in batch], [row.key for row in batch], timestamp=[row.timestamp for row in batch]
        )
        count, found_sum = count + len(batch), checksum(batch, found_sum)[1]
    writer.sync()
    source.check()
    if writer.offset - start != count:
        raise MoveError(
            f"{count} items were exported, and the SEJ journal grew by {writer.offset - start}: another program"
            " wrote to it; export into a journal that no other program uses",
            path=plan.path,
        )
    if read_back is not None and (again := checksum(islice(read_back(start), count))) != (count, found_sum):
        raise MoveError(
            f"the {count} items that were written have checksum {found_sum:08x}, but {again[0]} items with"
            f" checksum {again[1]:08x} were read back; check the disk, and do not remove the source",
            path=plan.path,
        )
    plan.store({**decided, "count": count, "checksum": found_sum})
    return Moved(count, found_sum, start, source.damage)


class Form(Protocol):
    """How the items of an import are staged: as the format stores them."""

    head: bytes

    def encode(self, fields: Fields) -> bytes:
        """The record of an item."""

    def decode(self, file: File) -> Iterator[Fields]:
        """The items of a staged file."""


class Staged(NamedTuple):
    """The messages of an import, as items in a file in ``kept/``.

    Attributes:
        path: the file.
        size: its bytes.
        count: how many items.
        messages: the CRC32 over the messages, with the times that a queue does not store exactly.
        checksum: the CRC32 over the items, see :func:`checksum_of`.
    """

    path: str
    size: int
    count: int  # type: ignore[assignment]  # a tuple's own count has no use here
    messages: int
    checksum: int


class Import:
    """One call that adds messages to a queue.

    Attributes:
        plan: where the items will be; next to them.
    """

    def __init__(self, place: Place, messages: Iterable[Message], keys: str) -> None:
        """Check the arguments that both formats' imports have.

        Raises:
            TypeError: an argument has another type.
            ValueError: keys is another word.
        """
        require(messages=messages)
        one_of(("refuse", "drop"))("keys", keys)
        self._place, self._messages, self._keys = place, messages, keys
        self.plan = plan_at(join(join(place.directory, KEPT), f"{place.name}.imported"), place.disk)

    def stage(self, form: Form, time_ms: int) -> Staged:
        """Write all messages to a file, durably, and compare what is read back; nothing of the queue is changed.

        Args:
            form: how an item is stored.
            time_ms: the add time of messages that have no timestamp.
        """
        disk, path = self._place.disk, self.plan.path.removesuffix("ed")
        count, passed, found = 0, 0, 0
        disk.mkdir(join(self._place.directory, KEPT))
        disk.unlink(path)  # after a crash inside a rename it may be a file of the queue as well
        with disk.open(path, "temp") as file:
            file.write(form.head)
            messages = iter(self._messages)
            while batch := list(islice(messages, BATCH)):
                passed = checksum(batch, passed)[1]
                items = [fields_of(message, self._keys, time_ms) for message in batch]
                file.write(b"".join(map(form.encode, items)))
                found = checksum_of(items, found)[1]
                count += len(items)
            file.sync()
            size = file.size()
        with disk.open(path, "read") as file:
            there = checksum_of(form.decode(file))
        if there != (count, found):
            raise MoveError(
                f"{count} items were written, {there[0]} read back, with a wrong number or wrong bytes; check the disk",
                path=path,
            )
        return Staged(path, size, count, passed, found)


def checksum_of(items: Iterable[Fields], start: int = 0) -> tuple[int, int]:
    """As :func:`checksum`, of items; without their add times, which a repetition may change."""
    return checksum((row_of(item.data, 0, item.expiry) for item in items), start)


def row_of(data: bytes, add_time: int, expiry: int | None) -> Message:
    """An item as a message; None or 0: no expiry."""
    time_ms = min(max(add_time, _MIN_MS), _MAX_MS)
    return Message(0, time_ms * _NS, 0, b"expiry=%d" % expiry if expiry and expiry > 0 else b"", data)


def rows_of(
    items: Iterable[tuple[bytes, int | None, int | None]], time_ms: int, before_ms: int, expired: Expired
) -> Iterator[Message]:
    """Items as messages.

    Args:
        items: data, add time and expiry of each; expiry as for :func:`row_of`.
        time_ms: the timestamp of items that have no add time.
        before_ms: an item whose expiry is below this has expired.
        expired: what to do with such items.
    """
    for data, add_time, expiry in items:
        row = row_of(data, time_ms if add_time is None else add_time, expiry)
        if expiry is not None and expiry < before_ms:
            if expired == "leave":
                continue
            row = row._replace(key=b"expired=%d" % max(expiry, 1))
        yield row


def fields_of(message: Message, keys: str, time_ms: int) -> Fields:
    """A message as the fields of an item; time_ms: the add time of a message that has no timestamp.

    Raises:
        MoveError: it has a key or type, and keys is ``"refuse"``.
    """
    match = _EXPIRY_KEY.fullmatch(message.key)
    if keys == "refuse" and (message.type or (message.key and not match)):
        raise MoveError(
            f"a message has the key {message.key!r} and type {message.type}, for which Kestrel has no place; import"
            ' it with keys="drop" (--drop-keys) to leave them out'
        )
    expiry = min(int(match[1]), 2**63 - 1) if match else 0
    return Fields(message.value, time_ms if message.timestamp == NO_TIMESTAMP else message.timestamp // _NS, expiry)
