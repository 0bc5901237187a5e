"""A signal handler anywhere in an operation: one that raises, one that uses the queue, one that closes it.

Afterwards the locks are free, the operation has happened or not, and the state in memory is the state of the files. The
object continues as one that was just opened would.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import Mode, OsDisk, OsFile
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import Worker, until
from tests.sej.interrupts import KINDS, Interrupt, free, interrupt, locked_below, open_below, places

PACKAGE = os.path.dirname(sej.__file__) + os.sep
MODULES = ("queue/", "writing/shared_")
DISK = "system/file.py"
CALLS = ("lock", "read", "status", "unlock", "write", "write_at")
"""Where the handler comes: in the modules of the queue, and in what locks and writes its files."""


def handled(step: Callable[[], object], place: int, handler: Callable[[], object]) -> bool:
    """Run a step, with a handler at its place-th place; whether it got so far."""
    left = [place]

    def at(frame: FrameType, event: str, _: object) -> None:
        module, name = frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_name
        inside = module.startswith(MODULES) or (module == DISK and name in CALLS)
        if inside and event in ("call", "c_return") and left[0]:
            left[0] -= 1
            if not left[0]:
                sys.setprofile(None)
                handler()

    sys.setprofile(at)
    try:
        step()
    except sej.SejError:
        pass
    finally:
        sys.setprofile(None)
    return not left[0]


class QuickFile(OsFile):
    """A real file that is never synced: no power is lost here."""

    def sync(self) -> None:
        """Nothing."""


class QuickDisk(OsDisk):
    """The real disk, without the waiting."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        """Open a file."""
        file = super().open(path, mode)
        quick = QuickFile(os.dup(file.fileno()), file.path)
        file.close()
        return quick

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        """Nothing."""


class Stage:
    """A queue with everything in it, and another one that looks at the same files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.q, self.other = (opened(path, self.clock, QuickDisk(), compact_bytes=300, lease_s=60) for _ in range(2))
        self.q.put_many([b"held", b"dead", b"fresh", b"fresher"])
        self.held = self.q.get_many(2, timeout=0)
        self.held.pop().fail()
        self.q.put(b"first", priority=1)
        self.q.put(b"last", priority=-1)

    def leave(self) -> None:
        self.q.close()
        self.other.close()

    def judge(self, new: bytes | None, gone: bytes | None) -> None:
        """The locks are free, both queues say the same, and everything is there once."""
        assert free(os.path.join(self.path, "ofs", "worker.queue.lck"))
        assert free(os.path.join(self.path, "jnl.lck"))
        who = self.other if self.q._core.life.closed else self.q
        assert who.stats() == self.other.stats()
        self.clock.move(61)
        found: Counter[bytes] = Counter()
        for _ in range(2):
            while items := who.get_many(3, timeout=0):
                found.update(item.value for item in items)
                who.done_many(items)
            who.redrive()
        expected = {b"held", b"dead", b"fresh", b"fresher", b"first", b"last"}
        others = {b"by the handler", b"of a thread"}
        assert all(many == 1 for what, many in found.items() if what not in others), found
        assert expected - {gone} <= set(found) <= expected | {new} | others, found
        who.put(b"on")
        (item,) = who.get_many(2, timeout=0)
        item.done()
        assert sej.Journal(self.path).verify() == []


STEPS: dict[str, tuple[Callable[[Stage], object], bytes | None, bytes | None]] = {
    "put": (lambda stage: stage.q.put(b"new"), b"new", None),
    "put many": (lambda stage: stage.q.put_many([b"new"]), b"new", None),
    "put first": (lambda stage: stage.q.put(b"new", priority=2, dedupe_key=b"key"), b"new", None),
    "get": (lambda stage: stage.q.get_many(3, timeout=0), None, None),
    "done": (lambda stage: stage.held[0].done(), None, b"held"),
    "done many": (lambda stage: stage.q.done_many(stage.held), None, b"held"),
    "retry": (lambda stage: stage.held[0].retry(), None, None),
    "fail": (lambda stage: stage.held[0].fail("why"), None, None),
    "extend": (lambda stage: stage.held[0].extend(60), None, None),
    "stats": (lambda stage: stage.q.stats(), None, None),
    "redrive": (lambda stage: stage.q.redrive(), None, None),
}


EVERY = {"put": 2, "put many": 3, "put first": 11, "get": 19, "done": 2, "done many": 3, "retry": 3, "fail": 197}
EVERY |= {"extend": 3, "stats": 17, "redrive": 197}
"""How many places lie between two that the tests come to; in torture none do."""


def step_interrupted(path: Path, name: str, place: int, kind: type[BaseException]) -> bool:
    """Interrupt a step at one place, and see that nothing is left; whether it got so far."""
    step, new, gone = STEPS[name]
    stage = Stage(path / str(place))
    reached, error = interrupt(partial(step, stage), place, kind)
    if reached:
        assert type(error) is kind, f"{name} at its place {place}: {error!r}"
        held = {"ofs/worker.lck", "ofs/worker.slots/0.lck", "ofs/worker.slots/1.lck"}
        assert set(locked_below(stage.path)) == held, f"{name} at its place {place}"
    in_time(lambda: stage.q.put(b"of a thread"))
    stage.judge(new, gone)
    stage.leave()
    return reached


UNSTORED = pytest.mark.filterwarnings("ignore:the writer of .*/dead/worker was never closed:ResourceWarning")
"""A writer of dead letters that was returned, and not stored because of the exception, is closed with a warning."""


@UNSTORED
@pytest.mark.parametrize("name", STEPS)
def test_an_exception_leaves_no_lock_and_no_doubt(tmp_path: Path, name: str) -> None:
    step_interrupted(tmp_path, name, -1, Interrupt)  # what is imported at its first call
    for place, kind in places(1, 1 if "SEJ_TORTURE_S" in os.environ else EVERY[name]):
        if not step_interrupted(tmp_path, name, place, kind):
            break
    assert place > 30


def test_a_search_for_the_end_that_is_interrupted_leaves_no_lock(tmp_path: Path) -> None:
    """The file that was open before stays open, and locks live as long as it."""
    with sej.SharedWriter(tmp_path, disk=QuickDisk()) as w:
        w.append(b"first")
        for place, kind in places():
            w._appender._look_at = 0.0
            w._appender.buffer.doubt()  # as an exclusive writer that was here, or an interrupt, leaves it
            reached, _ = interrupt(partial(w.append, b"v"), place, kind)
            assert locked_below(tmp_path) == [], place
            if not reached:
                break
        assert place > 100


@pytest.mark.parametrize(
    ("kind", "act", "lock"),
    [
        (sej.Offset, lambda stage: stage.q.redrive(), "redrive"),
        (sej.Writer, lambda stage: stage.held[0].fail("why"), "dead"),
    ],
)
def test_an_exit_that_is_interrupted_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, act: Any, lock: str
) -> None:
    """The frames of the error keep the object: it must not take their end to release its lock."""

    def interrupted(*_: object) -> None:
        raise Interrupt

    stage = Stage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "__exit__", interrupted)
        with pytest.raises(Interrupt) as caught:
            act(stage)
    assert not [name for name in locked_below(stage.path) if lock in name], caught
    stage.leave()


@pytest.mark.torture
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a handler may run within a __del__
def test_real_signals(tmp_path: Path, torture_s: float) -> None:
    """A handler that raises at random moments, while another thread puts, takes and ends items."""
    armed, over = [False], threading.Event()
    put: set[bytes] = set()
    ended: set[bytes] = set()
    perhaps: set[bytes] = set()
    chance = random.Random(1)

    def handler(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KINDS[chance.randrange(len(KINDS))]

    def interrupted(act: Callable[[], object]) -> object:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.choice([2e-5, 1e-4, 3e-4, 1e-3]))
                armed[0] = True
                return act()
            finally:
                armed[0] = False
        except tuple(KINDS):
            return None

    def work(q: JournalQueue, name: str) -> None:
        for n in count():
            if over.is_set():
                return
            value = b"%s %d" % (name.encode(), n)
            q.put(value)
            put.add(value)
            item = q.get(timeout=0)
            if item is not None:
                perhaps.add(item.value)
                with suppress(sej.LeaseLostError):
                    item.done()
                    ended.add(item.value)

    # What is imported at its first use is imported here: an interrupt within the import system is not the point.
    with opened(tmp_path / "first", FakeClock(), QuickDisk(), compact_bytes=3000, segment_bytes=10000) as q:
        for n in range(200):
            q.put(b"%d" % n, priority=n % 2)
            q.done_many(q.get_many(2, timeout=0))
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with opened(tmp_path / "q", FakeClock(), QuickDisk(), compact_bytes=3000, segment_bytes=10000) as q:
            other = Worker(lambda: work(q, "thread"))
            until_s = time.monotonic() + torture_s
            for n in count():
                if time.monotonic() > until_s:
                    break
                value = b"main %d" % n
                if interrupted(partial(q.put, value, priority=n % 2)) is not None:
                    put.add(value)
                items: Any = interrupted(partial(q.get_many, 2, timeout=0)) or []
                for item in items:
                    perhaps.add(item.value)
                    interrupted(item.done)
            over.set()
            other.result()
    finally:
        over.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert locked_below(tmp_path / "q") == []
    found: Counter[bytes] = Counter()
    with opened(tmp_path / "q", FakeClock(), QuickDisk()) as q:
        while items := q.get_many(100, timeout=0):
            found.update(item.value for item in items)
            q.done_many(items)
    assert set(found) & ended == set(), "what was done came back"
    assert put - set(found) <= perhaps, "items were lost"
    assert max(found.values(), default=1) == 1
    assert sej.Journal(tmp_path / "q").verify() == []


def test_a_close_that_is_interrupted_is_finished_by_the_next_one(tmp_path: Path) -> None:
    for place, kind in places(1, 5):
        path = tmp_path / str(place)  # an error that is not collected yet may hold files of the place before
        q = opened(path, FakeClock(), QuickDisk(), durability="disk" if place % 2 else "os")
        q.put_many([b"a", b"b"])
        assert q.get(timeout=0) is not None
        before = set(open_below(path))
        reached, error = interrupt(q.close, place, kind)
        assert reached == (error is not None) and (error is None or type(error) is kind), (place, error)
        q.close()
        assert locked_below(path) == [], place
        assert set(open_below(path)) <= before & {"jnl/0000000000000000.jnl"} or error is not None, place
        with pytest.raises(sej.ClosedError):
            q.put(b"c")
        with opened(path, FakeClock(), QuickDisk()) as again:
            assert again.stats().leased == 0
            again.purge()
        if not reached:
            break
    assert place > 100


def test_at_the_end_of_a_with_block_a_close_that_is_interrupted_is_finished(tmp_path: Path) -> None:
    def use() -> None:
        with q:
            pass

    for place, kind in places(1, 31):
        path = tmp_path / str(place % 7)
        q = opened(path, FakeClock(), QuickDisk())
        reached, error = interrupt(use, place, kind)
        if not reached:
            break
        if place > 1:  # else it was raised before the block
            assert type(error) is kind
            assert locked_below(path) == [], place
        q.close()
    assert place > 100


def test_an_opening_that_is_interrupted_leaves_no_lock(tmp_path: Path) -> None:
    opened(tmp_path / "warm", FakeClock(), QuickDisk()).close()
    there: list[JournalQueue] = []
    for place, kind in places(1, 41):
        path = tmp_path / str(place % 5)  # new ones, and ones that were there
        reached, error = interrupt(lambda: there.append(opened(path, FakeClock(), QuickDisk())), place, kind)  # noqa: B023
        assert reached == (error is not None), place
        while there:
            there.pop().close()
        if error is not None:
            assert type(error) is kind, (place, error)
            assert not path.exists() or locked_below(path) == [], place
        with opened(path, FakeClock(), QuickDisk()) as q:
            q.put(b"a")
            assert q.stats().leased == 0
        if not reached:
            break
    assert place > 500


def test_the_modules_where_handlers_come_exist() -> None:
    there = [path.relative_to(PACKAGE).as_posix() for path in Path(PACKAGE).rglob("*.py")]
    assert DISK in there
    assert [start for start in MODULES if not any(path.startswith(start) for path in there)] == []


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("act", ["use", "close"])
def test_a_handler_that_uses_or_closes_the_queue_is_refused_in_the_middle(tmp_path: Path, name: str, act: str) -> None:
    step, new, gone = STEPS[name]
    for place in count(1, 3 if "SEJ_TORTURE_S" in os.environ else 11):
        stage = Stage(tmp_path / str(place))
        closed: list[bool] = []
        handler = partial(close, stage.q, closed) if act == "close" else partial(use, stage.q)
        reached = handled(partial(step, stage), place, handler)
        assert stage.q._core.life.closed == (closed == [True])
        stage.judge(new, gone)
        stage.leave()
        if not reached:
            break


def close(q: JournalQueue, closed: list[bool]) -> None:
    try:
        q.close()
        closed.append(True)
    except sej.LockedError:
        closed.append(False)


def use(q: JournalQueue) -> None:
    for act in (q.stats, partial(q.put, b"by the handler"), partial(q.get, 0)):
        with suppress(sej.LockedError):
            act()


def in_time(act: Callable[[], object]) -> None:
    """Run it in a thread, and see that it ends."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_handler_closes_a_queue_whose_background_thread_waits_for_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = opened(tmp_path, FakeClock(), durability="interval", sync_interval_s=3600)
    syncer = q._core.syncer
    refused: list[BaseException] = []
    q.put(b"a", priority=1)
    log = q._core.log
    sync = log.sync_some

    def close() -> int:
        monkeypatch.setattr(log, "sync_some", sync)
        syncer.request()
        until(lambda: len(syncer._waiting) > 0)
        q.close()
        return sync()

    def begin() -> None:
        monkeypatch.setattr(log, "sync_some", close)
        try:
            q.sync()
        except sej.ClosedError as error:
            refused.append(error)

    in_time(begin)
    assert q._core.life.closed and len(refused) == 1 and syncer._thread is not None
    in_time(syncer._thread.join)


def test_many_threads_close_a_queue_at_once(tmp_path: Path) -> None:
    for place in range(20):
        q = opened(tmp_path / str(place), FakeClock(), QuickDisk())
        q.put_many([b"a", b"b"])
        q.get(timeout=0)
        together = threading.Barrier(4)
        failed: list[BaseException] = []

        def close(q: JournalQueue = q, together: threading.Barrier = together, failed: Any = failed) -> None:
            together.wait(60)
            try:
                q.close()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        with opened(tmp_path / str(place), FakeClock(), QuickDisk()) as again:
            assert again.stats().ready == 2


@pytest.mark.parametrize("durability", ["os", "interval"])
def test_a_sync_that_is_overtaken_by_a_close_says_so(tmp_path: Path, durability: Any) -> None:
    q = opened(tmp_path, FakeClock(), durability=durability)
    q.put(b"a", priority=1)
    sync = q._core.writer.sync

    def close() -> None:
        sync()
        q.close()

    q._core.writer.sync = close  # type: ignore[method-assign]
    with pytest.raises(sej.ClosedError):
        q.sync()
