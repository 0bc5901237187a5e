"""The calls for each item: the compiled twin and the reference write the same files and return the same."""

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kestrel
from kestrel import segmented
from kestrel.errors import FailedError
from kestrel.fast import Fuse, Output
from sej.system.disk import File, OsFile
from tests.crash.disk import CrashDisk
from tests.house.house import ROOT, run
from tests.sej.hooks import HookedDisk

HISTORY = """
import hashlib, pathlib, random, sys, tempfile
from kestrel import fast
from tests.kestrel.support import KINDS, Two

dice = random.Random(int(sys.argv[1]))
now = [1_475_195_912_693]
results = []

def data():
    return dice.randbytes(dice.choice((0, 1, 30, 300)))

def tried(call, *arguments):
    now[0] += 1
    try:
        results.append(call(*arguments))
    except Exception as error:
        results.append((type(error).__name__, str(error)))
    return results[-1]

def history(kind, directory):
    # Checkpoints are taken by a clock that no two runs share: only at the end here.
    sizes = ({}, {"journal_bytes": 200}, {"max_memory_bytes": 900})
    if kind is not Two:
        sizes = ({"checkpoint_s": 3600}, {"checkpoint_s": 3600, "journal_bytes": 2000})
    size = dice.choice(sizes)
    for _ in range(3):
        limits = dice.choice((
            {}, {}, {"max_items": 5}, {"max_bytes": 200}, {"max_items": 4, kind.drop: True}, {"max_bytes": 0},
            {"max_age_s": 0.02},
        ))
        held = []
        with kind.opener(directory, "cars", now_ms=lambda: now[0], **size, **limits) as queue:
            readers = [kind(queue, name) for name in ([""] if kind is Two else "ab")]
            for _ in range(80):
                q, step = dice.choice(readers), dice.randrange(10)
                if step < 3:
                    tried(q.put, dice.choice((data(), bytearray(b"array"), "text")) if step else data())
                elif step == 3:
                    tried(q.put, data(), dice.choice((None, now[0] + 20)))
                elif step == 4:
                    tried(dice.choice((q.peek, q.get)))
                elif step < 7 or not held:
                    found = tried(q.take)
                    held += [(q, found[0])] if found and isinstance(found[0], int) else []
                elif step < 9:
                    q, handle = held.pop(dice.randrange(len(held)))
                    tried(q.end, handle)
                else:
                    q, handle = held.pop()
                    tried(q.back, handle)
            results.extend(q.counters() for q in readers)
            results.append(readers[0].end(12345))

for kind in KINDS:
    with tempfile.TemporaryDirectory() as directory:
        history(kind, directory)
        for path in sorted(pathlib.Path(directory).rglob("*")):
            if path.is_file() and "~~" not in path.name:
                results.append((path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
        results = [str(result).replace(directory, "") for result in results]
print(fast.Fuse.__module__)
print(*results, sep="\\n")
"""


def told(codec: str, seed: int) -> list[str]:
    done = run([sys.executable, "-c", HISTORY, str(seed)], ROOT, SEJ_CODEC=codec)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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


def interrupting(armed: list[str]) -> HookedDisk:
    """A disk with a write that a signal interrupts, before or after its bytes are in the file: armed says which."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if armed and verb == "write" and file is not None:
            if armed.pop() == "after":
                file.write(data)
            raise Interrupt

    return HookedDisk(hook, CrashDisk())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["put", "get", "reserve", "confirm"])
def test_an_interrupted_write_stops_a_queue_until_it_is_reopened(name: str, when: str) -> None:
    armed: list[str] = []
    disk = interrupting(armed)
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
    armed.append(when)
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
    armed: list[str] = []
    disk = interrupting(armed)
    with segmented.Queue("/q", "jobs", disk=disk) as queue:
        reader = queue.reader()
        queue.put(b"one")
        queue.put(b"two")
        item = reader.get()
        assert item is not None
        armed.append(when)
        with pytest.raises(Interrupt):
            reader.commit(item)
        assert reader.holds(item)
        assert reader.commit(item)
        armed.append(when)
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
    log = Output(fuse)
    log.aim(OsFile(writing, "pipe"))
    writer = threading.Thread(target=log.out, args=(b"record",), daemon=True)
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
