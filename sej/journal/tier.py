"""The cold tier: messages that ``sej archive`` has moved out of ``jnl/``, and that readers find there.

``tier.json`` (:mod:`sej.system.sealed`) has the address of a directory or of an object store, and its objects::

    {"address": "s3://bucket/orders/0f1e…", "objects": [[first_offset, next_offset, size, crc32c, newest_timestamp], …]}

An object is a segment: encoded messages with consecutive offsets. If it is compressed with gzip, its row has its own
size as a sixth number; size and CRC32C are those of the segment. Objects are listed by offset, do not overlap, and are
never changed once they are listed. One is listed after its bytes were written, read back and compared. Only then
the reader ``cold-tier`` is past its messages, and retention waits for that reader. So each message is in ``jnl/``, in
the tier, or in both; a reader that lists ``jnl/`` first and the tier afterwards finds it, and ``jnl/`` takes
precedence.

A reader compares the size and the CRC32C of an object with this list before it reads a message of it. An object that
is in a store or compressed is copied to a file for that. The original does not know the tier.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sej.codec.format import MAX_OFFSET
from sej.errors import CorruptionError, SejError
from sej.journal.directory import Directory, Segment
from sej.system.checksum import crc32c
from sej.system.disk import Disk, File, open_existing, pieces
from sej.system.sealed import SealedFile, whole

READER: Final = "cold-tier"
"""The name of the reader that moves messages."""
_READ_BYTES: Final = 1 << 20
_COPIES: Final = 4
"""Copies of objects that a process keeps, about a segment each; open files survive their removal."""
_LIST_BYTES: Final = 1 << 28
_GZIP: Final = 31  # zlib's number for the largest window, with gzip's header and trailer
_WAY_OUT: Final = "put it back from a copy of the tier; `sej archive verify` checks all objects"


class Listed(NamedTuple):
    """What the list says about an object: its messages, its bytes, and the newest time of a message, ns.

    ``size`` and ``crc32c`` are those of the segment. ``packed_size`` is that of its gzip; 0: it is not compressed.
    """

    first_offset: int
    next_offset: int
    size: int
    crc32c: int
    newest_timestamp: int
    packed_size: int = 0

    @property
    def name(self) -> str:
        """The object's name, that of a segment."""
        return f"{self.first_offset:016x}.jnl{'.gz' if self.packed_size else ''}"

    @property
    def stored_size(self) -> int:
        """The object's size."""
        return self.packed_size or self.size


class Archived(Segment):
    """A segment in the tier. Its path is the file that :func:`fetched` checks: the object, or a copy of it."""

    listed: Listed
    tier: Tier

    @property
    def address(self) -> str:
        """The object's address."""
        return f"{self.tier.address}/{self.listed.name}"


def fetched(segment: Segment) -> str:
    """Return the path of a segment's file; one of the tier is checked, and copied if need be.

    Raises:
        CorruptionError: the object is missing, or not the one that is listed.
        SejError: the store cannot be reached.
    """
    if isinstance(segment, Archived):
        segment.tier.fetch(segment)
    return segment.path


def readable(directory: Directory, due: int = 0) -> list[Segment]:
    """Return the segments that a reader finds: those in ``jnl/``, after those of the tier if ``due`` is before them.

    Raises:
        CorruptionError: the list of the tier is damaged.
    """
    there = directory.segments()  # first: a segment is in the tier before it leaves jnl/
    first = there[0].first_offset if there else MAX_OFFSET
    tier = Tier.of(directory) if due < first else None
    if tier is None:
        return there
    return [*(segment for segment in tier.segments() if segment.first_offset < first), *there]


class Tier:
    """The tier of a journal.

    Attributes:
        address: a directory, or the URL of one in an object store.
        objects: what it has.
    """

    def __init__(self, directory: Directory, address: str, objects: list[Listed]) -> None:
        """Use :meth:`of`; for a new one, :meth:`add` stores the list."""
        self.address, self.objects = address, objects
        self._directory = directory
        self._store = _Objects(address) if "://" in address else _Folder(address, directory.disk)

    @classmethod
    def of(cls, directory: Directory) -> Tier | None:
        """Return the tier of a journal; None if it has none.

        Raises:
            CorruptionError: the list is damaged.
        """
        file = _list_file(directory)
        row = file.load()
        if row is None:
            return None
        with file.checking():
            objects = [Listed(*(whole(each, -(2**63)) for each in listed)) for listed in row["objects"]]
            if any(before.next_offset > after.first_offset for before, after in pairwise(objects)):
                raise ValueError("objects are not in order")
            return cls(directory, str(row["address"]), objects)

    def segments(self) -> list[Archived]:
        """Return the objects as segments."""
        found = []
        for listed in self.objects:
            segment = Archived(listed.first_offset, self._path(listed))
            segment.listed, segment.tier = listed, self
            found.append(segment)
        return found

    @property
    def size(self) -> int:
        """The size of all objects."""
        return sum(listed.stored_size for listed in self.objects)

    def absent(self) -> list[str]:
        """Return the addresses of objects that are missing or have another size, without reading one.

        Raises:
            SejError: the store cannot be reached.
        """
        sizes = self._store.sizes()
        return [f"{self.address}/{one.name}" for one in self.objects if sizes.get(one.name) != one.stored_size]

    def put(self, first_offset: int, chunks: Iterable[bytes], *, compress: bool = False) -> int:
        """Write an object, durably; return its size if it is compressed, else 0. It is not listed."""
        name = f"{first_offset:016x}.jnl"
        if not compress:
            self._store.put(name, chunks)
            return 0
        return self._store.put(f"{name}.gz", _packed(chunks))

    def add(self, listed: Listed) -> None:
        """Read an object back and compare it, then list it, durably.

        Raises:
            CorruptionError: the object is not what was written.
        """
        tier = Tier(self._directory, self.address, [*self.objects, listed])
        fetched(tier.segments()[-1])
        self._directory.disk.mkdir(self._directory.at("tmp"))
        rows = [each if each.packed_size else each[:-1] for each in tier.objects]
        _list_file(self._directory).store({"address": self.address, "objects": rows})
        self.objects = tier.objects

    def fetch(self, segment: Archived) -> None:
        """Copy an object if it is in a store or compressed, and check the file, unless this process has done so.

        Raises:
            CorruptionError: the object is missing, or not the one that is listed.
            SejError: the store cannot be reached.
        """
        disk, listed = self._directory.disk, segment.listed
        there = disk.status(segment.path)
        if there is not None and _checked.get((disk, segment.path)) == (there, listed):
            return
        if self._is_copied(listed):
            self._copy(segment)
        if (file := open_existing(disk, segment.path, "read")) is None:
            raise _wrong(segment, "is missing")
        with file:
            size, found = file.size(), 0
            for data in pieces(file, 0, size):
                found = crc32c(data, found)
            if size != listed.size:
                raise _wrong(segment, f"has {size} bytes, expected {listed.size}")
            if found != listed.crc32c:
                raise _wrong(segment, f"has CRC32C {found:08x}, expected {listed.crc32c:08x}")
            _checked[disk, segment.path] = (file.status(), listed)

    def _is_copied(self, listed: Listed) -> bool:
        return "://" in self.address or listed.packed_size > 0

    def _path(self, listed: Listed) -> str:
        """Return the path of an object, or of this process's copy."""
        if not self._is_copied(listed):
            return os.path.join(self.address, listed.name)
        return os.path.join(_copies(os.getpid()).name, f"{zlib.crc32(self.address.encode()):08x}-{listed.name}")

    def _copy(self, segment: Archived) -> None:
        path, listed, disk = segment.path, segment.listed, self._directory.disk
        if (chunks := self._store.get(listed.name)) is None:
            raise _wrong(segment, "is missing")
        disk.mkdir(os.path.dirname(path), parents=True)
        try:
            with disk.open(f"{path}.tmp", "temp") as copy:
                for chunk in _unpacked(chunks, listed.size) if listed.packed_size else chunks:
                    copy.write(chunk)
        except zlib.error as error:
            raise _wrong(segment, f"is not the gzip of a segment: {error}") from error
        disk.rename(f"{path}.tmp", path)
        _kept[path] = None
        _kept.move_to_end(path)
        while len(_kept) > _COPIES:
            disk.unlink(_kept.popitem(last=False)[0])


def _packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress chunks with gzip."""
    pack = zlib.compressobj(wbits=_GZIP)
    yield from map(pack.compress, chunks)
    yield pack.flush()


def _unpacked(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Decompress chunks; stop after more than ``size`` bytes, which the caller notices."""
    unpack = zlib.decompressobj(wbits=_GZIP)
    for chunk in chunks:
        rest = chunk
        while rest:
            data = unpack.decompress(rest, _READ_BYTES)
            yield data
            rest, size = unpack.unconsumed_tail, size - len(data)
            if size < 0:
                return
    yield unpack.flush()  # what the last limit held back


_checked: dict[tuple[Disk, str], Any] = {}


def _wrong(segment: Archived, what: str) -> CorruptionError:
    first, stop = segment.listed[:2]
    return CorruptionError(
        f"this object with messages {first} to {stop - 1} {what}; {_WAY_OUT}", path=segment.address, offset=first
    )


def _list_file(directory: Directory) -> SealedFile:
    way_out = "restore it from a backup of the journal, with which it must be kept"
    return directory.sealed("the list of a cold tier", way_out, "tier.json", max_bytes=_LIST_BYTES)


class _Folder:
    """Objects as files, on any mounted file system."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path, self._disk = path, disk

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write an object, durably; return its size."""
        self._disk.mkdir(self._path, parents=True)
        temporary = os.path.join(self._path, f"{name}.tmp")
        self._disk.unlink(temporary)
        with self._disk.open(temporary, "temp") as file:
            for chunk in chunks:
                file.write(chunk)
            file.sync()
            size = file.size()
        self._disk.rename(temporary, os.path.join(self._path, name))
        return size

    def get(self, name: str) -> Iterator[bytes] | None:
        """Return the bytes of an object; None if it is missing."""
        file = open_existing(self._disk, os.path.join(self._path, name), "read")
        return None if file is None else self._read(file)

    def _read(self, file: File) -> Iterator[bytes]:
        with file:
            yield from pieces(file)

    def sizes(self) -> dict[str, int]:
        statuses = {name: self._disk.status(os.path.join(self._path, name)) for name in self._disk.list(self._path)}
        return {name: status.size for name, status in statuses.items() if status is not None}


class _Objects:
    """Objects in a store that obstore knows: S3, GCS, Azure. Its settings are in the environment, as AWS_ENDPOINT."""

    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write an object; return its size."""
        from tempfile import TemporaryFile

        import obstore

        with TemporaryFile() as spool:
            spool.writelines(chunks)
            size = spool.tell()
            spool.seek(0)
            with self._errors(name):
                obstore.put(self._open(), name, spool)
        return size

    def get(self, name: str) -> Iterator[bytes] | None:
        """Return the bytes of an object; None if it is missing."""
        import obstore

        with self._errors(name):
            try:
                found = obstore.get(self._open(), name)
            except (obstore.exceptions.NotFoundError, FileNotFoundError):
                return None
        return self._stream(name, found)

    def _stream(self, name: str, found: Any) -> Iterator[bytes]:
        with self._errors(name):
            yield from map(bytes, found.stream())

    def sizes(self) -> dict[str, int]:
        import obstore

        with self._errors(""):
            return {one["path"]: one["size"] for chunk in obstore.list(self._open()) for one in chunk}

    def _open(self) -> Any:
        from obstore.store import from_url

        return from_url(self._url)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            first = str(error).strip().partition("\n")[0]
            raise SejError(f"the object store refuses: {first}", path=f"{self._url}/{name}") from error


_kept: OrderedDict[str, None] = OrderedDict()


@cache
def _copies(pid: int) -> Any:
    """Return the ``TemporaryDirectory`` of the copies of a process; a forked child has its own."""
    from tempfile import TemporaryDirectory  # too slow to import for a reader without a tier

    return TemporaryDirectory(prefix=f"sej-tier-{pid}-")
