"""Disks for tests: one that forgets what was never synced, and one that fails on request.

:class:`CrashDisk` keeps files in memory and records every operation. :meth:`CrashDisk.crash_states` replays each prefix
of what happened and yields the disks that a power loss at that moment may leave behind:

- of the bytes written to a file since its last sync: none, all, each number of whole writes, the next write torn (after
  its first byte, before its last, at every 512 bytes), or its bytes as zeros because only the size reached the disk;
- of the names changed in a directory since its last sync: each number of the changes, in their order. A rename is
  there or not; where it crosses directories the old name may be there too, the file is never lost.

As docs/guarantees.md states, it leaves out a file system that keeps a later page of one file and fills an earlier one
with zeros.

:class:`FaultyDisk` passes calls on to another disk and fails the k-th one.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, cast

from sej.system.disk import Disk, File, Mode, Status

_STATES_MAX = 4000
_SAMPLE = _STATES_MAX if "SEJ_TORTURE_S" in os.environ else 12
"""How many states of one step are looked at; `make torture` looks at all."""
_ALONE_MAX = 4
SECTOR = 512
_DEVICE = os.makedev(8, 1)
"""As of a block device, so nothing looks for this disk in the system's table of mounts."""


class Crash(NamedTuple):
    """A disk as a power loss left it, and what the workload had said by then."""

    disk: CrashDisk
    marks: list[Any]
    step: int


class _Node:
    """A file: what is seen, what is durable, and the writes between the two."""

    def __init__(self, number: int, durable: bytes = b"") -> None:
        self.number = number
        self.seen = bytearray(durable)
        self.durable = durable
        self.links = 0
        """In how many directories it is seen."""
        self.writes: list[tuple[int, bytes] | int] = []
        self.found: list[bytes] | None = None
        """What :meth:`contents` found, until the next write or sync."""
        self.holders: dict[object, bool] = {}
        self.mtime = 0
        self.errors = 0
        self.told = True
        self.lost: set[int] = set()

    def apply(self, data: bytearray, write: tuple[int, bytes] | int) -> None:
        if isinstance(write, int):
            del data[write:]
            data.extend(bytes(write - len(data)))
        else:
            at, what = write
            if len(data) < at:
                data.extend(bytes(at - len(data)))
            data[at : at + len(what)] = what

    def write(self, at: int, what: bytes) -> None:
        self.found = None
        self.writes.append((at, what))
        self.apply(self.seen, self.writes[-1])

    def truncate(self, size: int) -> None:
        self.found = None
        self.writes.append(size)
        self.apply(self.seen, size)
        self.lost = {block for block in self.lost if block * SECTOR < size}

    def sync(self) -> None:
        self.found = None
        self.durable = self.written()
        self.writes = []

    def lose(self) -> None:
        """What a failed sync does: the pages are clean, their bytes are seen, and no later sync writes them.

        As on ext4 a block that was never written stays unwritten, however often its page is written after that.
        """
        for write in self.writes:
            if not isinstance(write, int):
                first = max(write[0] // SECTOR, -(-len(self.durable) // SECTOR))
                self.lost.update(range(first, -(-(write[0] + len(write[1])) // SECTOR)))
        self.found = None
        self.writes = []
        self.errors += 1

    def rewrite(self, at: int, what: bytes) -> None:
        self.lost -= set(range(at // SECTOR, -(-(at + len(what)) // SECTOR)))
        self.write(at, what)

    def written(self) -> bytes:
        """What is durable, and every write since; not what a failed sync lost."""
        if not self.errors and not self.lost:
            return bytes(self.seen)
        data = bytearray(self.durable)
        for write in self.writes:
            self.apply(data, write)
        for block in self.lost:
            at, old = block * SECTOR, self.durable[block * SECTOR : (block + 1) * SECTOR]
            size = len(data[at : at + SECTOR])
            data[at : at + SECTOR] = old[:size] + bytes(max(size - len(old), 0))
        return bytes(data)

    def contents(self) -> list[bytes]:
        """What may be found after a crash, the two extremes first."""
        if self.found is None:
            self.found = self._contents()
        return self.found

    def _contents(self) -> list[bytes]:
        found = [self.written(), self.durable] if self.writes else [self.durable]
        data = bytearray(self.durable)
        for write in self.writes:
            if not isinstance(write, int) and bytes(data[write[0] : write[0] + len(write[1])]) != write[1]:
                at, what = write
                for cut in {1, len(what) - 1, *range(SECTOR, len(what), SECTOR)} - {0, len(what)}:
                    torn = bytearray(data)
                    self.apply(torn, (at, what[:cut]))
                    found.append(bytes(torn))
                zeros = bytearray(data)
                self.apply(zeros, (at, what[: len(what) // 2] + bytes(len(what) - len(what) // 2)))
                found.append(bytes(zeros))
                hole = bytearray(data)
                self.apply(hole, (at, bytes(len(what))))
                found.append(bytes(hole))
            self.apply(data, write)
            found.append(bytes(data))
        return list(dict.fromkeys(found))


Change = dict[str, int | None]
"""An atomic change of a directory: the new node of each name; None: the name is removed."""


class _Dir:
    """A directory: the names that are seen, the durable ones, and the changes between the two."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.durable: dict[str, int] = {}
        self.changes: list[Change] = []
        self.children: set[str] = set()
        """The names of the directories in it."""

    def apply(self, names: dict[str, int], change: Change) -> None:
        for name, node in change.items():
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node

    def sync(self) -> None:
        self.durable = dict(self.seen)
        self.changes = []

    def prefixes(self) -> list[dict[str, int]]:
        names = dict(self.durable)
        found = [dict(names)]
        for change in self.changes:
            self.apply(names, change)
            found.append(dict(names))
        return found


class CrashDisk:
    """A disk in memory. Use it as the ``disk=`` of anything."""

    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}
        self.dirs: dict[str, _Dir] = {"/": _Dir()}
        self.trace: list[tuple[str, tuple[Any, ...]]] = []
        self.free = 1 << 40
        self.capacity: int | None = None
        """How many bytes all files together may have; None: any number."""
        self._numbers = itertools.count(1)

    # --- the Disk verbs

    def open(self, path: str | os.PathLike[str], mode: Mode) -> _OpenFile:
        name = _clean(path)
        parent, base = _split(name)
        if name in self.dirs:
            raise IsADirectoryError(errno.EISDIR, "is a directory", name)
        if parent not in self.dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        number = self.dirs[parent].seen.get(base)
        if number is None:
            if mode in ("read", "edit"):
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            number = next(self._numbers)
            self._do("create", parent, base, number)
            if mode != "temp":
                self._do("sync_dir", parent)
        elif mode == "new":
            raise FileExistsError(errno.EEXIST, "exists", name)
        elif mode == "temp":
            self._do("truncate", number, 0)
        return _OpenFile(self, number, name, mode)

    def status(self, path: str | os.PathLike[str]) -> Status | None:
        name = _clean(path)
        if name in self.dirs:
            return Status(0, _DEVICE, hash(name) & 0xFFFFFF, 0, 2, stat.S_IFDIR)
        parent, base = _split(name)
        number = self.dirs[parent].seen.get(base) if parent in self.dirs else None
        return None if number is None else self._status(number)

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        name = _clean(path)
        if name not in self.dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        return sorted({*self.dirs[name].seen, *self.dirs[name].children})

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        name = _clean(path)
        missing = []
        while name not in self.dirs:
            missing.append(name)
            name = os.path.dirname(name)
        for step in reversed(missing):
            self._do("mkdir", step)  # synced together with its parent: no decision depends on an empty directory

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        old, new = _clean(source), _clean(target)
        parent, base = _split(old)
        if base not in self.dirs.get(parent, _Dir()).seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._do("rename", old, new)
        self._do("sync_dir", os.path.dirname(new))
        if os.path.dirname(new) != parent:
            self._do("sync_dir", parent)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        name = _clean(path)
        parent, base = _split(name)
        if base in self.dirs.get(parent, _Dir()).seen:
            self._do("unlink", parent, base)
            self._do("sync_dir", parent)

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        name = _clean(path)
        if self.list(name):
            raise OSError(errno.ENOTEMPTY, "not empty", name)
        self._do("rmdir", name)

    def free_bytes(self, path: str | os.PathLike[str]) -> int:
        return self.free if self.capacity is None else max(self.capacity - self._used(), 0)

    def free_files(self, path: str | os.PathLike[str]) -> int:
        return 1 << 40

    def _used(self) -> int:
        there = {number for each in self.dirs.values() for number in each.seen.values()}
        return sum(len(self.nodes[number].seen) for number in there)

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        name = _clean(path)
        if name not in self.dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        if self.dirs[name].changes:
            self._do("sync_dir", name)

    # --- what tests use

    def mark(self, what: Any) -> None:
        """Say something that is true from here on: an acknowledgement. Crash states carry what was said before."""
        self.trace.append(("mark", (what,)))

    def unlock(self) -> None:
        """Release all locks, as the kernel does for a process that dies."""
        for node in self.nodes.values():
            node.holders.clear()

    def settle(self) -> int:
        """Let everything that was written become durable, as time does; the step of the trace from here on."""
        for number, node in self.nodes.items():
            if node.writes:
                self._do("sync", number)
        return len(self.trace)

    def crash_states(self, *, since: int = 0) -> Iterator[Crash]:
        """Disks that a crash at any moment from a step of the trace on may leave, without repeats.

        Every step is covered, and of what a crash at one step may leave an even sample; under torture all of it.
        """
        seen: set[object] = set()
        replay = CrashDisk()
        marks: list[Any] = []
        for step, (what, arguments) in enumerate([*self.trace, ("end", ())]):
            for state in replay._states(_SAMPLE) if step >= since else ():
                key = (state._key(), len(marks))
                if key not in seen:
                    seen.add(key)
                    yield Crash(state, list(marks), step)
            if what == "mark":
                marks.append(arguments[0])
            elif what != "end":
                replay._do(what, *arguments)

    def crash(self, *, keep: bool = False) -> CrashDisk:
        """The disk after one crash: with only what is durable, or (keep) with everything that was seen."""
        return next(self._states()) if keep else self._least()

    def files(self) -> dict[str, bytes]:
        """Every file and its bytes, as they are seen."""
        return {
            os.path.join(name, base): bytes(self.nodes[number].seen)
            for name, entries in self.dirs.items()
            for base, number in entries.seen.items()
        }

    # --- below

    def _key(self) -> frozenset[tuple[str, str, bytes]]:
        """What :meth:`files` returns for a disk as a crash left it, where all is durable; bytes keep their hash."""
        return frozenset(
            (name, base, self.nodes[number].durable)
            for name, entries in self.dirs.items()
            for base, number in entries.seen.items()
        )

    def _do(self, what: str, *arguments: Any) -> None:
        """One operation: recorded, and done."""
        self.trace.append((what, arguments))
        _OPERATIONS[what](self, *arguments)

    def _create(self, parent: str, base: str, number: int) -> None:
        self.nodes[number] = _Node(number)
        self._change(parent, {base: number})

    def _change(self, parent: str, change: Change) -> None:
        entries = self.dirs[parent]
        for name in change.keys() & entries.seen.keys():
            self.nodes[entries.seen[name]].links -= 1
        for number in change.values():
            if number is not None:
                self.nodes[number].links += 1
        entries.changes.append(change)
        entries.apply(entries.seen, change)

    def _rename(self, old: str, new: str) -> None:
        (from_dir, from_base), (to_dir, to_base) = _split(old), _split(new)
        number = self.dirs[from_dir].seen[from_base]
        if old == new:
            return
        if to_dir == from_dir:
            self._change(to_dir, {to_base: number, from_base: None})
        else:
            self._change(to_dir, {to_base: number})
            self._change(from_dir, {from_base: None})

    def _mkdir(self, name: str) -> None:
        parent, base = _split(name)
        self.dirs[name] = _Dir()
        self.dirs[parent].children.add(base)

    def _rmdir(self, name: str) -> None:
        parent, base = _split(name)
        del self.dirs[name]
        self.dirs[parent].children.remove(base)

    def _status(self, number: int) -> Status:
        node = self.nodes[number]
        return Status(len(node.seen), _DEVICE, number, node.mtime, node.links, stat.S_IFREG)

    def _states(self, at_most: int = _STATES_MAX) -> Iterator[CrashDisk]:
        """The disks that a crash now may leave; first the one that keeps everything, last the one that keeps least."""
        changed = [name for name, entries in self.dirs.items() if entries.changes]
        name_choices = [self.dirs[name].prefixes()[::-1] for name in changed]
        dirty = [number for number, node in self.nodes.items() if node.writes]
        data_choices = [self.nodes[number].contents() for number in dirty]
        pairs = itertools.product(itertools.product(*name_choices), _combined(data_choices))
        found = list(itertools.islice(pairs, _STATES_MAX))
        for names, data in found if len(found) <= at_most else found[:: -(-len(found) // at_most)]:
            yield self._after(dict(zip(changed, names, strict=True)), dict(zip(dirty, data, strict=True)))
        yield self._least()

    def _least(self) -> CrashDisk:
        """The disk with only what is durable."""
        names = {name: entries.durable for name, entries in self.dirs.items() if entries.changes}
        return self._after(names, {number: node.durable for number, node in self.nodes.items() if node.writes})

    def _after(self, names: dict[str, dict[str, int]], data: dict[int, bytes]) -> CrashDisk:
        disk = CrashDisk()
        disk._numbers = itertools.count(max(self.nodes, default=0) + 1)
        for name, entries in self.dirs.items():
            copy = disk.dirs[name] = _Dir()
            copy.durable = dict(names.get(name, entries.seen))
            copy.children = set(entries.children)
        # A rename that crosses directories never loses the file: where neither name is there, the old one is.
        alive = {number for entries in disk.dirs.values() for number in entries.durable.values()}
        for entries, copy in zip(self.dirs.values(), disk.dirs.values(), strict=True):
            for name, number in entries.durable.items():
                if number not in alive and self.nodes[number].links and name not in copy.durable:
                    copy.durable[name] = number
        for entries in disk.dirs.values():
            entries.seen = dict(entries.durable)
            for number in entries.seen.values():
                if number not in disk.nodes:
                    disk.nodes[number] = _Node(number, data.get(number, self.nodes[number].durable))
                disk.nodes[number].links += 1
        return disk


def _combined(choices: list[list[bytes]]) -> Iterator[tuple[bytes, ...]]:
    """Yield combinations of the contents of dirty files.

    One file after the other gets each of its contents, while each other file has all of its new bytes or none. If many
    files are dirty, all the others have their new bytes or none has, because there would be too many states.
    """
    for at in range(max(len(choices), 1)):
        if len(choices) <= _ALONE_MAX:
            yield from itertools.product(*(found if other == at else found[:2] for other, found in enumerate(choices)))
            continue
        for content in choices[at]:
            for new in (0, 1):
                yield tuple(
                    content if other == at else found[min(new, len(found) - 1)] for other, found in enumerate(choices)
                )


_OPERATIONS: dict[str, Callable[..., None]] = {
    "create": CrashDisk._create,
    "rename": CrashDisk._rename,
    "mkdir": CrashDisk._mkdir,
    "rmdir": CrashDisk._rmdir,
    "unlink": lambda disk, parent, base: disk._change(parent, {base: None}),
    "sync_dir": lambda disk, name: disk.dirs[name].sync(),
    "write": lambda disk, number, at, data: disk.nodes[number].write(at, data),
    "truncate": lambda disk, number, size: disk.nodes[number].truncate(size),
    "sync": lambda disk, number: disk.nodes[number].sync(),
    "rewrite": lambda disk, number, at, data: disk.nodes[number].rewrite(at, data),
    "lose": lambda disk, number: disk.nodes[number].lose(),
}


class _OpenFile:
    """An open file of a :class:`CrashDisk`."""

    def __init__(self, disk: CrashDisk, number: int, path: str, mode: Mode) -> None:
        self._disk = disk
        self._number = number
        self._path = path
        self._appends = mode in ("append", "new")
        self._writes = mode != "read"
        self._at = 0
        self._open = True
        node = disk.nodes[number]
        self._errors = node.errors if node.told else node.errors - 1  # an unreported error is reported next

    @property
    def path(self) -> str:
        return self._path

    @property
    def _node(self) -> _Node:
        if not self._open:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return self._disk.nodes[self._number]

    def read(self, size: int, position: int) -> bytes:
        return bytes(self._node.seen[position : position + size])

    def read_into(self, buffer: memoryview, position: int) -> int:
        data = self.read(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        at = len(self._node.seen) if self._appends else self._at
        self.write_at(data, at)
        self._at = at + len(data)

    def writer(self) -> Callable[[bytes], int]:
        def write(data: bytes) -> int:
            self.write(data)
            return len(data)

        return write

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        assert self._writes, f"{self._path} was opened for reading"
        if self._disk.capacity is not None:
            grown = position + len(data) - max(len(self._node.seen), position)
            room = self._disk.free_bytes("/")
            if grown > room:
                if len(data) > grown - room:
                    self._disk._do("write", self._number, position, bytes(data[: room - grown]))
                raise OSError(errno.ENOSPC, "No space left on device", self._path)
        if len(data):
            self._node.mtime += 1
            self._disk._do("write", self._number, position, bytes(data))

    def stored(self, size: int, position: int) -> bytes | None:
        return self._node.durable[position : position + size]

    def rewrite(self, data: bytes, position: int) -> None:
        self._disk._do("rewrite", self._number, position, bytes(data))

    def start_sync(self, size: int, position: int) -> None:
        """Nothing is durable before :meth:`sync`."""

    def sync(self) -> None:
        if self._errors != self._node.errors:  # reported once to each descriptor that was open at the failure
            self._errors, self._node.told = self._node.errors, True
            raise OSError(errno.EIO, "an earlier write could not be written back", self._path)
        if self._node.writes:
            self._disk._do("sync", self._number)

    def truncate(self, size: int) -> None:
        if size != len(self._node.seen):
            self._disk._do("truncate", self._number, size)

    def allocate(self, size: int) -> None:
        if self._disk.capacity is not None and size > self._disk.free_bytes("/"):
            raise OSError(errno.ENOSPC, "No space left on device", self._path)
        self.truncate(size)

    def set_time(self, mtime_ns: int) -> None:
        self._node.mtime = mtime_ns

    def lose(self) -> None:
        """Lose the unsynced bytes, as a failed sync does: they are not on the medium, but readers still see them."""
        self._disk._do("lose", self._number)
        self._errors, self._node.told = self._node.errors, True

    def refuse(self) -> None:
        """Fail a write past the cache. As on btrfs, the next sync reports it, even in a process that starts later."""
        self._node.errors += 1
        self._node.told = False

    def size(self) -> int:
        return self.status().size

    def extent(self) -> tuple[int, int]:
        status = self.status()
        return status.size, status.links

    def status(self) -> Status:
        return self._disk._status(self._node.number)

    def lock(self, *, exclusive: bool = True, wait: bool = False, held: bool = False) -> bool:
        others = [kind for owner, kind in self._node.holders.items() if owner is not self]
        if any(others) or (exclusive and others):
            assert not wait, "a wait for a lock on this disk would never end"
            return False
        self._node.holders[self] = exclusive
        return True

    def unlock(self) -> None:
        self._disk.nodes[self._number].holders.pop(self, None)

    def unlocker(self) -> Callable[[], object]:
        return self.unlock

    def closing(self) -> AbstractContextManager[object]:
        return closing(self)

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "no descriptor", self._path)

    def close(self) -> None:
        if self._open:
            self.unlock()
            self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Fault = Literal["eio", "enospc", "short", "sync-loses"]


class FaultyDisk:
    """Passes everything on and fails the k-th call that changes something.

    Attributes:
        calls: how many there were.
        failed: the verb that failed, or None so far.
        blind: as a file system that cannot be read past its cache.
    """

    blind = False

    def __init__(self, inner: Disk, fail_at: int, fault: Fault = "eio", *, sticky: bool = False) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.fault: Fault = fault
        self.sticky = sticky
        self.calls = 0
        self.failed: str | None = None

    def before(self, verb: str, file: File | None = None, data: bytes | None = None) -> None:
        """Count a call, and fail it if it is the one."""
        self.calls += 1
        if self.calls != self.fail_at and not (self.sticky and self.failed and self.calls > self.fail_at):
            return
        if self.fault == "sync-loses" and verb != "sync":
            return
        self.failed = verb
        if verb == "write" and file is not None and data and self.fault == "short":
            file.write(data[: len(data) // 2])
        if verb == "sync" and isinstance(file, _OpenFile):
            file.lose()
        number = errno.ENOSPC if self.fault in ("enospc", "short") else errno.EIO
        raise OSError(number, f"{os.strerror(number)} (injected)", verb)

    def open(self, path: str | os.PathLike[str], mode: Mode) -> File:
        if mode not in ("read", "edit"):
            self.before("open")
        return cast("File", _FaultyFile(self, self.inner.open(path, mode)))

    def status(self, path: str | os.PathLike[str]) -> Status | None:
        return self.inner.status(path)

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        return self.inner.list(path)

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        if self.inner.status(path) is None:
            self.before("mkdir")
        self.inner.mkdir(path, parents=parents)

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        self.before("rename")
        self.inner.rename(source, target)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        self.before("unlink")
        self.inner.unlink(path)

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        self.before("rmdir")
        self.inner.rmdir(path)

    def free_bytes(self, path: str | os.PathLike[str]) -> int:
        return self.inner.free_bytes(path)

    def free_files(self, path: str | os.PathLike[str]) -> int:
        return self.inner.free_files(path)

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        self.before("sync_dir")
        self.inner.sync_dir(path)


class _FaultyFile:
    """A file of a :class:`FaultyDisk`; what changes nothing is passed on."""

    def __init__(self, disk: FaultyDisk, inner: File) -> None:
        self._disk = disk
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._disk.before("write", self._inner, bytes(data))
        self._inner.write(data)

    def writer(self) -> Callable[[bytes], int]:
        def write(data: bytes) -> int:
            self.write(data)
            return len(data)

        return write

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.before("write_at", self._inner, bytes(data))
        self._inner.write_at(data, position)

    def stored(self, size: int, position: int) -> bytes | None:
        return None if self._disk.blind else self._inner.stored(size, position)

    def rewrite(self, data: bytes, position: int) -> None:
        try:
            self._disk.before("write_at", self._inner, data)
        except OSError:
            if isinstance(self._inner, _OpenFile):
                self._inner.refuse()
            raise
        self._inner.rewrite(data, position)

    def sync(self) -> None:
        self._disk.before("sync", self._inner)
        self._inner.sync()

    def truncate(self, size: int) -> None:
        self._disk.before("truncate", self._inner)
        self._inner.truncate(size)

    def allocate(self, size: int) -> None:
        self._disk.before("allocate")
        self._inner.allocate(size)


class FaultyOnly(FaultyDisk):
    """Fails the k-th call of one verb, and counts nothing else."""

    def __init__(self, inner: Disk, verb: str, fail_at: int, *, sticky: bool = False) -> None:
        super().__init__(inner, fail_at, sticky=sticky)
        self.verb = verb

    def before(self, verb: str, file: File | None = None, data: bytes | None = None) -> None:
        if verb == self.verb:
            super().before(verb, file, data)


def faulty(inner: Disk, fail_at: int, fault: Fault, *, sticky: bool = False) -> FaultyDisk:
    """A disk that fails the k-th call that the fault is for: a sync, or any."""
    if fault == "sync-loses":
        return FaultyOnly(inner, "sync", fail_at, sticky=sticky)
    return FaultyDisk(inner, fail_at, fault, sticky=sticky)


class LostName(FaultyDisk):
    """Gives a path its name once, and fails to sync the directory."""

    def __init__(self, inner: CrashDisk, path: str) -> None:
        super().__init__(inner, 0)
        self._crash, self._path = inner, path

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        if os.fspath(target) != self._path:
            return super().rename(source, target)
        self._path = ""
        self._crash._do("rename", os.fspath(source), os.fspath(target))
        raise OSError(errno.EIO, "the directory could not be synced", os.fspath(target))


def _clean(path: str | os.PathLike[str]) -> str:
    return _normal(os.fspath(path))


@lru_cache(1 << 12)
def _normal(path: str) -> str:
    return os.path.normpath(os.path.join("/", path))


@lru_cache(1 << 12)
def _split(path: str) -> tuple[str, str]:
    return os.path.split(path)
