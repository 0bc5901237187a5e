"""The calls for each item: the compiled twin and the reference write the same files and return the same."""

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import kestrel
from kestrel import segmented
from kestrel.errors import FailedError
from kestrel.fast import Fuse, Log
from kestrel.segmented.codec import Item
from sej.system.disk import File, OsFile
from tests.crash.disk import CrashDisk

HISTORY = """
import hashlib, pathlib, random, sys, tempfile
import kestrel
from kestrel import fast, segmented

dice = random.Random(int(sys.argv[1]))
now = [1_475_195_912_693]
clock = lambda: now[0]
results = []

def data():
    return dice.randbytes(dice.choice((0, 1, 30, 300)))

def tried(call, *arguments, **options):
    now[0] += 1
    try:
        results.append(call(*arguments, **options))
    except Exception as error:
        results.append((type(error).__name__, str(error)))
    return results[-1]

def limits(drop):
    return dice.choice((
        {}, {}, {"max_items": 5}, {"max_bytes": 200}, {"max_items": 4, drop: True}, {"max_bytes": 0},
        {"max_age_s": 0.02},
    ))

def kestrel_2(directory):
    sizes = dice.choice(({}, {"journal_bytes": 200}, {"max_memory_bytes": 900}))
    for _ in range(3):
        held = []
        with kestrel.Queue(directory, "cars", now_ms=clock, **sizes, **limits("discard_oldest")) as queue:
            for _ in range(60):
                step = dice.randrange(8)
                if step < 3:
                    tried(queue.put, dice.choice((data(), bytearray(b"array"), "text")) if step else data())
                elif step == 3:
                    tried(queue.put, data(), expiry=dice.choice((0, clock() + 20)))
                elif step == 4:
                    tried(queue.get)
                elif step == 5:
                    found = tried(queue.reserve)
                    held += [found[0]] if isinstance(found, tuple) and isinstance(found[0], int) else []
                elif step == 6 and held:
                    tried(queue.confirm, held.pop(dice.randrange(len(held))))
                elif held:
                    tried(queue.unreserve, held.pop())
            results.append(queue.counters())
            results.append(queue.confirm(12345))

def libkestrel(directory):
    sizes = dice.choice(({}, {"journal_bytes": 2000}))
    for _ in range(3):
        held = []
        # Checkpoints are taken by a clock that no two runs share: only at the end here.
        some = limits("drop_oldest")
        with segmented.Queue(directory, "jobs", now_ms=clock, checkpoint_s=3600, **sizes, **some) as queue:
            for _ in range(60):
                reader = queue.reader(dice.choice(("a", "b")))
                step = dice.randrange(8)
                if step < 3:
                    tried(queue.put, dice.choice((data(), bytearray(b"array"), "text")) if step else data())
                elif step == 3:
                    tried(queue.put, data(), expire_time=clock() + 20)
                elif step == 4:
                    found = tried(reader.peek)
                elif step == 5 or not held:
                    found = tried(reader.get)
                    held += [(reader, found)] if isinstance(found, segmented.Item) else []
                elif step == 6:
                    reader, item = held.pop(dice.randrange(len(held)))
                    tried(reader.commit, dice.choice((item, item.id)))
                else:
                    reader, item = held.pop()
                    tried(reader.unget, item)
            results.extend(queue.reader(name).counters() for name in queue.readers)

for history in (kestrel_2, libkestrel):
    with tempfile.TemporaryDirectory() as directory:
        history(directory)
        for path in sorted(pathlib.Path(directory).rglob("*")):
            if path.is_file() and "~~" not in path.name:
                results.append((path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
        results = [str(result).replace(directory, "") for result in results]
print(fast.Fuse.__module__)
print(*results, sep="\\n")
"""


def told(codec: str, seed: int) -> list[str]:
    command = [sys.executable, "-c", HISTORY, str(seed)]
    environment = {**os.environ, "SEJ_CODEC": codec}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.both_codecs
@pytest.mark.parametrize("seed", range(6))
def test_the_twins_write_and_return_the_same(seed: int) -> None:
    compiled, reference = told("c", seed), told("python", seed)
    assert compiled[0] == "kestrel.fast._hot_c"
    assert reference[0] == "kestrel.fast.reference"
    assert len(compiled) > 300
    assert compiled[1:] == reference[1:]


class Interrupt(BaseException):
    """What a signal's handler raises."""


class Interrupting(CrashDisk):
    """A disk with a write that a signal interrupts, before or after its bytes are in the file."""

    armed: str | None = None

    def open(self, path: Any, mode: Any) -> Any:
        found = super().open(path, mode)
        return _Interrupting(self, found) if mode in ("append", "new") else found


class _Interrupting:
    def __init__(self, disk: Interrupting, file: File) -> None:
        self._disk, self._inner = disk, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writer(self) -> Callable[[bytes], int]:
        write, disk = self._inner.writer(), self._disk

        def interrupted(data: bytes) -> int:
            when, disk.armed = disk.armed, None
            if when == "before":
                raise Interrupt
            done = write(data)
            if when == "after":
                raise Interrupt
            return done

        return interrupted


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["put", "get", "reserve", "confirm"])
def test_an_interrupted_write_stops_a_queue_until_it_is_reopened(name: str, when: str) -> None:
    disk = Interrupting()
    queue = kestrel.Queue("/q", "cars", disk=disk)
    for number in range(3):
        queue.put(b"%d" % number)
    held = queue.reserve()
    assert held is not None
    steps: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(b"new"),
        "get": queue.get,
        "reserve": queue.reserve,
        "confirm": lambda: queue.confirm(held[0]),
    }
    disk.armed = when
    with pytest.raises(Interrupt):
        steps[name]()
    for step in steps.values():
        with pytest.raises(FailedError, match="interrupted"):
            step()
    queue.close()
    whole = {"put": b"new", "get": b"1", "reserve": b"1", "confirm": b"0"}[name]
    due = [b"0", b"1", b"2"]
    if when == "after" and name == "put":
        due.append(whole)
    elif when == "after" and name != "reserve":
        due.remove(whole)
    with kestrel.Queue("/q", "cars", disk=disk) as queue:
        assert sorted(item.data for item in iter(queue.get, None)) == due


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_commit_may_be_repeated(when: str) -> None:
    disk = Interrupting()
    with segmented.Queue("/q", "jobs", disk=disk) as queue:
        reader = queue.reader()
        queue.put(b"one")
        queue.put(b"two")
        item = reader.get()
        assert item is not None
        disk.armed = when
        with pytest.raises(Interrupt):
            reader.commit(item)
        assert reader.holds(item)
        assert reader.commit(item)
        disk.armed = when
        with pytest.raises(Interrupt):
            queue.put(b"three")
        with pytest.raises(FailedError, match="interrupted"):
            reader.get()
    with segmented.Queue("/q", "jobs", disk=disk) as queue:
        left = [item.data for item in iter(queue.reader().get, None)]
    assert left == [b"two", b"three"][: 1 + (when == "after")]


def test_a_write_that_blocks_lets_other_threads_run() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, bytes(1 << 12)):
            pass
    os.set_blocking(writing, True)
    fuse = Fuse("queue")
    fuse.live = True
    log = Log(fuse, 1)
    log.output.aim(OsFile(writing, "pipe"))
    writer = threading.Thread(target=log.append, args=(b"record",), daemon=True)
    writer.start()
    while not os.read(reading, 1 << 16).endswith(b"record"):
        pass
    writer.join()
    assert log.grown == len(b"record")
    os.close(reading)


@pytest.mark.parametrize("room", [0, 4])
@pytest.mark.parametrize("call", ["put", "commit"])
def test_a_file_that_cannot_grow_takes_a_part_of_a_record(call: str, room: int, tmp_path: Path) -> None:
    queue = segmented.Queue(tmp_path, "jobs", checkpoint_s=3600)
    with contextlib.closing(queue):
        for data in (b"0", b"1", b"2"):
            queue.put(data)
        reader = queue.reader()
        items = [reader.get() for _ in range(3)]
        assert items[0] is not None
        assert items[1] is not None
        assert reader.commit(items[0])
        pattern = "jobs~~read.*" if call == "commit" else "jobs.[0-9]*"
        (path,) = tmp_path.glob(pattern)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = path.stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            with pytest.raises(FailedError, match="File too large"):
                _ = queue.put(b"3") if call == "put" else reader.commit(items[1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.stat().st_size == size + room
        with pytest.raises(FailedError, match="File too large"):
            queue.put(b"3")
    with segmented.Queue(tmp_path, "jobs") as queue:
        assert [item.data for item in iter(queue.reader().get, None)] == [b"1", b"2"]


# --- Decoding blocks of records, of both formats: the compiled table and the reference agree, at every limit

INT64 = st.integers(-(2**63), 2**63 - 1)
ITEMS = st.builds(Item, INT64, INT64, st.none() | INT64, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40))
