"""The sharded writer: one writer for each shard, opened at its first use.

Built on :class:`sej.Writer` for everything inside a shard, including its lock, and on :mod:`shard.routing` for the
shard of a message.

Messages of one key are in one shard, in the order of the calls. An error in one shard loses nothing in the others, and
names the shard; a shard whose write or sync failed stays failed until the writer is reopened. At most ``max_open``
shards hold files and locks: the least recently used one is synced and closed, and then another process may write to it.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sej.checks import refuse_pickling, refuse_unknown, require, require_messages
from sej.codec import encode
from sej.codec.format import MAX_TIMESTAMP, MAX_TYPE, NO_TIMESTAMP
from sej.errors import ClosedError, InvalidMessageError, LockedError, SejError, WriterFailedError
from sej.message import Message
from sej.system.disk import OS, spare_files
from sej.system.lifecycle import Lifecycle
from sej.writing.writer import Writer as ShardWriter
from sej.writing.writer import check_options
from shard.names import TREE, Path
from shard.records import choose_hash, prepare, record_shard, refuse_second, remember_hash
from shard.routing import Appender, BytesLike, Function, Hash, Route, check_route, group, index_of, routed

_T = TypeVar("_T")

_THREADS: Final = 8
_FILES_A_SHARD: Final = 4
_NOT_GIVEN: Final = -1
_OPTIONS: Final = {
    name: option
    for name, option in inspect.signature(ShardWriter).parameters.items()
    if option.kind is inspect.Parameter.KEYWORD_ONLY
}


class ShardsFailedError(SejError):
    """An operation failed in some shards; the others completed their part.

    Attributes:
        errors: the errors, by the shard's index.
        appended: the offsets that the other shards assigned, by index; empty if nothing was to be appended.
    """

    errors: Mapping[int, BaseException]
    appended: Mapping[int, range]


class ShardsLockedError(ShardsFailedError, LockedError):
    """Other processes hold all the shards that failed."""


class ShardsBrokenError(ShardsFailedError, WriterFailedError):
    """A write or sync failed in all the shards that failed: reopen the writer."""


class Writer:
    """Appends to a sharded journal. Threads may share it.

    After :meth:`close`, and in a forked child, every call raises :class:`~sej.ClosedError`.

    Attributes:
        path: the sharded journal.

    Example:
        >>> import tempfile, shard
        >>> with Writer(shard.Path(tempfile.mkdtemp(), "orders", 3)) as w:
        ...     w.append(b"3 apples", b"alice")
        ...     w.append_many([b"1 pear", b"2 figs"], [b"bob", b"alice"])
        (3, 0)
        {3: range(1, 3)}
    """

    __reduce__ = refuse_pickling

    def __init__(self, path: Path, route: Route | None = None, max_open: int = 256, **writer_options: Any) -> None:
        """Create the root if it is missing; shards are opened at their first append.

        Args:
            path: the sharded journal.
            route: ``"xxh64"``, ``"fnv"`` (the hash of the original's example), or any function of a message that
                returns an int, whose low bits are the shard; None: the hash that the sharded journal remembers, or else
                ``"xxh64"``. A function gets the message with offset -1, and with the caller's timestamp, or
                NO_TIMESTAMP.
            max_open: the most shards that hold files and locks at one time; fewer if the process cannot open four
                files for each.
            writer_options: for every shard's :class:`sej.Writer`; under ``"interval"`` each open shard has a thread.

        Raises:
            NotAJournalError: the root is a file.
            RouteError: existing keys were routed by another hash, or with another number of bits.
            TypeError: path is not a shard.Path, or a writer option has another name.
            ValueError: durability or sync_interval_s is out of its range.
        """
        TREE("path", path)
        path = path.absolute()
        check_route("route", route)
        require(max_open=max_open)
        import concurrent.futures.thread  # noqa: F401  `sej --help` needs no threads; at the end it is too late

        refuse_unknown("a writer", writer_options, _OPTIONS)
        check_options(**writer_options)
        self.path = path
        self._options = writer_options
        self._route = route if callable(route) else None
        disk = writer_options.get("disk", OS)
        refuse_second(path, disk)
        self._hash: Hash = "xxh64" if callable(route) else choose_hash(path, route, disk)
        self._remembered = callable(route)
        self._max_open = max(min(max_open, spare_files() // _FILES_A_SHARD), 1)
        self._crowded = path.count > self._max_open
        self._disk = disk
        self._open: OrderedDict[int, ShardWriter] = OrderedDict()
        self._closed: dict[int, int] = {}
        """The offset of the next message in each shard that was closed to make room."""
        self._direct: Appender | None = None
        self._life = Lifecycle("the writer", path.root, self)
        self._unclosed: dict[int, BaseException] = {}
        prepare(path, disk)
        if self._route is None and not self._crowded:  # else an append changes which shards are open
            inside = self._life.mutex._is_owned  # type: ignore[attr-defined]  # as is_mine asks, in C
            self._direct = Appender(path.bits, self._hash, self.append, inside)
            if not TYPE_CHECKING:
                self.append = self._direct.append  # of an open shard without Python code in between

    # --- appending

    def append(
        self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None
    ) -> tuple[int, int]:
        """Append one message.

        Args:
            value: the payload.
            key: up to 127 bytes; without a route function it decides the shard. No key is the empty key.
            type: 0 to 255.
            timestamp: ns since the epoch, or NO_TIMESTAMP; None: now.

        Returns:
            The shard's index, and the offset there.

        Raises:
            LockedError: another process writes to this shard.
            SejError: as :meth:`sej.Writer.append`; the path names the shard.
        """
        if self._route is None:
            index = index_of(key, self.path.bits, self._hash)
            if not self._remembered:
                self._remember()
        else:
            stamp = NO_TIMESTAMP if timestamp is None else timestamp
            message = Message(_NOT_GIVEN, stamp, type, bytes(key), bytes(value))
            index = routed(self._route, [message], self.path.bits)[0]
        if self._is_new(index):
            encode(0, NO_TIMESTAMP if timestamp is None else timestamp, type, key, value)
        return index, self._in_shard(index, lambda writer: writer.append(value, key, type, timestamp))

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> dict[int, range]:
        """Append many messages; none if one of them is invalid. Each shard gets its part in one batch.

        Args:
            values: the payloads.
            keys: one for each value, or None: no keys.
            type: one, or one for each value.
            timestamp: one, or one for each value; None: now.

        Returns:
            For each shard concerned, the offsets of its part; in a part the messages keep their order.

        Raises:
            ShardsFailedError: some shards failed (``errors``), the others have their part (``appended``).
            InvalidMessageError: a field is out of its range; nothing was appended.
        """
        self._require()
        payloads, stamp = list(values), time.time_ns() if timestamp is None else timestamp
        count = len(payloads)
        labels: list[Any] = [b""] * count if keys is None else list(keys)
        kinds = _column("type", type, count, 0, MAX_TYPE)
        stamps = _column("timestamp", stamp, count, NO_TIMESTAMP, MAX_TIMESTAMP)
        indexes = None
        if self._route is not None:
            indexes = self._routed(self._route, payloads, labels, kinds, NO_TIMESTAMP if timestamp is None else stamps)
        columns = isinstance(kinds, list) or isinstance(stamps, list)
        groups = group(payloads, labels, self.path.bits, indexes, columns, self._hash)
        if not self._remembered and groups:
            self._remember()
        appended: dict[int, range] = {}

        def put(index: int) -> None:
            part, names, places = groups[index]
            kind = [kinds[place] for place in places] if isinstance(kinds, list) else kinds
            at = [stamps[place] for place in places] if isinstance(stamps, list) else stamps
            appended[index] = self._in_shard(index, lambda writer: writer.append_many(part, names, kind, at))

        # Open shards first: none is opened twice for one batch. Under "disk" each waits for its own disk.
        order = sorted(groups, key=self._is_new)
        errors = each(order, put, threads=_THREADS if self._options.get("durability") == "disk" else 1)
        if errors:
            raise shards_failed("appending", self.path.root, errors, appended)
        return appended

    def append_messages(self, messages: Iterable[Message]) -> dict[int, range]:
        """Append messages of another journal: type, key and timestamp stay, offsets are new."""
        found = require_messages(messages)
        return self.append_many(
            [message.value for message in found],
            [message.key for message in found],
            [message.type for message in found],
            [message.timestamp for message in found],
        )

    def append_to(self, index: int, messages: Sequence[Message]) -> range:
        """Append messages to a shard of the caller's choice: for copying trees, whose messages were routed before.

        Returns:
            Their offsets.

        Raises:
            SejError: as :meth:`append`.
        """
        if self._is_new(index):
            for message in messages:
                encode(0, message.timestamp, message.type, message.key, message.value)
        return self._in_shard(index, lambda writer: writer.append_messages(messages))

    def _remember(self) -> None:
        """Before the first append, store the hash: another program must not route by another one."""
        with self._life.mutex:
            remember_hash(self.path, self._hash, self._disk)
            self._remembered = True
            for index, writer in self._open.items():
                self._append_directly(index, writer)

    def _routed(self, route: Function, values: list[Any], keys: list[Any], types: Any, stamps: Any) -> list[int]:
        """Return the shards that the route function returns for a batch."""
        group(values, keys, 0, None)  # refuses invalid messages before the function gets them
        count = len(values)
        rows = zip(
            [stamps] * count if isinstance(stamps, int) else stamps,
            [types] * count if isinstance(types, int) else types,
            keys,
            values,
            strict=True,
        )
        return routed(route, [Message(_NOT_GIVEN, *row) for row in rows], self.path.bits)

    # --- durability

    def flush(self) -> None:
        """Pass everything in every shard to the kernel, several shards concurrently.

        Raises:
            ShardsFailedError: some shards failed; the others were flushed.
        """
        self._raise("flushing", self._each_open(ShardWriter.flush))

    def sync(self) -> None:
        """Sync everything in every shard to the disk, several shards concurrently.

        Raises:
            ShardsFailedError: some shards failed; the others are durable.
        """
        self._raise("syncing", self._each_open(ShardWriter.sync))

    @property
    def offsets(self) -> dict[int, int]:
        """Return the offset of the next message, for the shards that this writer has used."""
        self._life.require_outside()
        if self._life.forked:
            self._life.refuse()
        with self._life.mutex:
            used = self._closed | {index: writer.offset for index, writer in self._open.items()}
        return dict(sorted(used.items()))

    @property
    def open_count(self) -> int:
        """The number of shards that hold files and locks now."""
        return len(self._open)

    @property
    def closed(self) -> bool:
        """True if :meth:`close` was called."""
        return self._life.closed

    def close(self) -> None:
        """Write and sync the rest in every shard, and release all locks; a second call does nothing.

        Raises:
            ShardsFailedError: some shards failed; the others are durable, and all locks are released.
            LockedError: a signal handler calls this during a call of this writer; nothing was closed.
        """
        for writer in self._open.values():
            writer.end.life.require_outside()
        self._life.close()
        failed, self._unclosed = self._unclosed, {}
        self._raise("closing", failed)

    def _finish(self) -> None:
        with self._life.mutex:  # no shard is opened from here on
            self._life.shut()
            if self._direct is not None:
                self._direct.forget()

    def _release(self) -> None:
        self._unclosed |= each(self._open, lambda index: self._open[index].close())

    def _close_copies(self) -> None:
        if self._direct is not None:
            self._direct.forget()

    def _reworded(self, cause: BaseException) -> SejError:
        return WriterFailedError(str(cause))

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer."""
        self._life.exit(kind)

    def __repr__(self) -> str:
        """Show path and state."""
        state = "closed" if self._life.closed else f"{len(self._open)} open"
        return f"<shard.Writer {self.path.name!r} in {self.path.root!r} {state}>"

    # --- which shards are open

    def _is_new(self, index: int) -> bool:
        """Return whether the first message creates this shard: a refused one must not."""
        return index not in self._open and index not in self._closed

    def _in_shard(self, index: int, do: Callable[[ShardWriter], _T]) -> _T:
        """Do something with a shard's writer. If shards have to take turns, none is closed in the meantime."""
        self._life.require_outside()
        with self._life.mutex:
            self._life.require()
            writer = self._open.get(index)
            if writer is None:
                writer = self._open_shard(index)
                if self._remembered:
                    self._append_directly(index, writer)
            if self._crowded:
                self._open.move_to_end(index)
                return do(writer)
        return do(writer)

    def _append_directly(self, index: int, writer: ShardWriter) -> None:
        """Append messages of this shard without Python code from now on. The hash has to be stored before."""
        if self._direct is not None and writer.durability != "disk":
            self._direct.open(index, writer.end.buffer)

    def _open_shard(self, index: int) -> ShardWriter:
        """Open a shard; close the least recently used ones first."""
        for other in list(self._open):
            if len(self._open) < self._max_open:
                break
            self._close_shard(other)
        record_shard(self.path, index, self._disk)
        writer = self._open[index] = ShardWriter(self.path.dir(index), **self._options)
        self._closed.pop(index, None)
        return writer

    def _close_shard(self, index: int) -> None:
        """Sync and close a shard. One that failed stays: it must not look sound again."""
        writer = self._open[index]
        try:
            writer.sync()
            writer.close()
        except Exception:
            self._open.move_to_end(index)  # its next append raises the error
            return
        del self._open[index]
        self._closed[index] = writer.offset

    def _raise(self, what: str, errors: Mapping[int, BaseException]) -> None:
        if errors:
            raise shards_failed(what, self.path.root, errors)

    def _each_open(self, do: Callable[[ShardWriter], None]) -> dict[int, BaseException]:
        """Do something to every open shard; one that is closed meanwhile, to make room, is synced."""
        self._require()
        with self._life.mutex:
            there = dict(self._open)
        for writer in there.values():
            writer.end.life.require_outside()

        def one(index: int) -> None:
            try:
                do(there[index])
            except ClosedError:
                if self._open.get(index) is there[index]:
                    raise

        return each(there, one)

    def _require(self) -> None:
        self._life.require_outside()
        self._life.require()


def each(indexes: Iterable[int], do: Callable[[int], object], *, threads: int = _THREADS) -> dict[int, BaseException]:
    """Do something to many shards, several concurrently; return what went wrong, by shard."""
    errors: dict[int, BaseException] = {}
    left = dict.fromkeys(indexes)

    def one(index: int) -> None:
        left.pop(index)
        try:
            do(index)
        except Exception as error:
            errors[index] = error

    if threads > 1 and len(left) > 1:
        # At the interpreter's end, or at the user's limit, no thread can be started.
        from concurrent.futures import ThreadPoolExecutor

        with suppress(RuntimeError), ThreadPoolExecutor(min(threads, len(left)), "sej-shard") as pool:
            list(pool.map(one, list(left)))
    for index in list(left):
        one(index)
    return errors


def _column(name: str, given: int | Iterable[int], count: int, low: int, high: int) -> int | list[int]:
    """Return the types or timestamps of a batch: one number, or a list of as many as there are messages."""
    column = [given] if isinstance(given, int) else list(given)
    if not isinstance(given, int) and len(column) != count:
        raise ValueError(f"{name} must have {count} entries, one for each value, got {len(column)}")
    if not {type(number) for number in column} <= {int} or (column and not low <= min(column) <= max(column) <= high):
        for place, number in enumerate(column):
            if not isinstance(number, int):
                raise TypeError(f"{name} {place} must be an int, not {type(number).__name__}; nothing was appended")
            if not low <= number <= high:
                raise InvalidMessageError(f"{name} must be {low} to {high}, got {number}; nothing was appended")
    return column[0] if isinstance(given, int) else column


def shards_failed(
    what: str, path: str, errors: Mapping[int, BaseException], appended: Mapping[int, range] | None = None
) -> ShardsFailedError:
    """Return the error for failures in some shards, of the most specific class that fits all of them."""
    kind: type[ShardsFailedError] = ShardsFailedError
    if all(isinstance(error, LockedError) for error in errors.values()):
        kind = ShardsLockedError
    elif all(isinstance(error, WriterFailedError) for error in errors.values()):
        kind = ShardsBrokenError
    numbers = ", ".join(f"{index:03x}" for index in sorted(errors))
    first = errors[min(errors)]
    rest = f" (and {len(errors) - 1} more: see .errors)" if len(errors) > 1 else ""
    error = kind.__new__(kind)
    SejError.__init__(
        error, f"{what} failed in shard {numbers}; the other shards completed their part. {first}{rest}", path=path
    )
    error.errors = dict(errors)
    error.appended = dict(appended or {})
    if isinstance(error, LockedError):
        error.holder = first.holder if isinstance(first, LockedError) else None
    return error
