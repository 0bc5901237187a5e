"""The cold tier: messages that ``sej archive`` has moved out of ``jnl/``, and that readers find there.

``tier.json`` (:mod:`sej.system.sealed`) has the address of a directory or of an object store, and its objects::

    {"address": "s3://bucket/orders/0f1e…", "objects": [[first_offset, next_offset, size, crc32c, newest_timestamp], …]}

An object is a segment: encoded messages with consecutive offsets. Objects are listed by offset, do not overlap, and
are never changed once they are listed. One is listed after its bytes were written, read back and compared. Only then
the reader ``cold-tier`` is past its messages, and retention waits for that reader. So each message is in ``jnl/``, in
the tier, or in both; a reader that lists ``jnl/`` first and the tier afterwards finds it, and ``jnl/`` takes
precedence.

A reader compares the size and the CRC32C of an object with this list before it reads a message of it. An object of a
store is copied to a file for that. The original does not know the tier.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

from sej.codec.format import MAX_OFFSET
from sej.errors import CorruptionError, SejError
from sej.journal.directory import Directory, Segment
from sej.system.checksum import crc32c
from sej.system.disk import Disk, open_existing
from sej.system.sealed import SealedFile, whole

READER: Final = "cold-tier"
"""The name of the reader that moves messages."""
_READ_BYTES: Final = 1 << 20
_COPIES: Final = 4
"""Copies of objects that a process keeps, about a segment each; open files survive their removal."""
_LIST_BYTES: Final = 1 << 28
_WAY_OUT: Final = "put it back from a copy of the tier; `sej archive verify` checks all objects"


class Listed(NamedTuple):
    """What the list says about an object: its messages, its bytes, and the newest time of a message, ns."""

    first_offset: int
    next_offset: int
    size: int
    crc32c: int
    newest_timestamp: int

    @property
    def name(self) -> str:
        """The object's name, that of a segment."""
        return f"{self.first_offset:016x}.jnl"


class Archived(Segment):
    """A segment in the tier. Its path is the file that :meth:`fetch` checks: the object, or a copy of it."""

    listed: Listed
    tier: Tier

    @property
    def address(self) -> str:
        """The object's address."""
        return f"{self.tier.address}/{self.listed.name}"

    def fetch(self) -> None:
        """Copy the object if it is in a store, and check the file, unless this process has done it before.

        Raises:
            CorruptionError: the object is missing, or not the one that is listed.
            SejError: the store cannot be reached.
        """
        self.tier.fetch(self)


def fetched(segment: Segment) -> str:
    """Return the path of a segment's file; one of the tier is checked, and copied if it is in a store.

    Raises:
        CorruptionError: the object is missing, or not the one that is listed.
        SejError: the store cannot be reached.
    """
    if isinstance(segment, Archived):
        segment.fetch()
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

    def segments(self) -> list[Segment]:
        """Return the objects as segments."""
        found: list[Segment] = []
        for listed in self.objects:
            segment = Archived(listed.first_offset, self._store.path(listed.name))
            segment.listed, segment.tier = listed, self
            found.append(segment)
        return found

    @property
    def size(self) -> int:
        """The size of all objects."""
        return sum(listed.size for listed in self.objects)

    def absent(self) -> list[str]:
        """Return the addresses of objects that are missing or have another size, without reading one.

        Raises:
            SejError: the store cannot be reached.
        """
        sizes = self._store.sizes()
        return [f"{self.address}/{one.name}" for one in self.objects if sizes.get(one.name) != one.size]

    def put(self, first_offset: int, chunks: Iterable[bytes]) -> None:
        """Write an object, durably; it is not listed."""
        self._store.put(f"{first_offset:016x}.jnl", chunks)

    def add(self, listed: Listed | None) -> None:
        """Read an object back and compare it, then list it, durably; None: store the list as it is.

        Raises:
            CorruptionError: the object is not what was written.
        """
        objects = self.objects if listed is None else [*self.objects, listed]
        tier = Tier(self._directory, self.address, objects)
        if listed is not None:
            fetched(tier.segments()[-1])
        self._directory.disk.mkdir(self._directory.at("tmp"))
        _list_file(self._directory).store({"address": self.address, "objects": objects})
        self.objects = objects

    def fetch(self, segment: Archived) -> None:
        """Do the work of :meth:`Archived.fetch`."""
        disk, listed = self._directory.disk, segment.listed
        there = disk.status(segment.path)
        if there is not None and _checked.get((disk, segment.path)) == (there, listed):
            return
        if not self._store.get(listed.name) or (file := open_existing(disk, segment.path, "read")) is None:
            raise _wrong(segment, "is missing")
        with file:
            size = position = found = 0
            size = file.size()
            while position < size and (data := file.read(_READ_BYTES, position)):
                position, found = position + len(data), crc32c(data, found)
            if size != listed.size:
                raise _wrong(segment, f"has {size} bytes, expected {listed.size}")
            if found != listed.crc32c:
                raise _wrong(segment, f"has CRC32C {found:08x}, expected {listed.crc32c:08x}")
            _checked[disk, segment.path] = (file.status(), listed)


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

    def path(self, name: str) -> str:
        return os.path.join(self._path, name)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._disk.mkdir(self._path, parents=True)
        temporary = self.path(f"{name}.tmp")
        self._disk.unlink(temporary)
        with self._disk.open(temporary, "temp") as file:
            for chunk in chunks:
                file.write(chunk)
            file.sync()
        self._disk.rename(temporary, self.path(name))

    def get(self, name: str) -> bool:
        """Return whether the object may exist."""
        return bool(name)

    def sizes(self) -> dict[str, int]:
        statuses = {name: self._disk.status(self.path(name)) for name in self._disk.list(self._path)}
        return {name: status.size for name, status in statuses.items() if status is not None}


class _Objects:
    """Objects in a store that obstore knows: S3, GCS, Azure. Its settings are in the environment, as AWS_ENDPOINT."""

    def __init__(self, url: str) -> None:
        self._url = url

    def path(self, name: str) -> str:
        """Return where this process has its copy."""
        return os.path.join(_copies(os.getpid()).name, f"{crc32(self._url.encode()):08x}-{name}")

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        from tempfile import TemporaryFile

        import obstore

        with TemporaryFile() as spool:
            spool.writelines(chunks)
            spool.seek(0)
            with self._errors(name):
                obstore.put(self._open(), name, spool)

    def get(self, name: str) -> bool:
        """Copy an object to its path; return whether it exists."""
        import obstore

        path = self.path(name)
        with self._errors(name):
            try:
                found = obstore.get(self._open(), name)
            except (obstore.exceptions.NotFoundError, FileNotFoundError):
                return False
            with open(f"{path}.tmp", "wb") as copy:
                copy.writelines(map(bytes, found.stream()))
        os.rename(f"{path}.tmp", path)
        _kept[path] = None
        _kept.move_to_end(path)
        while len(_kept) > _COPIES:
            with suppress(FileNotFoundError):
                os.unlink(_kept.popitem(last=False)[0])
        return True

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
