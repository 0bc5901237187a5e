"""The writer's part of the codec in pure Python: the reference for the compiled :class:`Buffer`.

Messages are encoded into memory that the writer drains to its file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, RLock
from typing import NoReturn

from sej.codec.arguments import as_bytes, as_expected, check_message, conflict, full, nested
from sej.codec.format import HEAD, INT32, MAX_OFFSET, NO_TIMESTAMP, OVERHEAD_SIZE
from sej.codec.reference import Run
from sej.fork import notice_fork
from sej.message import BytesLike


class Buffer:
    """Encoded messages that are not in the file yet. Any number of threads may use it.

    The writer passes a function ``drain``, which is called with the lock held when enough bytes have accumulated. It
    takes :meth:`pending`, writes it, calls :meth:`drained`, sets the next limits, and calls :meth:`clear` when it no
    longer needs the bytes.

    Attributes:
        offset: the offset of the next message.
        path: the journal, for errors; None: not known.
        limit: undrained bytes at which one append drains.
        batch_limit: undrained bytes at which a batch drains in between.
        position: the end of the written file.
        interrupted: tells drain that the last write, or another change of the file, did not finish.
        direct_until: below this position the buffer writes without drain, see :meth:`set_direct_write`.
        forgotten: called if the :class:`Handle` is gone; None: nothing is left to do.
        first_timestamp: of the messages since the last clear; ns.
        last_timestamp: as above.
        newest_timestamp: as above.
    """

    def __init__(self, offset: int, drain: Callable[[], None], lock: Lock | RLock) -> None:
        """Create an empty buffer.

        Args:
            offset: the offset of the first message.
            drain: writes the pending bytes; called with the lock held.
            lock: the writer's lock. If it is reentrant, a call from a signal handler during another call is refused.
        """
        self.offset = offset
        self.path: str | None = None
        self.limit = self.batch_limit = 1
        self.forgotten: Callable[[], object] | None = None
        self._drain = drain
        self._lock = lock
        self._refuse: Callable[[], NoReturn] | None = None
        self._write: Callable[[bytes], int] | None = None
        self._trouble: Callable[[BaseException | None, int], None] | None = None
        self.position = self.direct_until = self._look_at = 0
        self._writing = self.interrupted = False
        """The former is still set after a write that failed."""
        self._busy = False
        self._data = bytearray()
        self._drained = 0
        self.clear()

    def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Encode one message, and drain if the limit is reached. Return its offset."""
        expected = as_expected(expect_offset)
        payload = as_bytes(value, "value")
        label = as_bytes(key, "key")
        check_message(label, payload, type, 0 if timestamp is None else timestamp)
        return self._append([(payload, label, type, timestamp)], expected, is_batch=False).start

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
        *,
        expect_offset: int | None = None,
    ) -> range:
        """Encode many messages; none if one of them is invalid. Return their offsets."""
        expected = as_expected(expect_offset)
        payloads = [as_bytes(value, "value") for value in values]
        count = len(payloads)
        labels = [b""] * count if keys is None else [as_bytes(key, "key") for key in keys]
        types = [type] * count if isinstance(type, int) else list(type)
        if timestamp is None:
            timestamp = time.time_ns()
        check_message(b"", b"", type if isinstance(type, int) else 0, timestamp if isinstance(timestamp, int) else 0)
        timestamps = [timestamp] * count if isinstance(timestamp, int) else list(timestamp)
        for name, size in (("keys", len(labels)), ("type", len(types)), ("timestamp", len(timestamps))):
            if size != count:
                raise ValueError(f"{name} must have {count} entries, one for each value, got {size}")
        rows = list(zip(payloads, labels, types, timestamps, strict=True))
        for payload, label, kind, time_ns in rows:
            check_message(label, payload, kind, time_ns)
        return self._append(rows, expected, is_batch=True)

    def _append(self, rows: Sequence[tuple[bytes, bytes, int, int | None]], expected: int, *, is_batch: bool) -> range:
        """Encode rows of values, keys, types and timestamps, which are checked; drain where a limit is reached."""
        self._require_open()  # without the lock: in a forked child its holder may not exist
        inside = self._is_inside()
        with self._lock:
            self._begin(len(rows), expected, inside)
            first = self.offset
            try:
                for value, key, type, timestamp in rows:
                    self._put(value, key, type, time.time_ns() if timestamp is None else timestamp)
                    if is_batch and len(self._data) - self._drained >= self.batch_limit:
                        self._run_drain()
                if len(self._data) - self._drained >= self.limit:
                    self._run_drain()
            finally:
                self._busy = False
            return range(first, first + len(rows))

    def extend(self, data: BytesLike, run: Run, start: int) -> None:
        """Append encoded messages: data[start:run.position], which :func:`measure` found good.

        For a caller that holds the lock and has frozen the buffer. Drains at ``batch_limit``.
        """
        with memoryview(data) as view:
            taken = bytes(view[start : run.position])
        if not self._data:
            self.first_timestamp = self.newest_timestamp = run.first_timestamp
        if run.newest_timestamp > self.newest_timestamp:
            self.newest_timestamp = run.newest_timestamp
        self.last_timestamp = run.last_timestamp
        self._data += taken
        self.offset += run.messages
        if len(self._data) - self._drained >= self.batch_limit:
            self._run_drain()

    def refuse_appends(self) -> None:
        """Refuse appends until :meth:`allow_appends`; the caller holds the lock until then."""
        self._busy = True

    def allow_appends(self) -> None:
        """Allow appends again."""
        self._busy = False

    def pending(self) -> memoryview:
        """Return the bytes that were encoded and not drained; valid until the next call."""
        return memoryview(self._data)[self._drained :]

    def block(self) -> memoryview:
        """Return everything since the last clear; valid until the next call."""
        return memoryview(self._data)

    def drained(self) -> None:
        """Note that the pending bytes were written."""
        end = len(self._data)
        self.position += end - self._drained
        self._drained = end

    def set_direct_write(
        self,
        write: Callable[[bytes], int] | None,
        trouble: Callable[[BaseException | None, int], None] | None,
        until: int,
        look_in_ns: int,
    ) -> None:
        """Write without drain up to a position of the file and for a time; then drain is called again.

        Args:
            write: writes pending bytes and returns how many; None if until is 0.
            trouble: called with an exception of write before the append raises it. After a short write it is called
                with None and the size: then it writes the rest itself, and is called with its own exception.
            until: a position of the file; 0: always drain.
            look_in_ns: how long.
        """
        self._write, self._trouble = write, trouble
        self.direct_until = until
        self._look_at = time.monotonic_ns() + look_in_ns if until else 0

    @property
    def in_doubt(self) -> bool:
        """True while bytes are being written, or after an exception interrupted that."""
        return self._writing

    def doubt(self) -> None:
        """Call drain before anything more is encoded: an exception interrupted a change of the file."""
        self._writing = True

    def resolved(self) -> None:
        """Note that the writer knows what the file holds."""
        self._writing = self.interrupted = False

    def clear(self) -> None:
        """Drop its bytes."""
        self._data = bytearray()
        self._drained = 0
        self.first_timestamp = self.last_timestamp = self.newest_timestamp = NO_TIMESTAMP

    def flush(self) -> None:
        """Drain pending bytes, if any; the caller holds the lock."""
        if len(self._data) > self._drained:
            self._run_drain()

    def _run_drain(self) -> None:
        """Write the pending bytes, or call drain if the writer has more to do."""
        end = len(self._data)
        size = end - self._drained
        self.interrupted = self._writing
        if self._writing or self.position + size >= self.direct_until or time.monotonic_ns() >= self._look_at:
            self._writing = True
            self._drain()
            self._writing = False
            return
        assert self._write is not None
        assert self._trouble is not None
        data = bytes(self._data[self._drained :])
        self._writing = True
        try:
            taken = self._write(data)
            if taken < size:
                self._trouble(None, taken)
        except BaseException as error:
            self._trouble(error, 0)
            raise
        self._drained = end
        self.position += size
        self._writing = False

    def stop(self, refuse: Callable[[], NoReturn]) -> None:
        """Let every later append call ``refuse``, which raises, and release ``drain``."""
        self._refuse = self._drain = refuse

    def handle(self) -> Handle:
        """Return the handle, for the user of the buffer. One is enough."""
        return Handle(self)

    def _require_open(self) -> None:
        notice_fork()
        if self._refuse is not None:
            self._refuse()

    def _begin(self, count: int, expected: int, inside: bool) -> None:
        """With the lock held, begin to append so many messages.

        They are refused if the journal cannot hold them, or they would not begin at the expected offset. If this thread
        held the lock already, it may be in an append.
        """
        self._require_open()
        if self._busy and inside:  # else an exception left it set
            raise nested()
        if self._writing:
            self._settle()
        if self.offset > MAX_OFFSET - count:
            raise full()
        if expected >= 0 and expected != self.offset:
            raise conflict(self.path, expected, self.offset)
        self._busy = True

    def _settle(self) -> None:
        """With the lock held, let the writer find out what the file holds, before another message gets an offset."""
        self._busy = self.interrupted = True
        try:
            self._drain()
        finally:
            self._busy = False

    def _is_inside(self) -> bool:
        """Return whether this thread already holds the lock."""
        return hasattr(self._lock, "_is_owned") and self._lock._is_owned()  # as in sej.system.group_commit.is_mine

    def __len__(self) -> int:
        """The bytes since the last clear."""
        return len(self._data)

    def _put(self, value: bytes, key: bytes, type: int, timestamp: int) -> None:
        offset = self.offset
        data = self._data
        message = b"".join(
            (
                HEAD.pack(offset, timestamp, type, len(key)),
                key,
                INT32.pack(len(value)),
                value,
                INT32.pack(OVERHEAD_SIZE + len(key) + len(value)),
            )
        )
        # No call from here on: interrupts occur in calls, and find the message encoded and counted, or neither.
        if not data:
            self.first_timestamp = self.newest_timestamp = timestamp
        elif timestamp > self.newest_timestamp:
            self.newest_timestamp = timestamp
        self.last_timestamp = timestamp
        data += message
        self.offset = offset + 1


class Handle:
    """What the user of a buffer holds. When the last reference to it is gone, it calls the buffer's ``forgotten``.

    A buffer and its owner refer to each other, so only the garbage collector would free them. Neither of them refers to
    the handle.
    """

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Buffer) -> None:
        """Hold a buffer."""
        self._buffer = buffer

    def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one message, as :meth:`Buffer.append` does. This method alone keeps the handle alive, too."""
        return self._buffer.append(value, key, type, timestamp, expect_offset=expect_offset)

    def __del__(self) -> None:
        """Tell the owner of the buffer."""
        if self._buffer.forgotten is not None:
            self._buffer.forgotten()
