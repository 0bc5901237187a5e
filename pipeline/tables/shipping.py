"""``sej ship``: messages into Parquet files, a Delta table or an Iceberg table, each message once.

The target keeps the offsets together with the rows, in one atomic step:

=========  =====================================  ==========================================
target     rows                                   offsets
=========  =====================================  ==========================================
Parquet    ``part-<number>.parquet``, renamed     of all journals, in the file's metadata
           into place when it is complete
Delta      one commit                             the application transactions of the commit
Iceberg    one commit                             of all journals, a property of the table
=========  =====================================  ==========================================

With ``join``, rows are added to the newest Parquet file while it is small: a file that begins with all its bytes is
renamed over it. In a Delta table, a commit that changes no rows replaces small files after each write. So a reader sees
each row once, even if it has read the end of a Parquet file before the rename, and its rows after it.

So the target says where to continue, whenever the process was killed. Only afterwards are the offsets committed in the
journals, for retention. If the target has none of a journal, its kept offset counts. The journal is synced before its
messages are shipped: after a power failure no offset of the target belongs to other messages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Final, Self
from zlib import crc32

import pyarrow as pa

from pipeline.needs import needed
from pipeline.options import OptionError
from pipeline.paths import local_target, outside
from pipeline.reading.extents import Follower
from pipeline.reading.planning import Followers
from pipeline.reading.remote import RemoteExtent
from pipeline.tables.output import extend_parquet, replaced, write_parquet
from pipeline.tables.stream import follow
from pipeline.tables.table import PathLike
from sej.errors import CorruptionError, LockedError, SejError
from sej.journal.directory import Directory
from sej.journal.tail import sync_up_to
from sej.reading.offset import read_offset
from sej.system.disk import OS, absolute_path
from sej.system.locks import Lock

_PART: Final = re.compile(r"part-(\d{12})\.parquet")
_LEFT: Final = re.compile(r"\.part-\d{12}\.parquet\.[0-9a-f]{32}\.tmp")
_KEY: Final = b"sej.offsets"
_ICEBERG: Final = "sej.messages"
_JOINED_RUNS: Final = 64
"""The most writes of a file. Each leaves the end that the file had before, some kilobytes, for readers that know it."""

_Offsets = dict[str, int]
"""The next offset of each journal, by its name and identity as :func:`_key` joins them."""


def ship(path: PathLike, target: Target, *, reader: str | None, **how: Any) -> int:
    """Ship what a stream returns, until it ends; return the number of rows.

    Args:
        path: what :func:`pipeline.follow` reads.
        target: where the rows go.
        reader: the name of the stream's reader; None: it has none.
        how: further arguments of :func:`pipeline.follow`.
    """
    rows = 0
    known: dict[str, Followers] = {}

    def offset_of(follower: Followers) -> int | None:
        known[follower.origin.name] = follower
        found = target.offset_of(_key(follower))
        if reader is None or isinstance(follower, RemoteExtent):
            return found
        if found is None and follower.id and read_offset(follower.origin.path, reader) is not None:
            # A journal of the original gets its identity later, from the first writer of SEJ. A journal that was
            # re-created has no offset of this reader.
            return target.offset_of(follower.origin.name)
        if found is not None and not follower.id and read_offset(follower.origin.path, reader) is None:
            raise SejError(
                f"the target has messages of journal {follower.origin.name!r}, which has no identity, but reader"
                f" {reader!r} has read none of them; if they were shipped from this journal, pass the --reader of that"
                " time; otherwise ship to another target",
                path=follower.origin.path,
            )
        return found

    with target, follow(path, reader=reader, known=offset_of, **how) as stream:
        for batch, offsets in stream:
            keyed = {_key(known[name]): offset for name, offset in offsets.items()}
            if reader is not None:  # so that a journal without an identity is recognised, whenever this is killed
                stream.begin({name for name in offsets if not known[name].id})
            for name, offset in offsets.items():
                if isinstance(known[name], Follower) and target.offset_of(_key(known[name])) != offset:
                    sync_up_to(Directory(known[name].origin.path, OS), offset)
            target.write(batch, keyed)
            rows += batch.num_rows
            if reader is not None:
                stream.commit(offsets)
        if not rows and target.is_new():  # its columns exist before the first message
            target.write(pa.RecordBatch.from_pylist([], stream.schema), {})
    return rows


def _key(follower: Followers) -> str:
    """Return the name of a journal and its identity: a journal that was re-created is another one."""
    return f"{follower.origin.name}@{follower.id}" if follower.id else follower.origin.name


def default_reader(address: str) -> str:
    """Return the name of the reader that ships to a target: each target has its own.

    Example:
        >>> default_reader("parquet:/archive")
        'ship-156ae586'
    """
    kind, _, place = address.partition(":")
    where = place if "://" in place else os.path.abspath(place)
    return f"ship-{crc32(f'{kind}:{where}'.encode()):08x}"


class _InDirectory:
    """Shared by targets in a directory: its lock, and the offsets of all journals."""

    def __init__(self, directory: str) -> None:
        self._directory = absolute_path(local_target(directory))
        self._offsets: _Offsets = {}
        self._open = ExitStack()

    def offset_of(self, key: str) -> int | None:
        """Return the next offset of a journal, or None if nothing here has messages of it."""
        return self._offsets.get(key)

    @contextmanager
    def _opening(self) -> Iterator[ExitStack]:
        """Create the directory, take its lock, and keep both, with what the block adds, unless it raises."""
        with ExitStack() as stack:
            OS.mkdir(self._directory, parents=True)
            lock = os.path.join(self._directory, ".sej-ship.lck")
            stack.enter_context(Lock(lock, what=f"shipping to {self._directory}").acquire())
            yield stack
            self._open = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        """Release what is open, and the lock."""
        self._open.close()


class ParquetTarget(_InDirectory):
    """A directory of numbered Parquet files. The newest one has the offsets of all journals in its metadata."""

    def __init__(self, directory: str, *, compression: str = "zstd", join_bytes: int = 0) -> None:
        """Set the directory; nothing is created.

        Args:
            directory: where the files are.
            compression: of new files, ``zstd``, ``snappy``, ``gzip`` or ``none``.
            join_bytes: add rows to the newest file while it is smaller than this.

        Raises:
            OptionError: it is not on a local disk, or it is among the files of a journal.
        """
        super().__init__(directory)
        self._compression = compression
        self._join_bytes = join_bytes
        self._next = 0

    def is_new(self) -> bool:
        """Return whether nothing was written yet."""
        return not self._next

    def write(self, batch: pa.RecordBatch, offsets: _Offsets) -> None:
        """Add one file, or replace the newest one by one that has these rows too."""
        after = self._offsets | offsets
        metadata = {_KEY.decode(): json.dumps(after, sort_keys=True)}
        newest = self._path(self._next - 1)
        joined = self._may_grow(newest, batch.schema)
        with replaced(newest if joined else self._path(self._next)) as temporary:
            if joined:
                extend_parquet(newest, batch, temporary, metadata, compression=self._compression)
            else:
                reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
                write_parquet(reader, temporary, metadata, compression=self._compression)
        self._next += not joined
        self._offsets = after

    def _may_grow(self, path: str, schema: pa.Schema) -> bool:
        """Return whether rows of these columns should be added to the newest file."""
        import pyarrow.parquet as pq

        if not self._next or os.path.getsize(path) >= self._join_bytes:
            return False
        with pq.ParquetFile(path) as newest:
            return bool(newest.schema_arrow.equals(schema)) and newest.num_row_groups < _JOINED_RUNS

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"part-{number:012d}.parquet")

    def __enter__(self) -> Self:
        """Take the directory's lock, find where to continue, and remove what a killed process left.

        Raises:
            LockedError: another process ships to this directory.
            CorruptionError: the newest file is not one of these.
        """
        with self._opening():
            numbers = []
            for name in os.listdir(self._directory):
                if _LEFT.fullmatch(name):
                    os.unlink(os.path.join(self._directory, name))
                elif match := _PART.fullmatch(name):
                    numbers.append(int(match[1]))
            self._next = max(numbers, default=-1) + 1
            self._offsets = self._read(self._next - 1) if numbers else {}
        return self

    def _read(self, number: int) -> _Offsets:
        import pyarrow.parquet as pq

        path = self._path(number)
        try:
            return _parsed(pq.read_metadata(path).metadata[_KEY])
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"this file does not tell which messages it has ({error}); ship to another directory, or restore it",
                path=path,
            ) from error


def _parsed(text: str | bytes) -> _Offsets:
    """Return the offsets in a JSON object."""
    return {str(key): int(offset) for key, offset in json.loads(text).items()}


@contextmanager
def _as_ours(kind: str, path: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise a library's errors as ours."""
    try:
        yield
    except errors as error:
        first = str(error).strip().partition("\n")[0]
        raise SejError(f"the {kind} table cannot be read or written: {first}", path=path) from error


class DeltaTarget:
    """A Delta table. Each commit has one application transaction for each journal: its key, and the next offset.

    The table has no lock. A commit is based on the version of the table whose offsets are known here: if another
    process has added the same messages since, the two transactions conflict, and the commit is refused.
    """

    def __init__(self, address: str, *, compression: str = "zstd", join_bytes: int = 0) -> None:
        """Set the address, a directory or a URI; nothing is created. Arguments as for :class:`ParquetTarget`.

        Raises:
            OptionError: it is among the files of a journal.
        """
        self._address = outside(address)
        self._compression: Any = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
        self._join_bytes = join_bytes
        self._versions: dict[str, int | None] = {}
        self._table: Any = None

    def is_new(self) -> bool:
        """Return whether the table does not exist yet."""
        return self._table is None

    def offset_of(self, key: str) -> int | None:
        """Return the next offset of a journal, or None if no commit has messages of it."""
        if key not in self._versions:
            self._versions[key] = self._version(key)
        return self._versions[key]

    def write(self, batch: pa.RecordBatch, offsets: _Offsets) -> None:
        """Add one commit.

        Raises:
            LockedError: another process ships the same messages to this table.
            SejError: the table cannot be written.
        """
        from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake

        properties = WriterProperties(compression=self._compression)

        changed = {key: offset for key, offset in offsets.items() if self.offset_of(key) != offset}
        transactions = [Transaction(f"sej:{key}", offset) for key, offset in changed.items()]
        while True:
            table = self._table
            # An own commit that followed those of another process has brought their offsets into the known version.
            self._require({key: self._versions[key] for key in changed})
            try:
                with self._errors():
                    write_deltalake(
                        self._address if table is None else table,
                        pa.Table.from_batches([batch]),
                        mode="error" if table is None else "append",
                        commit_properties=CommitProperties(app_transactions=transactions),
                        writer_properties=properties,
                    )
            except SejError:
                self._open()
                self._require({key: self._versions[key] for key in changed})
                if table is None and self._table is not None:
                    continue  # another process has created it, for other journals
                raise
            if table is None:
                self._open()
                self._require(changed)
            break
        if "://" not in self._address:
            os.sync()  # delta-rs syncs no file, and retention may remove the messages now
        self._versions |= changed
        if self._join_bytes:
            self._join(properties)

    def _join(self, properties: Any) -> None:
        """Replace small files, unless another process does it now: the next write joins them then."""
        from deltalake.exceptions import CommitFailedError

        with self._errors(), suppress(CommitFailedError):
            self._table.optimize.compact(target_size=self._join_bytes, writer_properties=properties)

    def __enter__(self) -> Self:
        """Find where to continue.

        Raises:
            SejError: the table cannot be read.
        """
        self._versions.clear()
        with needed("deltalake"):
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a Delta table has no lock."""

    def _open(self) -> None:
        from deltalake import DeltaTable

        with self._errors():
            self._table = DeltaTable(self._address) if DeltaTable.is_deltatable(self._address) else None

    def _version(self, key: str) -> int | None:
        found: int | None = None if self._table is None else self._table.transaction_version(f"sej:{key}")
        return found

    def _require(self, versions: Mapping[str, int | None]) -> None:
        """Check that the table has these offsets: no other process has added messages."""
        moved = sorted(key for key, version in versions.items() if self._version(key) != version)
        if moved:
            raise LockedError(
                f"messages of {moved[0].partition('@')[0]} were added to this table in the meantime, each once; end"
                " other commands that ship them, and run this one again",
                path=self._address,
            )

    def _errors(self) -> AbstractContextManager[None]:
        from deltalake.exceptions import DeltaError

        return _as_ours("Delta", self._address, DeltaError)


class IcebergTarget(_InDirectory):
    """The Iceberg table ``sej.messages`` of a SQLite catalogue in a directory, ``catalog.db``; its data is next to it.

    The offsets change in the commit that adds the rows. PyIceberg repeats a commit that another one has overtaken, so
    the directory has a lock against a second process that ships the same messages.
    """

    def __init__(self, directory: str, *, compression: str = "zstd", join_bytes: int = 0) -> None:
        """Set the directory; nothing is created.

        Args:
            directory: where catalogue and table are.
            compression: of the files, as for :class:`ParquetTarget`.
            join_bytes: must be 0.

        Raises:
            OptionError: join_bytes is set; or the directory is not on a local disk, or among the files of a journal.
        """
        if join_bytes:
            raise OptionError("--join is for parquet: and delta:; PyIceberg does not join the files of a table")
        super().__init__(directory)
        self._codec = {"none": "uncompressed"}.get(compression, compression)
        self._catalog: Any = None
        self._table: Any = None

    def is_new(self) -> bool:
        """Return whether the table does not exist yet."""
        return self._table is None

    def write(self, batch: pa.RecordBatch, offsets: _Offsets) -> None:
        """Add one commit.

        Raises:
            SejError: the table cannot be written.
        """
        rows, after = pa.Table.from_batches([batch]), self._offsets | offsets
        with self._errors():
            if self._table is None:
                codec = {"write.parquet.compression-codec": self._codec}
                self._table = self._catalog.create_table(_ICEBERG, rows.schema, properties=codec)
            with self._table.transaction() as commit:
                commit.append(rows)
                commit.set_properties({_KEY.decode(): json.dumps(after, sort_keys=True)})
        os.sync()  # PyIceberg syncs no file, and retention may remove the messages now
        self._offsets = after

    def __enter__(self) -> Self:
        """Take the directory's lock and find where to continue.

        Raises:
            LockedError: another process ships to this directory.
            SejError: the table cannot be read.
        """
        with needed("iceberg"):
            from pyiceberg.catalog.sql import SqlCatalog

        with self._opening() as opened, self._errors():
            where = f"sqlite:///{self._directory}/catalog.db"
            self._catalog = SqlCatalog("sej", uri=where, warehouse=f"file://{self._directory}")
            opened.callback(self._catalog.close)
            self._catalog.create_namespace_if_not_exists(_ICEBERG.partition(".")[0])
            self._table = self._catalog.load_table(_ICEBERG) if self._catalog.table_exists(_ICEBERG) else None
            self._offsets = _parsed("{}" if self._table is None else self._table.properties.get(_KEY.decode(), "{}"))
        return self

    def _errors(self) -> AbstractContextManager[None]:
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError

        return _as_ours("Iceberg", self._directory, CommitFailedException, SQLAlchemyError, ValueError, OSError)


Target = ParquetTarget | DeltaTarget | IcebergTarget
"""What rows are shipped to: a context manager that knows offsets, and writes rows with those after them in one step."""


_TARGETS: Final[dict[str, Callable[..., Target]]] = {
    "parquet": ParquetTarget,
    "delta": DeltaTarget,
    "iceberg": IcebergTarget,
}


def target_of(address: str, **how: Any) -> Target:
    """Return the target of ``parquet:DIRECTORY``, ``delta:DIRECTORY`` or ``iceberg:DIRECTORY``.

    Args:
        address: kind and directory.
        how: further arguments of the target.

    Raises:
        OptionError: the address is something else.
    """
    kind, _, place = address.partition(":")
    if kind not in _TARGETS or not place:
        kinds = " or ".join(f"{kind}:DIRECTORY" for kind in _TARGETS)
        raise OptionError(f"the target must be {kinds}, got {address!r}")
    return _TARGETS[kind](place, **how)
