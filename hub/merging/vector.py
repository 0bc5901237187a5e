"""What a merge has committed: the next offset of every directory, in one file that is replaced atomically.

``.merge/NAME.json`` in the root is JSON preceded by a checksum (:mod:`sej.system.sealed`). It holds the offsets by
directory name, and the identity of the journal of each offset, if the journal has one: a directory that was re-created
under the old name is refused, not read from the middle. ``.merge/NAME.lck`` allows one merge at a time under that name.
The file is authoritative. Each directory's own ``ofs/NAME.ofs`` is updated after it, for retention, which reads only
there: after a crash it may be behind the file, never ahead. It is moved back if the file was removed or restored.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from hub.errors import HubError
from hub.naming import Source, source_path
from sej.codec.format import MAX_OFFSET
from sej.errors import SejError
from sej.journal.directory import Directory, check_name
from sej.journal.end import Tail
from sej.journal.identity import journal_id
from sej.journal.medium import sync_up_to
from sej.journal.view import Journal
from sej.reading.offset import Offset, read_offset
from sej.system.disk import Disk, read_small, replace_file
from sej.system.locks import Lock
from sej.system.sealed import seal, unseal, whole

_FOLDER: Final = ".merge"
_FORMAT: Final = 1
_VECTOR_BYTES: Final = 1 << 28
"""About a million directories with the longest names."""
_ALONE: Final = 16
"""Up to this many directories are committed one after the other, more concurrently, as most of the time is waiting."""
_THREADS: Final = 16


class Kept(NamedTuple):
    """The state that a merge has committed.

    Attributes:
        offsets: the next offset by directory name.
        journals: the identity of each journal, in hex; missing if the journal had none.
    """

    offsets: dict[str, int]
    journals: dict[str, str]


def read_vector(root: str, reader: str, disk: Disk) -> Kept:
    """Read what a merge has committed, without its lock; empty if it never committed.

    Raises:
        HubError: the file is not a vector.
    """
    path = os.path.join(root, _FOLDER, f"{check_name(reader, 'a reader name')}.json")
    try:
        data = read_small(disk, path, _VECTOR_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Kept({}, {})
    try:
        content = unseal(path, data)
        whole(content["format"], _FORMAT, _FORMAT)
        return Kept(
            {name: whole(offset, 0, MAX_OFFSET) for name, offset in content["offsets"].items()},
            {name: bytes.fromhex(i).hex() for name, i in content["journals"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(
            f"this is not a vector of offsets of format {_FORMAT} ({error}); restore a copy, or remove the file to"
            " start the merge at the first messages",
            path=path,
        ) from error


class Vector:
    """The kept offsets of one merge, held by one process at a time."""

    def __init__(self, root: str, reader: str, disk: Disk) -> None:
        """Take the reader's lock and read its offsets.

        Raises:
            LockedError: another merge has this reader name.
            HubError: the file is not a vector.
            InvalidNameError: the name has characters that are not allowed.
        """
        self._root = root
        self._reader = check_name(reader, "a reader's name")
        self._disk = disk
        self._folder = os.path.join(root, _FOLDER)
        disk.mkdir(self._folder)
        self._lock = Lock(os.path.join(self._folder, f"{reader}.lck"), what=f"merge {reader!r}", disk=disk).acquire()
        try:
            self._offsets, self._journals = read_vector(root, reader, disk)
            disk.sync_dir(self._folder)  # an earlier merge may have renamed the file and failed before this
        except BaseException:
            self._lock.release()
            raise

    def __getitem__(self, source: Source) -> int | None:
        """Return the next offset of a directory; None if nothing of it was committed."""
        return self._offsets.get(source.name)

    def register(self, source: Source) -> None:
        """Register this reader in a directory for retention, and update its mirror.

        Raises:
            LockedError: another process reads that directory under this name.
            OffsetBeyondEndError: the directory ends before the committed offset.
            OffsetTooSmallError: the directory does not have its message any more, and the mirror was ahead of it.
            SejError: the directory cannot be read, or was re-created.
        """
        self._recognise(source)
        path, kept = source_path(self._root, source), self[source]
        if self._disk.status(os.path.join(path, "ofs", f"{self._reader}.ofs")) is not None:
            there = read_offset(path, self._reader, disk=self._disk)
            if there == kept and (kept is None or kept <= Tail(Directory(path, self._disk)).end_offset()):
                return
        with Offset(path, self._reader, disk=self._disk) as mirror:
            due = Journal(path, disk=self._disk).first_offset if kept is None else kept
            if due < mirror.value:  # the file was removed, or replaced by an older copy
                mirror.reset(due)
            elif kept is not None:
                mirror.commit(kept)

    def commit(self, offsets: dict[Source, int]) -> None:
        """Commit offsets durably: first the messages below them, then the file, then the mirrors.

        Raises:
            SejError: a directory ends before its offset or was re-created, or a mirror is in use.
        """
        changed = {source: offset for source, offset in offsets.items() if offset != self[source]}
        if not changed:
            return
        self._lock.check()
        with ExitStack() as stack:
            each: Any = map
            if len(changed) > _ALONE:  # concurrently: the disk gets their syncs together
                from concurrent.futures import ThreadPoolExecutor  # too slow to import for a short command

                each = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="hub-commit")).map
            list(each(self._sync, changed, changed.values()))
            self._replace(changed)
            list(each(self.register, changed))

    def _replace(self, changed: dict[Source, int]) -> None:
        merged = self._offsets | {source.name: offset for source, offset in changed.items()}
        journals = {name: self._journals[name] for name in merged if name in self._journals}
        content = {"format": _FORMAT, "offsets": merged, "journals": journals}
        path = os.path.join(self._folder, f"{self._reader}.json")
        replace_file(self._disk, path + ".tmp", path, seal(path, content))
        self._offsets = merged

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _recognise(self, source: Source) -> None:
        """Check that the directory is the journal of the offset; the first check stores its identity."""
        directory = Directory(source_path(self._root, source), self._disk)
        directory.require()
        found = journal_id(directory)
        if found is not None and source.name not in self._journals:
            self._journals[source.name] = found.hex()
        elif self._journals.get(source.name) != (found and found.hex()):
            raise SejError(
                "this directory was re-created since the merge committed its offset; read it with a merge of"
                " another name"
            )

    def _sync(self, source: Source, offset: int) -> None:
        self._recognise(source)
        sync_up_to(Directory(source_path(self._root, source), self._disk), offset)
