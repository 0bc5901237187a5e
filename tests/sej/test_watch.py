"""Waiting for a directory: what changed is not missed, a wait ends in time, one inotify for the process."""

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from sej.system.watch import Watch
from tests.sej.hooks import Worker, output

pytestmark = pytest.mark.either_codec

LONG_S = 30.0


@pytest.mark.parametrize("what", ["append", "create", "rename", "remove", "truncate"])
def test_every_kind_of_change_ends_a_wait(what: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"something")
    with Watch(tmp_path, safety_s=LONG_S) as watch:
        assert not watch.wait(0.0)
        waiting = Worker(lambda: watch.wait(LONG_S))
        match what:
            case "append":
                with open(file, "ab") as opened_file:
                    opened_file.write(b"more")
            case "create":
                (tmp_path / "new").write_bytes(b"")
            case "rename":
                file.rename(tmp_path / "moved")
            case "remove":
                file.unlink()
            case _:
                os.truncate(file, 0)
        start = time.monotonic()
        assert waiting.result() is True
        assert time.monotonic() - start < LONG_S / 2


def test_a_change_between_two_waits_is_not_lost(tmp_path: Path) -> None:
    with Watch(tmp_path, safety_s=LONG_S) as watch:
        for n in range(10):
            (tmp_path / str(n)).write_bytes(b"")
            assert watch.wait(LONG_S)
            assert not watch.wait(0.0)


def test_the_safety_net_returns_by_itself(tmp_path: Path) -> None:
    with Watch(tmp_path, safety_s=0.02) as watch:
        start = time.monotonic()
        assert watch.wait(None) is True
        assert watch.wait(LONG_S) is True
        assert time.monotonic() - start < LONG_S / 2


@pytest.mark.parametrize("end", ["wake", "close"])
def test_another_thread_ends_a_wait(end: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path, safety_s=LONG_S)
    waiting = Worker(lambda: watch.wait(LONG_S))
    getattr(watch, end)()
    start = time.monotonic()
    waiting.result()
    assert time.monotonic() - start < LONG_S / 2
    watch.close()
    watch.close()


def test_a_missing_directory_is_polled(tmp_path: Path) -> None:
    with Watch(tmp_path / "missing") as watch:
        assert watch.polling
        assert watch.wait(LONG_S) is True, "look again: a polling watch cannot know"
        assert watch.wait(0.0) is False


def test_a_directory_that_goes_away_is_polled_from_then_on(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with Watch(gone, safety_s=0.05) as watch:
        at_first = watch.polling
        gone.rmdir()
        assert watch.wait(LONG_S)
        while not watch.polling:
            watch.wait(0.01)
        assert watch.wait(LONG_S) and not at_first


def test_an_interrupt_as_the_leader_returns_leaves_no_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(tmp_path, safety_s=LONG_S)
    real = watch._hub._lock

    class Interrupted:
        """The lock, and a signal that comes as a thread gets it again."""

        def acquire(self) -> NoReturn:
            real.acquire()
            raise KeyboardInterrupt

        def release(self) -> None:
            real.release()

        def __enter__(self) -> bool:
            return real.__enter__()

        def __exit__(self, *_: object) -> None:
            real.release()

    monkeypatch.setattr(watch._hub, "_lock", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        watch.wait(0.0)
    monkeypatch.undo()
    assert not watch._hub._leading
    waiting = Worker(lambda: watch.wait(LONG_S))
    (tmp_path / "made").touch()
    start = time.monotonic()
    assert waiting.result() is True
    assert time.monotonic() - start < LONG_S / 2
    watch.close()


FORK = """
import os, sys, threading
from sej.system.watch import Watch
path = sys.argv[1]
watch = Watch(path, safety_s=30.0)
assert not watch.wait(0.0)
holding, done = threading.Event(), threading.Event()
def hold():
    with watch._hub._lock:
        holding.set()
        done.wait()
threading.Thread(target=hold).start()
holding.wait()
child = os.fork()
if child == 0:
    watch.wait(30.0)  # perhaps for nothing
    assert not watch.wait(0.0)
    open(os.path.join(path, "child"), "w").close()
    told = watch.wait(30.0)
    watch.close()
    other = Watch(path, safety_s=30.0)
    other.wait(0.0)
    os._exit(0 if told and not other.polling else 1)
done.set()
assert os.waitpid(child, 0)[1] == 0
assert watch.wait(30.0), "what the child was told is told to the parent, too"
assert not watch.wait(0.0) and not watch.polling
open(os.path.join(path, "parent"), "w").close()
print(watch.wait(30.0), watch.polling)
"""


def test_a_forked_child_watches_by_itself(tmp_path: Path) -> None:
    assert output(FORK, tmp_path) == "True False"


FULL = """
import os, resource, sys
from sej.system.watch import Watch
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
count = lambda: len(os.listdir("/proc/self/fd"))
there = count()
for free in range(5):
    full = []
    try:
        while True:
            full.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(free):
            os.close(full.pop())
    try:
        with Watch(sys.argv[1]) as watch:
            watch.wait(0.0)
            print(free, watch.polling)
        break
    except OSError:
        for fd in full:
            os.close(fd)
        assert count() == there, "a descriptor leaked"
"""


def test_where_descriptors_run_out_none_leaks(tmp_path: Path) -> None:
    assert output(FULL, tmp_path) == "1 True"
