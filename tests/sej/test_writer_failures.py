"""A writer that fails stays failed; what was acknowledged stays; reopening works. Forks, forgotten writers."""

import errno
import gc
import json
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import LockLostError, WriterFailedError
from sej.system.disk import File
from sej.system.lifecycle import Lifecycle
from tests.sej.hooks import HookedDisk, Worker, output, until
from tests.sej.interrupts import locked_below, open_below, uncollected
from tests.sej.support import CALLS, encoded, read_all, segment, values


class Failing(HookedDisk):
    """Fails once, at the next call of a verb, when it is armed."""

    def __init__(self) -> None:
        super().__init__(self.strike)
        self.armed = ""
        self.number = errno.EIO
        self.short = False

    def strike(self, verb: str, file: File | None, data: bytes) -> None:
        if verb == self.armed:
            self.armed = ""
            if self.short and file is not None:
                file.write(data[: len(data) // 2])
            raise OSError(self.number, os.strerror(self.number))


def assert_poisoned(w: sej.Writer) -> None:
    for call in CALLS.values():
        with pytest.raises(WriterFailedError):
            call(w)


@pytest.mark.parametrize(("number", "short"), [(errno.EIO, False), (errno.ENOSPC, True)])
@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
def test_a_failed_write_says_what_is_lost_and_leaves_a_clean_tail(
    durability: Any, number: int, short: bool, tmp_path: Path
) -> None:
    """Whatever fails, the writer stays failed: tests/crash/test_faults.py."""
    disk = Failing()
    w = sej.Writer(tmp_path, durability=durability, disk=disk)
    w.append_many([b"good"] * 3)
    w.flush()
    disk.armed, disk.short, disk.number = "write", short, number

    def doomed() -> None:
        w.append_many([b"%d" % n * 50 for n in range(9)])
        w.flush()

    says = rf"{os.strerror(number)}.*; .*then open the journal again"
    for call in (doomed, w.sync):
        with pytest.raises(WriterFailedError, match=says) as raised:
            call()
        lost = (raised.value.path, raised.value.offset, raised.value.position)
        assert lost == (str(segment(tmp_path, 0)), 3, 3 * len(encoded(0, 0, 0, b"", b"good")))
    assert_poisoned(w)
    w.close()
    assert sej.Journal(tmp_path).verify() == [], "no torn tail is left behind"
    found = values(read_all(tmp_path))
    assert found == [b"good"] * 3 + [b"%d" % n * 50 for n in range(len(found) - 3)], "whole messages, in order"
    with sej.Writer(tmp_path) as again:
        assert again.recovery is None and again.append(b"next") == len(found)


def test_every_thread_that_waits_for_a_failed_sync_gets_the_error(tmp_path: Path) -> None:
    calls = 0

    def hook(verb: str, *_: object) -> None:
        nonlocal calls
        if verb == "sync" and started:
            calls += 1
            until(lambda: w.offset == 4)
            raise OSError(errno.EIO, "gone")

    started = False
    w = sej.Writer(tmp_path, durability="disk", disk=HookedDisk(hook))
    started = True
    workers = [Worker(lambda: w.append(b"v")) for _ in range(4)]
    for worker in workers:
        with pytest.raises(WriterFailedError):
            worker.result()
    assert calls == 1 and w.durable_offset == 0
    w.close()


def test_a_sync_that_fails_in_the_background_is_reported_by_the_next_call(tmp_path: Path) -> None:
    disk = Failing()
    w = sej.Writer(tmp_path, durability="interval", sync_interval_s=0.001, disk=disk)
    disk.armed = "sync"
    w.append(b"v")
    until(lambda: disk.armed == "" and "failed" in repr(w))
    assert_poisoned(w)
    w.close()


@pytest.mark.parametrize("kind", [sej.Writer, sej.SharedWriter])
@pytest.mark.parametrize("of_the_block", [False, True])
def test_a_sync_that_fails_in_the_background_is_reported_at_the_latest_by_close(
    kind: Any, of_the_block: bool, tmp_path: Path
) -> None:
    """Unless the block raises another error."""
    disk = Failing()

    def doomed() -> None:
        with kind(tmp_path, durability="interval", sync_interval_s=0.001, disk=disk) as w:
            life: Lifecycle = w.life if kind is sej.SharedWriter else w.end.life
            w.append(b"u")
            until(lambda: w.durable_offset == 1)
            disk.armed = "sync"
            w.append(b"v")
            until(lambda: disk.armed == "" and life.unreported)
            if of_the_block:
                raise KeyError("of the block")

    with pytest.raises(KeyError if of_the_block else WriterFailedError, match=r"of the block|failed: .*output error"):
        doomed()
    with sej.Writer(tmp_path) as again:  # the lock was released
        assert again.offset == 2


LIMITED = """
import resource, sys, json, sej
w = sej.Writer(sys.argv[1], durability=sys.argv[2])
w.append(b"good")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
done, error = 1, ""
try:
    while True:
        w.append(b"%04d" % done * 50)
        done += 1
except sej.WriterFailedError as found:
    error = str(found)
try:
    w.close()
except sej.WriterFailedError as found:
    pass
print(json.dumps([done, error]))
"""


@pytest.mark.parametrize("durability", ["buffer", "os", "disk"])
def test_the_kernels_own_short_write_leaves_whole_messages(durability: str, tmp_path: Path) -> None:
    done, error = json.loads(output(LIMITED, tmp_path, durability))
    assert "File too large" in error
    found = values(read_all(tmp_path))
    assert sej.Journal(tmp_path).verify() == []
    assert found == [b"good", *(b"%04d" % n * 50 for n in range(1, len(found)))]
    assert durability == "buffer" or len(found) == done
    with sej.Writer(tmp_path) as w:
        assert w.recovery is None and w.append(b"next") == len(found)


def test_an_index_that_cannot_be_written_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "idx").write_bytes(b"a file where a directory is due")
    with sej.Writer(tmp_path, segment_bytes=64) as w:
        for value in (b"v", b"w"):
            caplog.clear()
            w.append(value * 100)
            assert "could not be written" in caplog.text
    assert values(read_all(tmp_path)) == [b"v" * 100, b"w" * 100]


# --- the lock goes away


LOSING: dict[str, Callable[[sej.Writer], object]] = {
    "sync": lambda w: w.sync(),
    "rotate": lambda w: w.append(b"v" * 100),
    "append": lambda w: [w.append(b"v") for _ in iter(int, 1)],  # a tenth of a second of appends
}


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("call", LOSING)
def test_a_lost_lock_is_noticed_while_writing(call: str, replaced: bool, tmp_path: Path) -> None:
    w = sej.Writer(tmp_path, segment_bytes=64 if call == "rotate" else 1 << 30)
    w.append(b"mine")
    (tmp_path / "jnl.lck").unlink()
    if replaced:
        (tmp_path / "jnl.lck").touch()
    with pytest.raises(LockLostError, match="removed or replaced"):
        LOSING[call](w)
    assert_poisoned(w)
    assert len(list((tmp_path / "jnl").iterdir())) == 1
    w.close()
    assert (tmp_path / "jnl.lck").exists() == replaced, "a failed writer creates no lock file"


@pytest.mark.parametrize("change", ["close", "rotate"])
def test_a_segment_that_is_removed_is_noticed_when_it_ends(tmp_path: Path, change: str) -> None:
    w = sej.Writer(tmp_path, durability="buffer", segment_bytes=1000)
    w.append(b"v")
    w.sync()
    segment(tmp_path, 0).unlink()
    w.append(b"v")
    with pytest.raises(sej.WriterFailedError, match="removed while a writer appended"):
        w.close() if change == "close" else w.append(bytes(2000))
    w.close()
    assert list((tmp_path / "jnl").iterdir()) == [], "nothing follows what is lost"


@pytest.mark.parametrize("kind", [sej.Writer, sej.SharedWriter])
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_segment_that_is_removed_is_noticed_while_writing(
    tmp_path: Path, kind: type[sej.Writer] | type[sej.SharedWriter], durability: Any
) -> None:
    w = kind(tmp_path, durability=durability)
    w.append(b"v")
    segment(tmp_path, 0).unlink()

    def doomed() -> None:
        w.append(b"v")
        assert (kind, durability) != (sej.Writer, "disk"), "it syncs before it acknowledges, and looks before that"
        while True:  # a tenth of a second of appends
            w.append(b"v")

    with pytest.raises(sej.WriterFailedError, match="removed while a writer appended") as first:
        doomed()
    assert str(segment(tmp_path, 0)) in str(first.value)
    for _ in range(3):
        with pytest.raises(sej.WriterFailedError, match="removed while a writer appended"):
            w.append(b"v")
    w.close()
    with kind(tmp_path) as w:
        assert w.append(b"again") == 0
    assert values(read_all(tmp_path)) == [b"again"]


# --- forks and forgotten writers


@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
def test_a_writer_releases_its_lock_though_a_forked_child_has_its_descriptors(durability: Any, tmp_path: Path) -> None:
    """Calls of the child are refused: tests/crash/test_forks.py."""
    w = sej.Writer(tmp_path, durability=durability)
    w.append(b"parent")
    parent, forked = socket.socketpair()
    if (child := os.fork()) == 0:
        w.close()
        forked.send(b"closed")
        forked.recv(1)  # the parent has opened the journal again
        os._exit(0)
    parent.recv(6)
    with pytest.raises(sej.LockedError):
        sej.Writer(tmp_path)
    w.append(b"parent again")
    w.close()
    sej.Writer(tmp_path).close()
    parent.send(b".")
    assert os.waitpid(child, 0)[1] == 0
    for end in (parent, forked):
        end.close()
    assert values(read_all(tmp_path)) == [b"parent", b"parent again"]


BUSY = """
import os, signal, sys, threading, sej
w = getattr(sej, sys.argv[2])(sys.argv[1])
w.append(b"parent")
holding, done = threading.Event(), threading.Event()
def hold():
    with getattr(w, "end", w).life.mutex:
        holding.set()
        done.wait()
threading.Thread(target=hold).start()
holding.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    for call in (lambda: w.append(b"child"), lambda: w.append_many([b"child"]), w.sync):
        try:
            call()
        except sej.ClosedError:
            continue
        os._exit(1)
    os._exit(0)
done.set()
print(os.waitpid(child, 0)[1])
w.close()
"""


@pytest.mark.parametrize("kind", ["Writer", "SharedWriter"])
def test_a_forked_child_is_refused_while_another_thread_was_at_work(kind: str, tmp_path: Path) -> None:
    assert output(BUSY, tmp_path, kind) == "0"


@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
@uncollected()
def test_a_forgotten_writer_is_closed_immediately_with_a_warning_and_loses_nothing(
    tmp_path: Path, durability: Any
) -> None:
    w = sej.Writer(tmp_path, durability=durability)
    w.append(b"v")
    end = weakref.ref(w.end)
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
    assert locked_below(tmp_path) == open_below(tmp_path) == []
    assert end() is None
    assert values(read_all(tmp_path)) == [b"v"]


@uncollected()
def test_a_writer_lives_as_long_as_its_append(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="never closed"):
        assert sej.Writer(tmp_path).append(b"a") == 0
    append = sej.Writer(tmp_path, durability="buffer").append
    assert append(b"b") == 1
    with pytest.raises(sej.LockedError):
        sej.Writer(tmp_path)
    with pytest.warns(ResourceWarning, match="never closed"):
        del append
    assert values(read_all(tmp_path)) == [b"a", b"b"]
    assert locked_below(tmp_path) == []


def forget(kept: list[Any]) -> None:
    """Forget and collect objects where the warning is expected: by itself, the collector may run before."""
    kept.clear()
    gc.collect()


def test_a_forgotten_writer_that_failed_releases_its_locks(tmp_path: Path) -> None:
    disk = Failing()
    kept = [sej.Writer(tmp_path, disk=disk)]
    kept[0].append(b"v")
    disk.armed = "write"
    with pytest.raises(sej.WriterFailedError):
        kept[0].append(b"bad")
    with pytest.warns(ResourceWarning, match="never closed"):
        forget(kept)  # the frames of the failure may hold the writer, so collect it
    assert locked_below(tmp_path) == []


AT_THE_END = """
import sys
import sej

class Kept:  # in a cycle, which the interpreter breaks after it has dropped all modules
    def __init__(self):
        self.me = self
        self.writers = [sej.Writer(f"{sys.argv[1]}/{n}", durability="buffer") for n in (1, 300)]

kept = Kept()
for writer, count in zip(kept.writers, (1, int(sys.argv[2]))):
    writer.append_many([bytes(1000)] * count)
"""


@pytest.mark.parametrize("count", [1, 300], ids=["no block has ended", "blocks have ended"])
def test_a_writer_that_lives_until_the_interpreter_ends_is_closed_without_an_error(tmp_path: Path, count: int) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    for journal, expected in ((tmp_path / "1", 1), (tmp_path / "300", count)):
        assert len(read_all(journal)) == expected
        assert sej.Journal(journal).verify() == []


def test_a_forgotten_writer_that_syncs_in_the_background_ends_with_its_thread(tmp_path: Path) -> None:
    w = sej.Writer(tmp_path, durability="interval", sync_interval_s=0.001)
    w.append(b"v")
    shared = sej.SharedWriter(tmp_path / "shared", durability="interval", sync_interval_s=0.001)
    shared.append(b"v")
    threads = [w.end.syncer._thread, shared._syncer._thread]
    kept = [w, shared]
    del w, shared

    def ended() -> bool:
        forget(kept)
        return not any(thread is not None and thread.is_alive() for thread in threads)

    with pytest.warns(ResourceWarning, match="never closed"):
        until(ended)
    assert values(read_all(tmp_path)) == [b"v"]
    sej.Writer(tmp_path).close()


@uncollected()
@pytest.mark.parametrize("durability", ["os", "interval", "disk"])
def test_a_closed_writer_is_freed_without_the_garbage_collector(durability: Any, tmp_path: Path) -> None:
    def use() -> weakref.ref[object]:
        with sej.Writer(tmp_path, durability=durability) as w:
            w.append(b"v")
            w.sync()
        return weakref.ref(w.end)

    assert use()() is None
