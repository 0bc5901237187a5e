"""The writer's side of the codec in pure Python: the reference that the compiled :class:`Buffer` must equal.

Messages are encoded into memory that the writer drains to its file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, RLock
from typing import NoReturn

from sej.codec.format import HEAD, INT32, MAX_OFFSET, NO_TIMESTAMP, OVERHEAD_SIZE
from sej.codec.reference import Run, _as_bytes, _check
from sej.errors import InvalidMessageError, LockedError
from sej.message import BytesLike

__all__ = ["Buffer"]


class Buffer:
    """Encoded messages on their way to the file. Safe to use from many threads.

    The writer gives it ``drain``, which is called with the lock held whenever enough has come together. It takes
    :meth:`pending`, writes it, calls :meth:`drained`, sets the limits for what comes next, and :meth:`clear` s the
    buffer when it has no more use for the bytes.

    Attributes:
        offset: the number that the next message gets.
        limit: undrained bytes at which one append drains.
        batch_limit: undrained bytes at which a batch drains on its way.
        position: where the file ends that was written to.
        interrupted: what drain is to know: the last write, or another change of the file, did not come to its end.
        steady_until: below this position the buffer writes by itself, see :meth:`steady`.
        first_timestamp: of the messages since the last clear; ns.
        last_timestamp: as above.
        newest_timestamp: as above.
    """

    __slots__ = (
        "_busy",
        "_data",
        "_drain",
        "_drained",
        "_lock",
        "_look_at",
        "_refuse",
        "_trouble",
        "_write",
        "_writing",
        "batch_limit",
        "first_timestamp",
        "interrupted",
        "last_timestamp",
        "limit",
        "newest_timestamp",
        "offset",
        "position",
        "steady_until",
    )

    def __init__(self, offset: int, drain: Callable[[], None], lock: Lock | RLock) -> None:
        """Start empty.

        Args:
            offset: of the first message.
            drain: writes what is pending; called with the lock held.
            lock: the writer's. Where it lets its own thread in again, a signal's handler that comes in the middle of
                anything is refused.
        """
        self.offset = offset
        self.limit = self.batch_limit = 1
        self._drain = drain
        self._lock = lock
        self._refuse: Callable[[], NoReturn] | None = None
        self._write: Callable[[bytes], int] | None = None
        self._trouble: Callable[[BaseException | None, int], None] | None = None
        self.position = self.steady_until = self._look_at = 0
        self._writing = self.interrupted = False
        """The former is still set after a write that did not end well."""
        self._busy = False
        self._data = bytearray()
        self._drained = 0
        self.clear()

    def append(self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None) -> int:
        """Encode one message; drain if that is due. Returns its offset."""
        payload = _as_bytes(value, "value")
        label = _as_bytes(key, "key")
        _check(label, payload, type, 0 if timestamp is None else timestamp)
        self._require_open()  # without the lock: in a forked child nobody may be there to let it go
        inside = self._is_inside()
        with self._lock:
            self._require_open()
            if self._busy and inside:  # else an exception left it so
                raise _nested()
            if self._writing:
                self._settle()
            if self.offset >= MAX_OFFSET:
                raise _full()
            self._busy = True
            try:
                offset = self._put(payload, label, type, time.time_ns() if timestamp is None else timestamp)
                if len(self._data) - self._drained >= self.limit:
                    self._run_drain()
            finally:
                self._busy = False
            return offset

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Encode many messages; nothing if one of them is invalid. Returns their offsets."""
        payloads = [_as_bytes(value, "value") for value in values]
        count = len(payloads)
        labels = [b""] * count if keys is None else [_as_bytes(key, "key") for key in keys]
        types = [type] * count if isinstance(type, int) else list(type)
        if timestamp is None:
            timestamp = time.time_ns()
        timestamps = [timestamp] * count if isinstance(timestamp, int) else list(timestamp)
        for name, size in (("keys", len(labels)), ("type", len(types)), ("timestamp", len(timestamps))):
            if size != count:
                raise ValueError(f"{name} has {size} entries for {count} values")
        for index in range(count):
            _check(labels[index], payloads[index], types[index], timestamps[index])
        self._require_open()
        inside = self._is_inside()
        with self._lock:
            self._require_open()
            if self._busy and inside:
                raise _nested()
            if self._writing:
                self._settle()
            first = self.offset
            if first > MAX_OFFSET - count:
                raise _full()
            self._busy = True
            try:
                for index in range(count):
                    self._put(payloads[index], labels[index], types[index], timestamps[index])
                    if len(self._data) - self._drained >= self.batch_limit:
                        self._run_drain()
                if len(self._data) - self._drained >= self.limit:
                    self._run_drain()
            finally:
                self._busy = False
            return range(first, first + count)

    def extend(self, data: BytesLike, run: Run, start: int) -> None:
        """Take encoded messages as they stand: data[start:run.position], which :func:`measure` found good.

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

    def freeze(self) -> None:
        """Let no append in until :meth:`thaw`; with the lock held by the caller, who keeps it until then."""
        self._busy = True

    def thaw(self) -> None:
        """Let appends in again."""
        self._busy = False

    def pending(self) -> memoryview:
        """What was encoded and not drained; valid until the next call."""
        return memoryview(self._data)[self._drained :]

    def block(self) -> memoryview:
        """Everything since the last clear; valid until the next call."""
        return memoryview(self._data)

    def drained(self) -> None:
        """Take note that what was pending is written."""
        end = len(self._data)
        self.position += end - self._drained
        self._drained = end

    def steady(
        self,
        write: Callable[[bytes], int] | None,
        trouble: Callable[[BaseException | None, int], None] | None,
        until: int,
        look_in_ns: int,
    ) -> None:
        """Write by itself up to a position of the file and for a time; then drain is called again.

        Args:
            write: takes pending bytes and says how many of them it wrote; None where until is 0.
            trouble: told of what write raised, before the append raises it; or, with None, how little it wrote: then it
                writes the rest, and is told of what it raised itself.
            until: a position of the file; 0: always drain.
            look_in_ns: how long.
        """
        self._write, self._trouble = write, trouble
        self.steady_until = until
        self._look_at = time.monotonic_ns() + look_in_ns if until else 0

    @property
    def in_doubt(self) -> bool:
        """Whether something is being written, or an exception came out of the middle of that."""
        return self._writing

    def doubt(self) -> None:
        """Ask drain before anything more is taken: an exception came out of the middle of a change of the file."""
        self._writing = True

    def mended(self) -> None:
        """Take note that the writer knows what the file holds."""
        self._writing = self.interrupted = False

    def clear(self) -> None:
        """Forget what is in it."""
        self._data = bytearray()
        self._drained = 0
        self.first_timestamp = self.last_timestamp = self.newest_timestamp = NO_TIMESTAMP

    def flush(self) -> None:
        """Drain what is pending, if anything; with the lock held by the caller."""
        if len(self._data) > self._drained:
            self._run_drain()

    def _run_drain(self) -> None:
        """Write what is pending, or let the writer do it where it has more to do than that."""
        end = len(self._data)
        size = end - self._drained
        self.interrupted = self._writing
        if self._writing or self.position + size >= self.steady_until or time.monotonic_ns() >= self._look_at:
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
        """From now on every append calls refuse, which raises."""
        self._refuse = refuse

    def _require_open(self) -> None:
        if self._refuse is not None:
            self._refuse()

    def _settle(self) -> None:
        """With the lock held: let the writer find out what the file holds, before another message gets an offset."""
        self._busy = self.interrupted = True
        try:
            self._drain()
        finally:
            self._busy = False

    def _is_inside(self) -> bool:
        """Whether this thread has the lock already."""
        return hasattr(self._lock, "_is_owned") and self._lock._is_owned()  # as in sej.system.group_commit.is_mine

    def __len__(self) -> int:
        """Bytes since the last clear."""
        return len(self._data)

    def _put(self, value: bytes, key: bytes, type: int, timestamp: int) -> int:
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
        # No call from here on: interrupts come with calls, and find the message taken and counted, or neither.
        if not data:
            self.first_timestamp = self.newest_timestamp = timestamp
        elif timestamp > self.newest_timestamp:
            self.newest_timestamp = timestamp
        self.last_timestamp = timestamp
        data += message
        self.offset = offset + 1
        return offset


def _nested() -> LockedError:
    """For a signal's handler that appends in the middle of a call of its own thread."""
    return LockedError("this thread is in the middle of an append: in a signal's handler nothing can be appended then")


def _full() -> InvalidMessageError:
    """For what would get an offset that no journal reaches: the one behind it must be a number, too."""
    return InvalidMessageError(f"a journal ends with offset {MAX_OFFSET - 1}: go on in another one")
