"""What a merge remembers: the next offset of every directory, in one file that is old or new, never half.

``.merge/NAME.json`` in the root is JSON with a checksum in front (:mod:`sej.system.sealed`). It holds the offsets by
directory name, and the identity of the journal in which each one counts, where the journal has one: a directory that
was made anew under the old name is refused, not read on in its midst. ``.merge/NAME.lck`` lets one merge at a time be
the reader of that name. The file is the truth. Each directory's own ``ofs/NAME.ofs`` follows behind it, so that
retention, which looks only there, knows what is still needed: after a crash it says less than the file, never more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from hub.errors import HubError
from hub.naming import Source, source_path
from sej.codec.format import MAX_OFFSET
from sej.errors import SejError
from sej.journal.directory import Directory, check_name
from sej.journal.end import Tail
from sej.journal.identity import journal_id
from sej.journal.medium import sync_up_to
from sej.reading.offset import Offset, read_offset
from sej.system.disk import Disk, read_small, replace_file
from sej.system.locks import Lock
from sej.system.sealed import seal, unseal, whole

__all__ = ["Kept", "Vector", "read_vector"]

_FOLDER: Final = ".merge"
_FORMAT: Final = 1
_VECTOR_BYTES: Final = 1 << 28
"""A million directories with names as long as they may be, about."""
_ALONE: Final = 16
"""So many directories are committed one after the other; more of them together, as nearly all of it is waiting."""
_THREADS: Final = 16


class Kept(NamedTuple):
    """What a merge has committed.

    Attributes:
        offsets: the next offset by directory name.
        journals: the identity of the journal that stood there, in hex; none where it had none, or where an older
            version committed it.
    """

    offsets: dict[str, int]
    journals: dict[str, str]


def read_vector(root: str, reader: str, disk: Disk) -> Kept:
    """What a merge has committed, without its lock; empty where it never did.

    Raises:
        HubError: the file is no vector.
    """
    path = os.path.join(root, _FOLDER, f"{check_name(reader, 'a reader name')}.json")
    try:
        data = read_small(disk, path, _VECTOR_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Kept({}, {})
    try:
        content = unseal(path, data, ("format", "offsets"), optional=("journals",))
        whole(content["format"], _FORMAT, _FORMAT)
        return Kept(
            {name: whole(offset, 0, MAX_OFFSET) for name, offset in content["offsets"].items()},
            {name: bytes.fromhex(i).hex() for name, i in content.get("journals", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(
            f"expected a vector of offsets, format {_FORMAT} ({error}): put a copy back, or remove this file so that"
            " the merge starts with the first messages",
            path=path,
        ) from error


class Vector:
    """The kept offsets of one merge, held by one process at a time."""

    def __init__(self, root: str, reader: str, disk: Disk) -> None:
        """Take the reader's lock and read its offsets.

        Raises:
            LockedError: another merge is this reader.
            HubError: the file is no vector.
            InvalidNameError: the name could leave its directory.
        """
        self._root = root
        self._reader = check_name(reader, "a reader's name")
        self._disk = disk
        self._folder = os.path.join(root, _FOLDER)
        disk.mkdir(self._folder)
        self._lock = Lock(os.path.join(self._folder, f"{reader}.lck"), what=f"merge {reader!r}", disk=disk).acquire()
        try:
            self._offsets, self._journals = read_vector(root, reader, disk)
            disk.sync_dir(self._folder)  # an earlier merge may have failed to, after it gave the file its name
        except BaseException:
            self._lock.release()
            raise

    def __getitem__(self, source: Source) -> int | None:
        """The next offset of a directory; None: nothing of it was committed."""
        return self._offsets.get(source.name)

    def register(self, source: Source) -> None:
        """Let retention know that this reader needs a directory, and let its mirror catch up.

        Raises:
            LockedError: a process reads that directory alone under this name.
            OffsetBeyondEndError: the directory ends before what was committed.
            SejError: the directory cannot be read, or was made anew.
        """
        self._recognise(source)
        path, kept = source_path(self._root, source), self[source]
        if self._disk.status(os.path.join(path, "ofs", f"{self._reader}.ofs")) is not None:
            there = read_offset(path, self._reader, disk=self._disk)
            if there == kept and (kept is None or kept <= Tail(Directory(path, self._disk)).end_offset()):
                return
        with Offset(path, self._reader, disk=self._disk) as mirror:
            if kept is not None:
                mirror.commit(kept)

    def commit(self, offsets: dict[Source, int]) -> None:
        """Keep offsets, durably: the messages below them first, then the file, then the mirrors.

        Raises:
            SejError: a directory ends before its offset or was made anew, or a mirror is in use.
        """
        changed = {source: offset for source, offset in offsets.items() if offset != self[source]}
        if not changed:
            return
        self._lock.check()
        _for_each(changed, lambda source: self._sync(source, changed[source]))
        merged = self._offsets | {source.name: offset for source, offset in changed.items()}
        journals = {name: self._journals[name] for name in merged if name in self._journals}
        content = {"format": _FORMAT, "offsets": merged, "journals": journals}
        path = os.path.join(self._folder, f"{self._reader}.json")
        replace_file(self._disk, path + ".tmp", path, seal(path, content))
        self._offsets = merged
        _for_each(changed, self.register)

    def close(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    def _recognise(self, source: Source) -> None:
        """Make sure that it is the journal in which the offset counts; from the first look on its identity is known."""
        directory = Directory(source_path(self._root, source), self._disk)
        directory.require()
        found = journal_id(directory)
        if found is not None and source.name not in self._journals:
            self._journals[source.name] = found.hex()
        elif self._journals.get(source.name) != (found and found.hex()):
            raise SejError(
                "this directory was made anew since the merge kept its place in it; a merge of another name reads it"
            )

    def _sync(self, source: Source, offset: int) -> None:
        self._recognise(source)
        sync_up_to(Directory(source_path(self._root, source), self._disk), offset)


def _for_each(sources: Collection[Source], act: Callable[[Source], None]) -> None:
    """Do it for each; many at a time where there are many, so that the disk has their syncs together."""
    if len(sources) <= _ALONE:
        for source in sources:
            act(source)
        return
    from concurrent.futures import ThreadPoolExecutor  # a tenth of a short command

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hub-commit") as pool:
        for _ in pool.map(act, sources):
            pass
