"""``pipeline.follow``: new messages as Arrow batches, with the offsets to commit.

A stream polls the journals, and waits for a change in one of their directories between two polls. It gathers rows until
a batch is large enough, or old enough. The offsets of a batch are those after its last row in each directory: once
they are committed, a reader of that name continues there, and retention may remove what is before.

A crash between the use of a batch and its commit delivers the batch again, perhaps divided in another way. A sink that
keeps the offsets together with the rows uses each row once: see :mod:`pipeline.tables.shipping`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import pyarrow as pa

from pipeline.columns import arrow_schema, check_names
from pipeline.connection import RETRY_S
from pipeline.options import Fields, OptionError
from pipeline.reading.discovery import OLDEST, Slice, Way
from pipeline.reading.extents import Root
from pipeline.reading.planning import Followers
from pipeline.reading.progress import start_in
from pipeline.reading.remote import RemoteProgress, RemoteRoot
from pipeline.reading.task import read
from pipeline.tables.table import PathLike, Place, kind_of, paths_of, refuse_deleted, way_of, with_values
from pipeline.tables.where import Selection, Where, bounds_of, conditions_of, expression_of
from sej.checks import TEXT, Seconds, between, optional, refuse_pickling, require, seconds
from sej.errors import ClosedError, JournalNotFoundError, SejError
from sej.message import FIRST
from sej.reading.offset import Offset, read_offset
from sej.system.watch import Watch, wait_any

if TYPE_CHECKING:
    from hub.readers import Kept
    from hub.wire import ClientTLS

_MOST_BYTES: Final = 1 << 30
"""A batch has less than 2 GiB, the most that a column of bytes can hold; a larger message is alone in its batch."""
_HUB_LOOK_S: Final = 0.1
_LOOK_S: Final = 1.0


Known = Callable[[Followers], int | None]
"""The type of the argument ``known``."""


class Arrived(NamedTuple):
    """Some messages.

    Attributes:
        batch: the rows; never none.
        offsets: by directory, the offset after its last row in this batch and in those before.
    """

    batch: pa.RecordBatch
    offsets: dict[str, int]


class Settings(NamedTuple):
    """How a stream gathers rows.

    Attributes:
        batch_rows: rows that fill a batch.
        batch_bytes: bytes that fill a batch.
        batch_age_s: seconds after which a batch is returned although it is not full.
        timeout: seconds without a message after which the stream ends; None: never.
    """

    batch_rows: int
    batch_bytes: int
    batch_age_s: float
    timeout: float | None


class _Batch:
    """The rows that were gathered, and when the first of them was."""

    def __init__(self) -> None:
        self.parts: list[pa.RecordBatch] = []
        self.rows = self.size = 0
        self.since = 0.0

    def add(self, rows: pa.RecordBatch) -> None:
        self.since = self.since if self.parts else time.monotonic()
        self.parts.append(rows)
        self.rows += rows.num_rows
        self.size += rows.nbytes

    def take(self) -> pa.RecordBatch:
        parts, self.parts, self.rows, self.size = self.parts, [], 0, 0
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class Stream:
    """Iterates over :class:`Arrived`; a context manager.

    Use it from one thread; :meth:`stop` may be called from any. It holds the lock of its reader in each journal. It
    ends with :class:`~sej.JournalNotFoundError` if a journal is removed.
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        paths: Sequence[str],
        way: Way,
        names: Iterable[str],
        columns: Mapping[str, str],
        selection: Selection,
        reader: str | None,
        settings: Settings,
        known: Known,
    ) -> None:
        """Use :func:`follow`."""
        self.schema = arrow_schema(names, columns)
        """The columns, as an Arrow schema."""
        self._way = way
        self._selection = selection
        self._reader = reader
        self._settings = settings
        self._known = known
        self._root: Root | RemoteRoot = (Root if way.remote is None else RemoteRoot)(paths, way)
        self._next: dict[str, dict[str, Any]] = {}
        """The journal, and the offset after the last row that was gathered."""
        self._kept: dict[str, Offset] = {}
        self._began: dict[str, int] = {}
        self._far = None if reader is None or way.remote is None else RemoteProgress(way.remote, reader)
        self._there: dict[str, Kept] = {}
        self._watches: dict[str, Watch] = {}
        self._stopped = threading.Event()
        self._closed = False
        self._failure: str | None = None
        self._chosen, _ = Selection(where=selection.where).chosen()
        self._start, _ = Selection(bounds=selection.bounds).chosen()
        needed = dict.fromkeys([*self.schema.names, "offset", *(condition.column for condition in selection.where)])
        self._inner = arrow_schema(needed, columns)
        self._test = expression_of(selection.where, self._inner)
        self._last: dict[str, int] = {}
        self._rows = self._gather()

    def __iter__(self) -> Self:
        """Return the stream."""
        return self

    def __next__(self) -> Arrived:
        """Return the next batch.

        Raises:
            CorruptionError: bytes are wrong and not a torn tail.
            OffsetTooSmallError: messages were deleted before they were read.
            OffsetBeyondEndError: a journal lost messages, or was re-created.
            JournalNotFoundError: a journal was removed.
            LockedError: another process has this reader name.
            LeaseLostError: another program has taken this reader on the hub.
            ClosedError: the stream is closed, or an exception has ended it.
        """
        if self._closed:
            raise ClosedError("the stream is closed; open another one")
        if self._failure is not None:  # a generator that raised would end like one that is complete
            raise ClosedError(f"an exception has ended the stream ({self._failure}); open another one")
        try:
            return next(self._rows)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise

    def commit(self, offsets: Mapping[str, int] | None = None) -> None:
        """Commit the offsets of a batch, durably; None: of the last one.

        Raises:
            OptionError: the stream has no reader's name.
            ClosedError: the stream is closed.
        """
        if self._reader is None:
            raise OptionError("a commit needs a name to keep the offsets under: pass reader to pipeline.follow")
        if self._closed:
            raise ClosedError("the stream is closed; open another one")
        found = self._last if offsets is None else offsets
        if self._far is not None:
            self._far.keep({name: offset for name, offset in found.items() if name in self._next})
        for name, offset in found.items():
            if name in self._kept:
                self._kept[name].commit(offset)

    def begin(self, names: Iterable[str]) -> None:
        """Commit where the reading of these journals began, if the reader has no offset there yet."""
        for name in names:
            kept = self._kept.get(name)
            if kept is not None and name in self._began:
                kept.commit(self._began.pop(name))

    def stop(self) -> None:
        """End the iteration: rows that were gathered are returned, and a wait ends. May be called from any thread."""
        self._stopped.set()
        for watch in list(self._watches.values()):
            watch.wake()

    def close(self) -> None:
        """Release the reader's locks."""
        self._closed = True
        self._rows.close()
        for kept in self._kept.values():
            kept.close()
        if self._far is not None:
            self._far.close()
        for watch in self._watches.values():
            watch.close()
        self._kept.clear()
        self._watches.clear()
        self._root.close()

    def __enter__(self) -> Self:
        """Return the stream."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- gathering

    def _gather(self) -> Generator[Arrived, None, None]:
        """Yield batches: full ones as soon as they are, others after their age, at the end, or before an error."""
        settings, batch = self._settings, _Batch()
        quiet = time.monotonic()
        while True:
            found = False
            try:
                for name, offset, rows in self._round():
                    found = True
                    if batch.parts and rows is not None and batch.size + rows.nbytes > _MOST_BYTES:
                        yield self._arrived(batch)
                    self._next[name]["offset"] = offset
                    if rows is not None and rows.num_rows:
                        batch.add(rows)
                    if batch.rows >= settings.batch_rows or batch.size >= settings.batch_bytes:
                        yield self._arrived(batch)
                now = time.monotonic()
                quiet = now if found else quiet
                ended = not found and settings.timeout is not None and now - quiet >= settings.timeout
                over = (ended and self._is_complete()) or self._stopped.is_set()
            except (SejError, OSError):
                if batch.parts:
                    yield self._arrived(batch)
                raise
            if batch.parts and (over or now - batch.since >= settings.batch_age_s):
                yield self._arrived(batch)
            if over:
                return
            if not found:
                limits = [_LOOK_S] if settings.timeout is None else [_LOOK_S, quiet + settings.timeout - now]
                self._wait(
                    max(min([*limits, batch.since + settings.batch_age_s - now] if batch.parts else limits), 0.0)
                )

    def _arrived(self, batch: _Batch) -> Arrived:
        self._last = {name: known["offset"] for name, known in self._next.items()}
        return Arrived(batch.take(), dict(self._last))

    def _round(self) -> Iterator[tuple[str, int, pa.RecordBatch | None]]:
        """Yield the new messages of all journals as directory, next offset and rows; None without rows."""
        followers: Mapping[str, Followers] = self._root.look()
        clients = self._way.clients
        taken = {
            name: follower
            for name, follower in sorted(followers.items())
            if self._chosen.takes(follower.origin) and (clients is None or follower.origin.client in clients)
        }
        if gone := self._next.keys() - taken.keys():
            raise JournalNotFoundError(
                f"journal {min(gone)!r} was removed since the stream read it, perhaps with messages that were not read;"
                " start the stream again to continue without it"
            )
        if self._far is not None:
            self._there = self._far.take(dict.fromkeys(name for name in taken if name not in self._next))
        for name, follower in taken.items():
            if not self._begun(name, follower):
                continue
            if self._next[name]["offset"] > follower.end:  # another process has read what came after the poll
                follower = self._root.again(name)
            start = start_in(follower, self._next, fail=True, way_out="open it again")
            self._next[name]["id"] = follower.id
            stop = follower.end
            if start == stop:
                continue
            size = follower.size_of(start, stop)
            part = Slice(follower.origin, start, stop, size, follower.place(start), follower.id)
            for batch in read([part], self._inner, self._way, self._chosen):
                offset = batch.column("offset")[-1].as_py() + 1
                kept = batch if self._test is None else batch.filter(self._test)
                yield name, offset, kept.select(self.schema.names)
                if self._stopped.is_set():
                    return
            yield name, stop, None  # after gaps, and messages that were left out

    def _is_complete(self) -> bool:
        """Poll again, which judges the bytes after the last whole message; return whether nothing is left to read.

        Raises:
            CorruptionError: good messages follow them.
        """
        if isinstance(self._root, RemoteRoot):
            return True
        there = self._root.look()
        return all(there[name].end <= known["offset"] for name, known in self._next.items() if name in there)

    def _begun(self, name: str, follower: Followers) -> bool:
        """Find out where a journal is read from; return whether it reaches to there."""
        if name in self._next:
            return True
        first, start = self._start, follower.first
        known = self._known(follower)
        if self._far is not None:
            there = self._there[name]
            known = there.offset if known is None and there.kept else known
        elif self._reader is not None:
            kept = self._kept.get(name)
            if kept is None:
                kept = self._kept[name] = Offset(follower.origin.path, self._reader, default=FIRST)
            if read_offset(follower.origin.path, self._reader) is not None:
                known = kept.value if known is None else known
        if known is None:
            refuse_deleted(follower, self._selection.start)
            start = max(start, first.low)
            if first.since > OLDEST:
                start = max(start, follower.extent(judge=True).find_time(first.since))
            if start > follower.end:
                return False  # wait until the journal has this offset
        self._began[name] = start if known is None else known
        self._next[name] = {"id": follower.id, "offset": self._began[name]}
        return True

    def _wait(self, limit_s: float) -> None:
        """Wait for a change, at most for this long."""
        if isinstance(self._root, RemoteRoot):
            self._stopped.wait(min(limit_s, _HUB_LOOK_S))
            return
        for name, follower in self._root.followers.items():
            if name not in self._watches:
                self._watches[name] = Watch(f"{follower.origin.path}/jnl")
                limit_s = 0.0  # something may have been appended before the watch began
        if not limit_s or self._stopped.is_set():
            return
        if self._watches:
            wait_any(list(self._watches.values()), min(limit_s, _LOOK_S))
        else:
            self._stopped.wait(min(limit_s, _HUB_LOOK_S))


def follow(
    paths: PathLike | Sequence[PathLike] | None,
    *,
    reader: str | None = None,
    columns: Iterable[str] | None = None,
    start: Place | None = None,
    where: Where | None = None,
    clients: str | Iterable[str] | None = None,
    pattern: str | None = None,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    verify: bool = True,
    on_corruption: Literal["raise", "skip"] = "raise",
    batch_rows: int = 1 << 16,
    batch_bytes: int = 16 << 20,
    batch_age_s: Seconds = 1.0,
    timeout: Seconds | None = None,
    known: Known | None = None,
    schema: str | None = None,
    format: Literal["json", "avro", "msgpack", "protobuf"] = "json",
    definition: str | None = None,
    mode: Literal["permissive", "failfast", "drop"] = "permissive",
) -> Stream:
    """Return a stream of Arrow batches: existing messages, then new ones as they arrive, also of new directories.

    Args:
        paths: journals as for :func:`table`.
        reader: the name under which :meth:`Stream.commit` keeps the offsets, in ``ofs/`` of each journal. The stream
            continues there, and retention waits for it.
        columns: as for :func:`table`.
        start: where a reader without kept offsets starts: an offset, or the first message from a time on, written as
            for :func:`table`; None: the first message.
        where: as for :func:`table`.
        clients: as for :func:`table`.
        pattern: as for :func:`table`.
        hub: as for :func:`table`, but without a timeout the stream waits 10 minutes for a hub that does not answer. The
            hub then keeps the reader's offsets: one program at a time has the name, and the token needs the role
            ``reader``.
        token: as for :func:`table`.
        tls: as for :func:`table`.
        verify: as for :func:`table`.
        on_corruption: as for :func:`table`.
        batch_rows: a batch ends when it has this many rows,
        batch_bytes: or this many bytes,
        batch_age_s: or when this many seconds have passed since its first row was read.
        timeout: seconds without a message after which the stream ends; 0.0: after the existing messages; None: never.
        known: for a sink that keeps offsets itself: called with each journal (``.origin.name``, ``.id``) when it is
            first read, it returns the offset to start at, or None.
        schema: as for :func:`table`.
        format: as for :func:`table`.
        definition: as for :func:`table`.
        mode: as for :func:`table`.

    Raises:
        JournalNotFoundError: a path does not exist.
        NotAJournalError: a path is something else.
        OptionError: an argument cannot be used for these paths, or a column does not exist.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> with follow(path, reader="copy", columns=["value"], timeout=0.0) as stream:
        ...     for batch, offsets in stream:
        ...         print(batch.num_rows)  # or append it to a table elsewhere
        ...         stream.commit(offsets)
        3
        >>> sej.read_offset(path, "copy")
        3
    """
    batch_age_s, timeout = seconds("batch_age_s", batch_age_s), seconds("timeout", timeout)
    require(columns=columns, batch_rows=batch_rows, batch_age_s=batch_age_s, timeout=timeout, known=known)
    require(reader=(reader, optional(TEXT)), batch_bytes=(batch_bytes, between(1, _MOST_BYTES)))
    way = way_of(clients, pattern, hub, token, tls, verify, on_corruption)
    if way.remote is not None and timeout is None:
        way = way._replace(remote=way.remote._replace(retry_s=RETRY_S))
    given = paths_of(paths, way.remote)
    for path in given if way.remote is None else []:
        if (kind := kind_of(path)) != "sej":
            raise OptionError(f"{path} is {kind}; only journals can be followed, use pipeline.table")
    way, known_columns = with_values(way, given, Fields(schema, format, definition, mode))
    names = list(known_columns) if columns is None else check_names(columns, known_columns)
    selection = Selection(bounds_of(start, None), conditions_of(where, known_columns))
    settings = Settings(batch_rows, batch_bytes, batch_age_s, timeout)
    return Stream(given, way, names, known_columns, selection, reader, settings, known or (lambda _: None))
