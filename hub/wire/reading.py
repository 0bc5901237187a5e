"""Reading from the hub: its journals and their state, and messages as stored in a journal.

Reading does not use the writers: each call has a cursor of its own, so that a reader never delays a producer. Messages
are read in pieces of PIECE_BYTES. A larger message is read alone, and its size is known before, so the memory of a call
can be bounded (:mod:`hub.wire.access`).
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from hub.errors import UnavailableError
from hub.naming import Source
from hub.store import Store
from hub.wire import hub_pb2 as pb
from hub.wire.access import LEAST_BYTES, Lease
from hub.wire.frames import get_response, large_get_response
from hub.wire.status import TooLargeError
from sej.codec import decode_many
from sej.codec.format import INT32_SIZE, MAX_OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, FileTypeError, JournalNotFoundError, NotAJournalError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Incarnation, count_messages, journal_id
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import OS
from sej.system.lifecycle import Closing

PIECE_BYTES: Final = LEAST_BYTES
"""Bytes of a journal that are read at one time."""
_LARGE_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 18
_VERIFIED_BYTES: Final = 1 << 19
"""A block has fewer bytes, unless it holds a large message."""
_WIRE_OVERHEAD: Final = 40
"""The most bytes of a message of hub.proto in addition to key and value."""


class Catalog:
    """The journals of a store and their state; a journal that has not changed since the last call is not read again."""

    def __init__(self, store: Store) -> None:
        """Create an empty catalog."""
        self._store = store
        self._known: dict[Source, tuple[object, pb.Listed]] = {}

    def listed(self, source: Source) -> pb.Listed | None:
        """Return the state of a journal; None if the hub does not have it, or if it is being removed.

        Raises:
            CorruptionError: its identity is damaged. Without one, a caller could take it for another journal.
            FileTypeError: one of its files is a FIFO, a device, or the like.
            UnavailableError: another process writes this directory, or the disk failed.
        """
        try:
            return self._listed(source)
        except (NotAJournalError, FileNotFoundError):
            return None
        except (CorruptionError, FileTypeError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and self._store.first_offset(*source) is None:
                return None  # it was removed, and the store has closed its writer
            raise type(error)(f"{source}: {error.reason}", path=error.path, offset=error.offset) from error

    def _listed(self, source: Source) -> pb.Listed | None:
        directory = self._store.directory(source)
        mark = _mark(directory)
        known = self._known.get(source)
        if mark is not None and known is not None and known[0] == mark:
            return known[1]
        first = self._store.first_offset(*source)
        if first is None:
            return None
        end, is_sound = _behind_damage(directory, self._store.end_offset(*source))
        found = pb.Listed(
            ClientID=source.client,
            JournalDir=source.journal_dir,
            FirstOffset=first,
            NextOffset=end,
            Size=sum(segment.size for segment in Journal(directory.path).segments),
            ID=journal_id(directory) or b"",
            Messages=_count(directory, first, end) if is_sound else None,
        )
        self._known[source] = (mark, found)
        return found


def _count(directory: Directory, first: int, end: int) -> int | None:
    try:
        return count_messages(directory, first, end)
    except CorruptionError:  # the file of a gap is damaged: the other journals must still be listed
        return None


def _mark(directory: Directory) -> object | None:
    """Return a mark that changes when a message is appended or a segment removed; None if it cannot be read."""
    jnl = OS.status(directory.jnl)
    segments = directory.segments() if jnl is not None else []
    last = OS.status(segments[-1].path) if segments else None
    if jnl is None or last is None:
        return None
    return jnl.identity, jnl.mtime_ns, last.identity, last.size


def _behind_damage(directory: Directory, end: int) -> tuple[int, bool]:
    """Return the end of the messages even if some are damaged, and whether all are sound.

    A reader gets an error at the damage, or skips it. How many messages are good is not known before they are read.
    """
    with closing(Cursor(directory, end, on_corruption="skip")) as cursor:
        while cursor.read_encoded(_CHUNK_BYTES)[1] or cursor.judge():
            pass
        return (cursor.due, False) if cursor.gaps else (end, True)


def identity(store: Store, source: Source) -> bytes:
    """Return a journal's identity; empty if it has none, or if it is damaged: the messages can be read without it."""
    try:
        return journal_id(store.directory(source)) or b""
    except CorruptionError:
        return b""


def find_time(store: Store, source: Source, timestamp: int) -> int:
    """Return the first offset from a timestamp (ns) on; the end if none exists."""
    return min(Journal(store.directory(source).path).find_time(timestamp), store.end_offset(*source))


class Reader(Closing):
    """Reads a journal in pieces for one call, within the memory granted to the call.

    Attributes:
        jnl: the directory of its segments.
        first: the offset of the first message of the last piece.
        due: the offset after its last message.
    """

    def __init__(
        self,
        store: Store,
        source: Source,
        offset: int,
        *,
        most_bytes: int,
        lease: Lease,
        skip: bool = False,
        verify: bool = False,
    ) -> None:
        """Start at an offset.

        Args:
            store: the journal's store.
            source: the journal.
            offset: the first message's offset.
            most_bytes: larger messages are refused.
            lease: grows before a message is read that needs more memory than the call has.
            skip: skip damaged messages.
            verify: check blocks against their checksums.

        Raises:
            JournalNotFoundError: the hub has no such journal.
            OffsetTooSmallError: the first message was deleted.
            ValueError: the offset is out of range.
        """
        if offset > MAX_OFFSET:
            raise ValueError(f"offset must be 0 to {MAX_OFFSET}, got {offset}")
        try:
            directory = store.existing(source)
        except NotAJournalError as error:
            raise JournalNotFoundError(error.reason, path=error.path) from error
        self.jnl = directory.jnl
        self._directory = directory
        self._incarnation = Incarnation.look(directory)
        self._source = source
        self._most_bytes = most_bytes
        self._piece_bytes = min(PIECE_BYTES, most_bytes)
        self._lease = lease
        self._size = self._limit = 0
        self._verify = verify
        self._held: list[tuple[bytes, int, int]] = []
        self._error: SejError | None = None
        self._cursor = Cursor(
            directory,
            offset,
            on_corruption="skip" if skip else "raise",
            verify=verify,
            chunk_bytes=_VERIFIED_BYTES if verify else self._piece_bytes,
            room=self,
        )
        self._cursor.check_available()
        self.first = self.due = offset

    def piece(self, limit: int, *, has_messages: bool) -> bytes:
        """Return whole messages from :attr:`due` on: about PIECE_BYTES, or one larger message; nothing at the end.

        Args:
            limit: a message larger than a piece and than this many bytes needs more memory.
            has_messages: True if the answer has messages already: then such a message waits for the next answer.
        """
        self._limit, self._size = limit, int(has_messages)
        return self._next()

    def run(self, limit: int, stop: int) -> list[bytes]:
        """Return pieces without a gap between them: ``limit`` bytes together or one larger message; none at the end.

        Args:
            limit: bytes.
            stop: an offset to end at, or soon after; 0: none.

        Raises:
            CorruptionError: the hub's copy is damaged.
            TooLargeError: a message has more than most_bytes.
        """
        self._limit, self._size = limit, 0
        pieces: list[bytes] = []
        while (not pieces or self._size + self._piece_bytes <= limit) and not (stop and self.due >= stop):
            due = self.due
            try:
                data = self._next()
            except (_FullError, SejError) as error:
                if not pieces:
                    raise
                if isinstance(error, SejError):
                    self._error = error  # return first what was read
                break
            if not data:
                if pieces or not self._cursor.judge():
                    break
                continue
            if pieces and self.first != due:
                self._held.insert(0, (data, self.first, self.due))
                self.due = due
                break
            pieces.append(data)
            self._size += len(data)
        return pieces

    def judge(self) -> None:
        """Nothing was appended for a while: check that the bytes at the end are a torn tail.

        Raises:
            CorruptionError: they are not.
        """
        self._cursor.judge()

    def close(self) -> None:
        """Close the segment."""
        self._cursor.close()

    def _next(self) -> bytes:
        if self._error is not None:
            raise self._error
        if not self._held:
            self._read()
        data, first, due = self._held[0]
        if self._verify and len(data) > self._piece_bytes:
            self.make_room(len(data))  # its block needed less, or was read for another message
        self._held.pop(0)
        self.first, self.due = first, due
        if len(data) > self._most_bytes:
            self._error = self._too_large(self.first, len(data))
            raise self._error
        if len(data) > _LARGE_BYTES:
            self._cursor.park()  # the cursor would keep a second copy
        return data

    def _read(self) -> None:
        """Read a piece and hold it.

        A block that is verified is read completely. So its large messages must be separated here: each is a piece.

        Raises:
            JournalNotFoundError: these are messages of another journal, which has the same name.
        """
        try:
            data, count = self._cursor.read_encoded(self._piece_bytes // 2 if self._verify else self._piece_bytes)
        except JournalNotFoundError:
            self._require_same()
            raise
        due = self._cursor.due
        self._require_same()
        if count > 1 and len(data) > self._piece_bytes:
            at = len(data) - int.from_bytes(data[-INT32_SIZE:], "big")
            self._held += [(data[:at], due - count, due - 1), (data[at:], due - 1, due)]
        else:
            self._held.append((data, due - count, due))

    def _require_same(self) -> None:
        if not self._incarnation.is_still(self._directory):
            raise JournalNotFoundError(f"{self._source} was removed or re-created while it was read; read it again")

    def make_room(self, size: int) -> None:
        """Get memory for the next message of ``size`` bytes, which is larger than a piece."""
        if size > self._most_bytes:
            raise self._too_large(self._cursor.due, size)
        if self._size + size <= self._limit:
            return
        if self._size:
            raise _FullError
        self._lease.grow(size)
        self._limit = size  # not again for the message of a block that was read with this

    def _too_large(self, offset: int, size: int) -> TooLargeError:
        return TooLargeError(
            f"{self._source}: message {offset} has {size} bytes, and this hub sends at most {self._most_bytes}; its"
            " operator can raise Server(max_message_bytes=)"
        )


class _FullError(Exception):
    """The next message does not fit with those that were read: it waits for the next answer."""


class Get:
    """The messages of a Get or a Follow, as many as its limits allow."""

    def __init__(self, reader: Reader, max_messages: int, max_bytes: int) -> None:
        """Set the limits.

        Args:
            reader: reads the messages.
            max_messages: the most in one answer.
            max_bytes: the most bytes in one answer, as in the journal; the first message is always sent.
        """
        self._reader = reader
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._data = b""
        self._position = 0
        self._due = 0

    def answer(self, limit: int) -> bytes:
        """Return one GetResponse of at most ``limit`` bytes, or with one larger message; empty at the end.

        Raises:
            CorruptionError: the hub's copy is damaged.
            TooLargeError: the message is larger than the hub sends.
        """
        out: list[bytes] = []
        left, size, wire = self._max_messages, 0, 0
        while left:
            if self._position == len(self._data) and not self._more(limit - wire, bool(out)):
                break
            messages, _ = decode_many(self._data, self._position, len(self._data), self._due, left)
            large = len(self._data) > PIECE_BYTES  # then it is one message
            taken: list[Message] = []
            for message in messages:
                more = len(message.key) + len(message.value)
                size, wire = size + OVERHEAD_SIZE + more, wire + _WIRE_OVERHEAD + more
                if (taken or out) and (size > self._max_bytes or wire > limit):
                    break
                taken.append(message)
                self._position += OVERHEAD_SIZE + more
            self._due += len(taken)
            left -= len(taken)
            if large and taken:
                self._data, self._position = b"", 0  # released before the answer is built: saves a copy
                out.append(large_get_response(taken[0]))
            elif taken:
                out.append(get_response(taken))
            if len(taken) < len(messages):
                break
        return b"".join(out)

    def _more(self, limit: int, has_messages: bool) -> bool:
        """Read the next piece; return whether there is one for this answer."""
        try:
            data = self._reader.piece(limit, has_messages=has_messages)
        except (_FullError, SejError):
            if not has_messages:
                raise
            return False  # the next answer raises it again
        self._data, self._position = data, 0
        self._due = self._reader.first
        return bool(data)
