"""Section queue: the work queue against litequeue, persist-queue and huey's storage, 100-byte values.

Equal durability: "os" for the journal's queue (a confirmed operation survives SIGKILL); SQLite in WAL mode with
synchronous NORMAL, as litequeue sets it, survives as much. persist-queue's file Queue saves its place at each
task_done. litequeue slows down with what is ready, so 1,000 are ready for everybody.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sej
from benchmarks.measure import Row, interleaved, row, timed
from sej.watch import Watch

VALUE = b"v" * 100
READY = 1_000
PROCESSES = 8


def run() -> list[Row]:
    """All lines of the section."""
    root = Path(tempfile.mkdtemp(prefix="sej-bench-"))
    try:
        return [*_one_process(root), *_many_processes(root), *_writers(root), *_waking(root), *_long(root)]
    finally:
        shutil.rmtree(root)


def _fresh(root: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=root))


# --- one process


def _sej_one(root: Path, count: int = 10_000) -> float:
    with sej.open_queue(_fresh(root)) as q:
        q.put_many([VALUE] * (READY + count))
        return timed(lambda: _ending(q, count), count)


def _ending(q: sej.WorkQueue, count: int) -> None:
    for _ in range(count):
        item = q.get(timeout=0)
        assert item is not None
        item.done()


def _sej_batches(root: Path, count: int = 50_000) -> float:
    with sej.open_queue(_fresh(root)) as q:
        q.put_many([VALUE] * (READY + count))

        def work() -> None:
            for _ in range(count // 100):
                q.done_many(q.get_many(100, timeout=0))

        return timed(work, count)


def _sej_put(root: Path, count: int = 10_000) -> float:
    with sej.open_queue(_fresh(root)) as q:
        return timed(lambda: [q.put(VALUE) for _ in range(count)], count)


def _lite(root: Path, count: int = 1_000) -> float:
    from litequeue import LiteQueue

    q = LiteQueue(str(_fresh(root) / "queue.db"))
    with q.transaction():
        for _ in range(READY + count):
            q.put(VALUE.decode())

    def work() -> None:
        for _ in range(count):
            q.done(q.pop().message_id)

    rate = timed(work, count)
    q.conn.close()
    return rate


def _persist_sqlite(root: Path, count: int = 300) -> float:
    from persistqueue import SQLiteAckQueue

    q = SQLiteAckQueue(str(_fresh(root)), auto_commit=True)
    for _ in range(READY + count):
        q.put(VALUE)

    def work() -> None:
        for _ in range(count):
            q.ack(q.get(block=False))

    rate = timed(work, count)
    q.close()
    return rate


def _persist_file(root: Path, count: int = 300) -> float:
    from persistqueue import Queue

    q = Queue(str(_fresh(root)))
    for _ in range(READY + count):
        q.put(VALUE)

    def work() -> None:
        for _ in range(count):
            q.get(block=False)
            q.task_done()

    return timed(work, count)


def _huey(root: Path, count: int = 1_000) -> float:
    from huey.storage import SqliteStorage

    q = SqliteStorage(filename=str(_fresh(root) / "huey.db"))
    for _ in range(READY + count):
        q.enqueue(VALUE)
    rate = timed(lambda: [q.dequeue() for _ in range(count)], count)
    q.close()
    return rate


def _one_process(root: Path) -> list[Row]:
    found = interleaved(
        {
            "one": lambda: _sej_one(root),
            "batches": lambda: _sej_batches(root),
            "put": lambda: _sej_put(root),
            "lite": lambda: _lite(root),
            "persist sqlite": lambda: _persist_sqlite(root),
            "persist file": lambda: _persist_file(root),
            "huey": lambda: _huey(root),
        },
        rounds=3,
    )
    lite = found["lite"]
    return [
        _row("litequeue pop + done, 1,000 ready", lite),
        _row("persist-queue SQLiteAckQueue get + ack, 1,000 ready", found["persist sqlite"], lite),
        _row("persist-queue Queue get + task_done, 1,000 ready", found["persist file"], lite),
        _row("huey SqliteStorage dequeue (no ack), 1,000 ready", found["huey"], lite),
        _row("put, one by one, os", found["put"]),
        _row("get + done, one by one, os : litequeue", found["one"], lite, least=5),
        _row("get + done, batches of 100, os : litequeue", found["batches"], lite, least=40),
    ]


# --- many processes


def _child(work: Callable[[Path, int], None], path: Path, count: int, gate: Any, times: Any) -> None:
    work(path, 0)  # open what is to be opened
    gate.wait(60)
    start = time.perf_counter()
    work(path, count)
    times.put((start, time.perf_counter()))


_opened: dict[Path, Any] = {}


def _sej_work(path: Path, count: int) -> None:
    q = _opened.setdefault(path, None) or sej.open_queue(path)
    _opened[path] = q
    _ending(q, count)


def _lite_work(path: Path, count: int) -> None:
    from litequeue import LiteQueue

    q = _opened.setdefault(path, None) or LiteQueue(str(path / "queue.db"), timeout=60)
    _opened[path] = q
    for _ in range(count):
        q.done(q.pop().message_id)


def _append_work(path: Path, count: int) -> None:
    w = _opened.setdefault(path, None) or sej.SharedWriter(path)
    _opened[path] = w
    for _ in range(count):
        w.append(VALUE)


def _together(work: Callable[[Path, int], None], path: Path, processes: int, count: int) -> float:
    """Operations a second of all processes together, count each."""
    context = multiprocessing.get_context("spawn")
    gate, times = context.Barrier(processes), context.Queue()
    children = [context.Process(target=_child, args=(work, path, count, gate, times)) for _ in range(processes)]
    for child in children:
        child.start()
    spans = [times.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    took: float = max(end for _, end in spans) - min(start for start, _ in spans)
    return processes * count / took


def _sej_many(root: Path, processes: int, count: int) -> float:
    path = _fresh(root)
    with sej.open_queue(path) as q:
        q.put_many([VALUE] * (READY + processes * count))
    return _together(_sej_work, path, processes, count)


def _lite_many(root: Path, processes: int, count: int) -> float:
    from litequeue import LiteQueue

    path = _fresh(root)
    q = LiteQueue(str(path / "queue.db"))
    with q.transaction():
        for _ in range(READY + processes * count):
            q.put(VALUE.decode())
    q.conn.close()
    return _together(_lite_work, path, processes, count)


def _many_processes(root: Path) -> list[Row]:
    found = interleaved(
        {
            "one": lambda: _sej_many(root, 1, 10_000),
            "two": lambda: _sej_many(root, 2, 5_000),
            "eight": lambda: _sej_many(root, PROCESSES, 2_000),
            "lite eight": lambda: _lite_many(root, PROCESSES, 100),
        },
        rounds=3,
    )
    return [
        _row("get + done, 2 processes : 1", found["two"], found["one"]),
        _row("get + done, 8 processes : 1", found["eight"], found["one"], least=0.5),
        _row("litequeue, 8 processes", found["lite eight"]),
        _row("get + done, 8 processes : litequeue's 8", found["eight"], found["lite eight"], least=8),
    ]


# --- the shared writer


def _exclusive(root: Path, count: int = 100_000) -> float:
    with sej.Writer(_fresh(root)) as w:
        return timed(lambda: [w.append(VALUE) for _ in range(count)], count)


def _writers(root: Path) -> list[Row]:
    found = interleaved(
        {
            "exclusive": lambda: _exclusive(root),
            "one": lambda: _together(_append_work, _fresh(root), 1, 20_000),
            "eight": lambda: _together(_append_work, _fresh(root), PROCESSES, 5_000),
        },
        rounds=3,
    )
    return [
        _row("exclusive writer, append, os", found["exclusive"]),
        _row("shared writer, append, os : exclusive", found["one"], found["exclusive"], least=0.08),
        _row("shared writer, 8 processes : 1", found["eight"], found["one"], least=0.7),
    ]


# --- latency


def _round_trips(send: Callable[[], object], receive: Callable[[], None], count: int = 200) -> float:
    """The median time from send in one process to the end of receive in this one, in seconds."""
    found = []
    for _ in range(count):
        waiting = threading.Event()
        sent: list[float] = []

        def later(waiting: threading.Event = waiting, sent: list[float] = sent) -> None:
            waiting.wait()
            time.sleep(0.002)
            sent.append(time.perf_counter())
            send()

        thread = threading.Thread(target=later)
        thread.start()
        waiting.set()
        receive()
        found.append(time.perf_counter() - sent[0])
        thread.join()
    return statistics.median(found)


def _waking(root: Path) -> list[Row]:
    path, bare = _fresh(root), _fresh(root)
    with sej.open_queue(path) as putter, sej.open_queue(path) as getter, Watch(bare) as watch:
        fd = os.open(bare / "file", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        with contextlib.suppress(OSError):
            watch.wait(0.01)

        def got() -> None:
            item = getter.get()
            assert item is not None
            item.done()

        def woken() -> None:
            while not watch.wait(1.0):
                pass

        inotify = _round_trips(lambda: os.write(fd, VALUE), woken)
        queue = _round_trips(lambda: putter.put(VALUE), got)
        os.close(fd)
    return [
        Row("bare inotify round trip, p50", f"{inotify * 1e6:,.0f} us", None, None, None),
        row("put to get + done in a waiting one, p50 : inotify", f"{queue * 1e6:,.0f} us", queue / inotify, most=5),
    ]


# --- long queues


@contextlib.contextmanager
def _filled(root: Path, ready: int, done: int) -> Iterator[sej.WorkQueue]:
    path = _fresh(root)
    with sej.Writer(path) as w:
        for _ in range((ready + done) // 10_000):
            w.append_many([VALUE] * 10_000)
    with sej.open_queue(path) as q:
        for _ in range(done // 10_000):
            q.done_many(q.get_many(10_000, timeout=0))
    with sej.open_queue(path) as q:
        yield q


def _long(root: Path) -> list[Row]:
    million = 1_000_000
    with (
        _filled(root, 100_000, 0) as short,
        _filled(root, million, 0) as before,
        _filled(root, 100_000, million) as behind,
    ):
        found = interleaved(
            {
                name: (lambda q=q: timed(lambda: _ending(q, 3_000), 3_000))  # type: ignore[misc]
                for name, q in {"short": short, "before": before, "behind": behind}.items()
            }
        )
    return [
        _row("get + done, a million ready before it : 100,000", found["before"], found["short"], least=0.8),
        _row("get + done, a million done behind it : none", found["behind"], found["short"], least=0.8),
    ]


def _row(name: str, rate: float, base: float | None = None, *, least: float | None = None) -> Row:
    figure = f"{rate:,.0f}/s"
    return Row(name, figure, None, None, None) if base is None else row(name, figure, rate / base, least)


def main() -> None:
    """Print the section."""
    for found in run():
        print(*found)


if __name__ == "__main__":
    main()
