"""Small worlds with every kind of file that decisions depend on, what must be true of each, and how such files break.

A world is built once and kept in memory. For each case it is written to an empty folder, one sidecar is changed, and
:meth:`World.check` does what users would do. Any documented error is right. Wrong data is a fault: no message may be
left out silently, and none may be delivered that must not be.
"""

import os
import random
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import hub
import kestrel
import sej
import shard
from pipeline.options import WRITE, OptionError, parse
from pipeline.writing.on_file import _append_once
from pipeline.writing.places import Target
from sej.journal.directory import Directory
from sej.journal.offset_check import _look, _slots, _write, twin_path
from sej.system.disk import OS, OsDisk
from shard.committing import Job, commit, finish_dead_jobs
from shard.staging import Owner, Stage
from tests.sej.support import overwrite, read_all
from textqueue import MessageStatus, TextQueue

CPU_S = 10.0
WAIT_S = 120.0


class KilledError(BaseException):
    """The process is gone."""


class TooLongError(BaseException):
    """A case looped or waited."""


@contextmanager
def killed(verb: str, pattern: str, number: int = 1) -> Iterator[None]:
    """Die instead of the n-th call of the real disk whose first path, or new name, matches; it must come."""
    real, left = getattr(OsDisk, verb), [number]

    def call(disk: OsDisk, path: str | os.PathLike[str], *rest: Any) -> Any:
        if re.search(pattern, os.fspath(rest[0] if verb == "rename" else path)):
            left[0] -= 1
            if not left[0]:
                raise KilledError
        return real(disk, path, *rest)

    setattr(OsDisk, verb, call)
    try:
        yield
    except KilledError:
        pass
    else:
        raise AssertionError(f"nothing was {verb}ed that matches {pattern}")
    finally:
        setattr(OsDisk, verb, real)


@contextmanager
def limited() -> Iterator[None]:
    """End a case that loops (by its CPU) or waits (by the clock)."""

    def late(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, late), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


def calm(act: Callable[[], object]) -> object:
    """What act returns, or the documented error that it raised."""
    try:
        return act()
    except (sej.SejError, OptionError) as error:
        return error


def values(path: Path) -> list[bytes]:
    """Every value of a journal."""
    return [message.value for message in read_all(path)]


class World(ABC):
    """One world."""

    data: ClassVar[str] = r"(\.jnl|\.tq|/(spool|back)/cars(\.\d+)?|\.rows|/done\.txt)$"
    """The messages themselves; everything else is changed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.build(folder)
        self.image = {name: (folder / name).read_bytes() for name in _files(folder)}
        self.folders = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())

    def sidecars(self, path: Path) -> list[str]:
        """Every file but the messages themselves."""
        return [name for name in _files(path) if not re.search(self.data, "/" + name)]

    @abstractmethod
    def build(self, path: Path) -> None:
        """Make it."""

    @abstractmethod
    def check(self, path: Path, changed: list[str]) -> None:
        """Use it; what is wrong is an AssertionError."""

    def restore(self, path: Path) -> None:
        """Write it into an empty folder, as it was."""
        path.mkdir()
        for folder in self.folders:
            (path / folder).mkdir(exist_ok=True)
        for name, data in self.image.items():
            (path / name).write_bytes(data)
        for twin in path.rglob("ofs/*.check"):  # these name the files that they were written for
            directory, name = Directory(twin.parent.parent, OS), twin.name.removesuffix(".check")
            kept = _look(directory, name)
            for slot in _slots(directory, name):
                if kept is not None and slot.offset == kept.offset:
                    file = OS.open(twin_path(directory, name), "edit")
                    _write(file, name, slot._replace(inode=kept.status.inode, mtime_ns=kept.status.mtime_ns))
                    file.close()
                    break


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Journal(World):
    """Two readers, a consumer that died, a gap, batches, an index, an identity."""

    def build(self, path: Path) -> None:
        j = path / "j"
        with sej.Writer(j, segment_bytes=500) as w:
            w.append_once("one", 1, [b"a", b"b"])
            w.append_once("two", 1, [b"c"])
            w.append_many([b"value %d" % n for n in range(40)])
        segment = sorted((j / "jnl").iterdir())[1]
        overwrite(segment, 100, b"\xff" * 60)
        sej.Journal(j).repair()
        with sej.Scanner(j, timeout=0) as scanner:
            self.values = [message.value for message in scanner]
            self.gaps = [gap[:2] for gap in scanner.gaps]
        assert self.gaps
        for name, offsets in (("reader", (9, 30)), ("other", (5,))):
            with sej.Offset(j, name) as kept:
                for offset in offsets:
                    kept.commit(offset)
        self.consume(path, die_at=33, start=32)
        self.consume(path, die_at=33)
        self.end = sej.Journal(j).end_offset
        sej.SharedWriter(j, token=5).close()
        sej.Journal(j).clean(max_bytes=1 << 30, reader_max_age="999d")

    def consume(self, path: Path, *, die_at: int = -1, start: int | None = None) -> list[int]:
        handled = []

        def handle(message: sej.Message) -> None:
            if message.offset == die_at:
                raise KilledError
            handled.append(message.offset)

        options: dict[str, Any] = {} if start is None else {"default": start}
        consumer = sej.Consumer(path / "j", "worker", timeout=0, dead_letter=path / "dead", max_attempts=3, **options)
        if die_at >= 0:
            notes = path / "j" / "ofs" / "worker.tries"
            with killed("unlink", r"\.tries$"):
                consumer.run(handle)
            assert notes.exists()
        else:
            consumer.run(handle)
        return handled

    def check(self, path: Path, changed: list[str]) -> None:
        j = path / "j"
        for verify in (False, True):
            with sej.Scanner(j, timeout=0, verify=verify) as scanner:
                seen: list[bytes] = []
                ended = calm(lambda: _collect(seen, scanner))  # noqa: B023
                assert seen == self.values[: len(seen)]
                assert ended is not None or (
                    len(seen) == len(self.values) and self.gaps == [g[:2] for g in scanner.gaps]
                )
        for name, offset in (("reader", 30), ("other", 5)):
            kept = calm(lambda name=name: sej.read_offset(j, name))  # type: ignore[misc]
            assert kept == offset or isinstance(kept, sej.SejError), (name, kept)
            assert not isinstance(kept, sej.SejError) or touched(changed, f"j/ofs/{name}.")
        calm(lambda: sej.Journal(j).verify())
        handled = calm(lambda: self.consume(path))
        if not isinstance(handled, sej.SejError):
            assert handled == list(range(33, self.end)), handled
        assert not (path / "dead" / "jnl").exists()
        taken = calm(lambda: sej.Journal(j).clean(max_bytes=1))
        first = calm(lambda: sej.Journal(j).first_offset)
        assert isinstance(first, sej.SejError) or first <= 5, (taken, first)  # type: ignore[operator]

        def write() -> None:
            with sej.Writer(j) as w:
                assert w.offset == self.end
                assert w.append_once("one", 1, [b"a", b"b"]) == range(2)
                assert w.append_once("two", 1, [b"c"]) == range(2, 3)
                assert w.append(b"new") == self.end

        calm(write)


def _collect(seen: list[bytes], scanner: sej.Scanner) -> None:
    for message in scanner:
        seen.append(message.value)


class Pending(World):
    """A repair and a batch that were cut short."""

    def build(self, path: Path) -> None:
        self.values: dict[str, list[bytes]] = {}
        for name in ("repair", "batch"):
            with sej.Writer(path / name, segment_bytes=300) as w:
                w.append_many([b"value %d" % n for n in range(30)])
            self.values[name] = values(path / name)
        segment = sorted((path / "repair" / "jnl").iterdir())[1]
        overwrite(segment, 60, b"\xff" * 60)
        with killed("unlink", r"txn/repair$"):
            sej.Journal(path / "repair").repair()
        self.values["repair"] = values(path / "repair")
        w = sej.Writer(path / "batch")
        with killed("unlink", r"txn/load\.intent$"):
            w.append_once("load", 7, [b"once", b"more"])
        w.end.abandon()  # what the kernel does with the descriptors of a process that dies
        self.values["batch"] += [b"once", b"more"]

    def check(self, path: Path, changed: list[str]) -> None:
        for name in ("repair", "batch"):
            if not touched(changed, name):
                continue

            def reopen(name: str = name) -> None:
                with sej.Writer(path / name) as w:
                    if name == "batch":
                        assert len(w.append_once("load", 7, [b"once", b"more"])) == 2

            wrong = calm(reopen)
            found = calm(lambda name=name: values(path / name))  # type: ignore[misc]
            if wrong is None:
                assert found == self.values[name] or isinstance(found, sej.SejError), (name, found)
            elif isinstance(found, list):
                assert found == self.values[name][: len(found)]


class Queues(World):
    """Two queues over one journal, with items that are done, given up, waiting and expected."""

    def build(self, path: Path) -> None:
        with sej.open_queue(path / "j", "jobs") as q:
            for n in range(12):
                q.put(b"%d" % n, priority=n % 3 - 1 if n > 8 else 0, dedupe_key=b"key %d" % n)
            items = q.get_many(6, timeout=0)
            ended = {int(item.value) for item in items[:5]}
            self.letter = items[4].value
            for item in items[:4]:
                item.done()
            items[4].fail("never")
            q.sync()
        with sej.open_queue(path / "j", "mail", create=True) as q:
            for item in q.get_many(9, timeout=0):
                item.done()
        self.left = {"jobs": set(range(12)) - ended, "mail": {9, 10, 11}}

    def check(self, path: Path, changed: list[str]) -> None:
        for name, left in self.left.items():

            def work(name: str = name) -> tuple[set[int], bool]:
                with sej.open_queue(path / "j", name) as q:
                    found = {int(item.value) for item in q.get_many(100, timeout=0)}
                    q.put(b"99", dedupe_key=b"another")
                    found |= {int(item.value) for item in q.get_many(100, timeout=0)}
                    q.stats()
                    return found - {99}, 99 in found

            found = calm(work)
            if isinstance(found, sej.SejError):
                continue
            assert found[0] >= left, (name, found)  # type: ignore[index]
            assert found[1], name  # type: ignore[index]
            if not any(one.endswith(".queue") for one in changed):
                assert found[0] == left, (name, found)  # type: ignore[index]
        letters = calm(lambda: [letter.message.value for letter in sej.dead_letters(path / "j" / "dead" / "jobs")])
        assert letters == [self.letter] or isinstance(letters, sej.SejError)


class Hubs(World):
    """A merge that has committed a part."""

    def build(self, path: Path) -> None:
        with hub.Store(path / "hub") as store:
            for client in "ab":
                store.put(
                    client, "j", [sej.Message(n, 10 * n, 0, b"", b"%s%d" % (client.encode(), n)) for n in range(9)]
                )
        for reader, count in (("r", 6), ("s", 3)):
            with hub.Merge(path / "hub", reader) as merge:
                merge.read(count)
                merge.commit()
        self.left = {reader: self.read(path, reader) for reader in "rs"}
        assert self.left["r"] != self.left["s"]

    def read(self, path: Path, reader: str) -> list[bytes]:
        with hub.Merge(path / "hub", reader) as merge:
            return [message.value for _, message in merge]

    def check(self, path: Path, changed: list[str]) -> None:
        for reader, left in self.left.items():
            found = calm(lambda reader=reader: self.read(path, reader))  # type: ignore[misc]
            assert found == left or isinstance(found, sej.SejError), (reader, found)


class Shards(World):
    """A tree with its record, and a reshard that was cut short."""

    def build(self, path: Path) -> None:
        for prefix in ("o", "p"):
            with shard.Writer(shard.Path(path / "t", prefix, 2)) as w:
                for n in range(12):
                    w.append(b"%d" % n, b"key %d" % (n if prefix == "o" else 1))
        self.kinds = [problem.path for problem in shard.check(path / "t")]
        with sej.Offset(shard.Path(path / "t", "o", 2).dir(0), "w") as kept:
            kept.commit(1)
        with killed("rename", r"t/n\.1\.001$"):
            self.reshard(path)

    def reshard(self, path: Path) -> None:
        shard.reshard(shard.Path(path / "t", "o", 2), shard.Path(path / "t", "n", 1))

    def check(self, path: Path, changed: list[str]) -> None:
        problems = shard.check(path / "t")  # which names damage, and raises nothing
        if touched(changed, "t/.shards/") and "record" not in [problem.kind for problem in problems]:
            there = [problem.path.replace(str(path), "") for problem in problems if problem.kind == "missing shard"]
            assert not any("/t/o.2" in one for one in there), there
        if isinstance(calm(lambda: self.reshard(path)), Exception):
            return
        found = sorted(value for place in shard.Path(path / "t", "n", 1).dirs() for value in values(Path(place)))
        assert found == sorted(b"%d" % n for n in range(12)), found


class Texts(World):
    """A drain and an archive that were cut short, and what was appended for Spark."""

    def build(self, path: Path) -> None:
        for name in ("drain", "archive", "spark"):
            (path / f"{name}.tq").write_text("-one\n-two\n=three\n")
        with suppress(KilledError), TextQueue(path / "drain.tq") as q:
            q.drain_to(_Dying(path / "to"))
        with TextQueue(path / "archive.tq") as q, q.claim():
            pass  # adds the line with the number
        with killed("rename", r"/archive\.tq$"), TextQueue(path / "archive.tq") as q:
            q.archive(path / "done.txt")
        assert (path / ".archive.tq.archive").exists()
        _append_once(str(path / "spark.tq"), "job", 3, ["four", "five"], keep=True)
        _append_once(str(path / "spark.tq"), "job", 4, ["six"], keep=True)

    def restore(self, path: Path) -> None:
        path.mkdir()
        self.build(path)  # its files know their inodes

    def check(self, path: Path, changed: list[str]) -> None:
        def drain() -> None:
            with TextQueue(path / "drain.tq", settle_s=0.0) as q, sej.Writer(path / "to") as w:
                q.drain_to(w)

        def archive() -> None:
            with TextQueue(path / "archive.tq", settle_s=0.0) as q:
                q.archive(path / "done.txt")

        def append() -> list[str]:
            _append_once(str(path / "spark.tq"), "job", 4, ["six"], keep=True)
            with TextQueue(path / "spark.tq", settle_s=0.0) as q:
                return [message.value for message in q.messages(set(MessageStatus))]

        if touched(changed, "drain", "to") and calm(drain) is None:
            moved = values(path / "to")
            assert set(moved) == {b"one", b"two"}, moved
            assert len(moved) == 2 or ".drain.tq.log" in changed, moved
        if touched(changed, "archive") and calm(archive) is None:
            assert (path / "done.txt").read_text() == "=one\n=three\n"
        if touched(changed, "spark"):
            found = calm(append)
            assert found == ["one", "two", "three", "four", "five", "six"] or isinstance(found, Exception), found


class _Dying:
    """A writer that dies once it has appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append_once(self, *arguments: Any, **options: Any) -> object:
        with sej.Writer(self.path) as w:
            w.append_once(*arguments, **options)
        raise KilledError

    def sync(self) -> None:
        pass


class Kestrels(World):
    """An export and an import that were cut short."""

    def build(self, path: Path) -> None:
        self.items = [b"item %d" % n for n in range(5)]
        with kestrel.Queue(path / "spool", "cars") as q:
            for item in self.items:
                q.put(item)
        with killed("rename", r"cars\.exported$", 2), sej.Writer(path / "to") as w:
            kestrel.export(path / "spool", "cars", w)
        with sej.Writer(path / "from") as w:
            w.append_many(self.items)
        with killed("rename", r"cars\.\d+$"):
            self.bring(path)

    def bring(self, path: Path) -> None:
        with sej.Scanner(path / "from", timeout=0) as scanner:
            kestrel.import_(path / "back", "cars", scanner)

    def check(self, path: Path, changed: list[str]) -> None:
        def export() -> None:
            with sej.Writer(path / "to") as w:
                kestrel.export(path / "spool", "cars", w)

        if touched(changed, "spool", "to") and calm(export) is None:
            assert values(path / "to") == self.items
        if touched(changed, "back", "from") and calm(lambda: self.bring(path)) is None:
            with kestrel.Queue(path / "back", "cars") as q:
                assert len(q) == len(self.items), len(q)


class Jobs(World):
    """A decision of Spark's sink that was not carried out, and the numbers of those that were."""

    def build(self, path: Path) -> None:
        self.count = 0
        assert self.attempt(path, 3, b"first")
        with killed("unlink", r"job-.*\.json$"):
            self.attempt(path, 4, b"second")

    def target(self, path: Path) -> Target:
        return Target.of(str(path / "t"), parse(WRITE, {"bits": "1"}))

    def attempt(self, path: Path, number: int, value: bytes) -> bool:
        target, self.count = self.target(path), self.count + 1
        stage = Stage(target.staging, f"job{self.count}", Owner.here())
        for n in range(2):
            stage.append(n, [value], [b""], 0, 1)
        rows = [one._replace(path=os.path.relpath(one.path, path)) for one in stage.finish()]
        with _inside(path):
            return commit(target, Job(f"job{self.count}", "fuzz", number, rows))

    def check(self, path: Path, changed: list[str]) -> None:
        with _inside(path):
            finished = calm(lambda: finish_dead_jobs(self.target(path)))
        again = calm(lambda: self.attempt(path, 4, b"second"))
        if isinstance(finished, Exception) or isinstance(again, Exception):
            return
        for directory in self.target(path).tree.dirs():  # type: ignore[union-attr]
            assert values(Path(directory)) == [b"first", b"second"], values(Path(directory))


@contextmanager
def _inside(path: Path) -> Iterator[None]:
    here = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(here)


WORLDS: list[type[World]] = [Journal, Pending, Queues, Hubs, Shards, Texts, Kestrels, Jobs]


def touched(changed: list[str], *beginnings: str) -> bool:
    """Whether one of the changed files is named so."""
    return any(one.startswith(beginnings) for one in changed)


def change(world: World, path: Path, dice: random.Random) -> tuple[str, list[str]]:
    """Break one file, or swap two, as a medium does, which leaves inode and times alone; how, and which."""
    sidecars = world.sidecars(path)
    name = dice.choice(sidecars)
    data = bytearray((path / name).read_bytes())
    if dice.random() < 0.08:
        alike = [one for one in sidecars if Path(one).suffix == Path(name).suffix]
        other = dice.choice(alike if dice.random() < 0.7 else sidecars)
        put(path / name, (path / other).read_bytes())
        put(path / other, data)
        return "swap", sorted({name, other})
    how, data = break_bytes(data, dice)
    put(path / name, data)
    return how, [name]


def break_bytes(data: bytearray, dice: random.Random) -> tuple[str, bytearray]:
    """Other bytes in the place of these, and how they came about."""
    how = dice.choices(
        ["flip", "flips", "byte", "cut", "more", "zeros", "zero", "random", "digit"], [12, 3, 3, 4, 3, 2, 1, 2, 3]
    )[0]
    size = len(data)
    if how in ("flip", "flips") and size:
        for _ in range(1 if how == "flip" else dice.randint(2, 8)):
            data[dice.randrange(size)] ^= 1 << dice.randrange(8)
    elif how == "byte" and size:
        data[dice.randrange(size)] = dice.randrange(256)
    elif how == "digit" and size:
        digits = [at for at, byte in enumerate(data) if 48 <= byte < 58] or [0]
        data[dice.choice(digits)] = dice.choice(b"0123456789")
    elif how == "cut":
        del data[dice.randrange(size + 1) :]
    elif how == "more":
        more = dice.choice([1, 7, 40, 64, 600, 70_000])
        data += bytes(more) if dice.random() < 0.5 else dice.randbytes(more)
    elif how == "zeros" and size:
        start = dice.randrange(size)
        stop = dice.randrange(start, size) + 1
        data[start:stop] = bytes(stop - start)
    elif how == "zero":
        data = bytearray(size)
    elif how == "random":
        data = bytearray(dice.randbytes(dice.choice([size, dice.randrange(2000)])))
    return how, data


def put(path: Path, data: bytes | bytearray) -> None:
    """Change a file's bytes and size, and neither its inode nor its times."""
    status = path.stat()
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
