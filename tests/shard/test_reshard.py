"""reshard: nothing lost, nothing twice, order within a key, readers' places; and SIGKILL at any call to the disk."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest

import sej
import shard
from sej.disk import Mode, OsDisk, OsFile
from shard import copying

KEYS = [b"key %d" % number for number in range(60)]


def fill(path: shard.Path, count: int, start: int = 0) -> None:
    with shard.Writer(path, segment_bytes=2000) as writer:
        keys = [KEYS[number % 7 * number % 60] for number in range(start, start + count)]
        values = [b"%d" % number for number in range(start, start + count)]
        types = [number % 256 for number in range(start, start + count)]
        stamps = [sej.NO_TIMESTAMP if number % 10 == 0 else number for number in range(start, start + count)]
        writer.append_many(values, keys, types, stamps)


def by_key(path: shard.Path) -> dict[bytes, list[tuple[int, int, bytes]]]:
    """Each key's messages in their order, and that all of them lie where they belong."""
    found: dict[bytes, list[tuple[int, int, bytes]]] = {}
    with shard.Scanner(path) as scanner:
        for index, message in scanner:
            assert path.index(message.key) == index
            found.setdefault(message.key, []).append((message.timestamp, message.type, message.value))
    return found


@pytest.fixture
def source(tmp_path: FilePath) -> shard.Path:
    path = shard.Path(tmp_path / "root", "orders", 3)
    fill(path, 1000)
    return path


@pytest.mark.parametrize("bits", [0, 1, 2, 4, 6, 10])
def test_more_and_fewer_shards(source: shard.Path, bits: int) -> None:
    target = shard.Path(source.root, "orders", bits)
    steps: list[tuple[int, int]] = []
    done = shard.reshard(source, target, progress=lambda *step: steps.append(step), max_open=8)
    assert by_key(target) == by_key(source)
    assert done.messages == 1000
    assert steps[-1] == (1000, 1000)
    assert steps == sorted(steps)
    assert [problem.kind for problem in shard.check(source.root)] == ["bit counts"]
    assert shard.reshard(source, target) == done
    assert all(sej.Journal(path).verify() == [] for path in target.dirs() if os.path.exists(path))


def test_into_another_root_and_prefix(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "elsewhere", "", 2)
    shard.reshard(source, target)
    assert by_key(target) == by_key(source)
    assert shard.find(target.root).paths == [target]
    assert shard.check(target.root) == []


def test_a_route_of_ones_own(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 2)
    shard.reshard(source, target, route=lambda message: message.type)
    with shard.Scanner(target) as scanner:
        rows = list(scanner)
    assert len(rows) == 1000
    assert all(message.type & 3 == index for index, message in rows)


@pytest.mark.parametrize("bits", [1, 3, 5])
def test_readers_stand_before_everything_they_have_not_read(source: shard.Path, tmp_path: FilePath, bits: int) -> None:
    rng = random.Random(bits)
    unread: dict[str, set[bytes]] = {}
    for reader in ("some", "all", "none"):
        unread[reader] = set()
        for index in range(source.count):
            end = sej.Journal(source.dir(index)).end_offset
            place = {"some": rng.randrange(end + 1), "all": end, "none": 0}[reader]
            with sej.Offset(source.dir(index), reader) as kept:
                kept.commit(place)
            with sej.Scanner(source.dir(index), place) as scanner:
                unread[reader] |= {message.value for message in scanner}
    target = shard.Path(tmp_path / "t", "orders", bits)
    assert shard.reshard(source, target).readers == ["all", "none", "some"]
    for reader, values in unread.items():
        seen = set()
        for found in shard.find(target.root):
            place = sej.read_offset(found.path, reader) or 0
            with sej.Scanner(found.path, place) as scanner:
                seen |= {message.value for message in scanner}
        assert values <= seen
        if reader == "all":
            assert seen == set()


def test_what_cannot_be_done_is_refused(source: shard.Path, tmp_path: FilePath) -> None:
    with pytest.raises(ValueError, match="same tree"):
        shard.reshard(source, shard.Path(source.root, "orders", 3))
    with pytest.raises(sej.JournalNotFoundError, match=r"no shard of users\.3"):
        shard.reshard(shard.Path(source.root, "users", 3), shard.Path(tmp_path / "t", "users", 1))
    with shard.Writer(source) as writer:
        writer.append(b"x", KEYS[0])
        with pytest.raises(sej.LockedError, match="stop it first"):
            shard.reshard(source, shard.Path(tmp_path / "t", "orders", 1))
    there = shard.Path(tmp_path / "there", "orders", 1)
    fill(there, 3)
    with pytest.raises(sej.SejError, match="there already"):
        shard.reshard(source, there)


def test_a_target_that_was_tampered_with_is_found_out(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 1)
    assert _killed(source, target, 60)
    built = shard.Path(tmp_path / "t" / ".reshard" / "orders.1" / "tree", "orders", 1)
    foreign = next(path for path in built.dirs() if os.path.exists(path))
    with sej.Writer(foreign) as writer:
        writer.append_many([b"foreign"] * 3)
    with pytest.raises(sej.CorruptionError, match="another message"):
        shard.reshard(source, target)


class KillingDisk(OsDisk):
    """Ends its process by SIGKILL at the k-th call that changes something."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Any, mode: Mode) -> OsFile:
        if mode == "read":
            return super().open(path, mode)
        self.step()
        file = super().open(path, mode)
        self.step()
        return KillingFile(os.dup(file.fileno()), file.path, self)

    def rename(self, source: Any, target: Any) -> None:
        self.step()
        super().rename(source, target)
        self.step()

    def mkdir(self, path: Any) -> None:
        self.step()
        super().mkdir(path)

    def unlink(self, path: Any) -> None:
        self.step()
        super().unlink(path)


class KillingFile(OsFile):
    __slots__ = ("disk",)

    def __init__(self, fd: int, path: str, disk: KillingDisk) -> None:
        super().__init__(fd, path)
        self.disk = disk

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.disk.step()
        if self.disk.left == 0:
            super().write(memoryview(data)[: len(data) // 2])  # torn
        self.disk.step()
        super().write(data)


def _killed(source: shard.Path, target: shard.Path, call: int) -> bool:
    """Reshard in a child that dies at a call; whether it died."""
    child = os.fork()
    if not child:
        try:
            copying._CHECKPOINT = 300  # type: ignore[misc]
            copying._BATCH = 64  # type: ignore[misc]
            shard.reshard(source, target, disk=KillingDisk(call), max_open=2, segment_bytes=3000)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child failed with {status}"
    return status != 0


def deaths(torture_s: float) -> Iterator[int]:
    """Calls to die at: a few spread ones, and with time to spare ever more."""
    rng = random.Random(torture_s)
    yield from (1, 5, 17, 40, 90, 200)
    for _ in range(int(torture_s * 2)):
        yield rng.randrange(600)


def test_a_kill_at_any_call_loses_and_doubles_nothing(tmp_path: FilePath, torture_s: float) -> None:
    source = shard.Path(tmp_path / "root", "orders", 2)
    fill(source, 700)
    with sej.Offset(source.dir(1), "reader") as kept:
        kept.commit(20)
    expected = by_key(source)
    for round_, call in enumerate(deaths(torture_s)):
        target = shard.Path(tmp_path / f"target-{round_}", "orders", 3)
        step = call
        while _killed(source, target, step):
            step += call // 2 + 1  # the next run dies somewhere else
        assert by_key(target) == expected
        with shard.Scanner(target) as scanner:
            assert sum(1 for _ in scanner) == 700
        unread = {message.value for message in sej.Scanner(source.dir(1), 20)}
        for index in range(target.count):
            if os.path.exists(target.dir(index)):
                with sej.Scanner(target.dir(index), sej.read_offset(target.dir(index), "reader") or 0) as scan:
                    unread -= {message.value for message in scan}
        assert not unread


def test_what_comes_in_meanwhile_is_copied_too(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 4)
    came: list[int] = []

    def append_once(done: int, total: int) -> None:
        if done == total and len(came) < 2:
            came.append(done)
            fill(source, 100, 1000 * len(came))

    assert shard.reshard(source, target, progress=append_once).messages == 1200
    assert by_key(target) == by_key(source)
