"""Section queue: the work queue against litequeue, persist-queue and huey's storage, 100-byte values.

:mod:`benchmarks.queue_peers` explains what is measured of each peer, and why that is equal. litequeue slows down with
the number of ready items, so that number is the same for all peers; it is printed as each of them counts it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sej
from benchmarks.measure import Row, cpu_timed, folder, fresh, interleaved, row, timed
from benchmarks.queue_peers import BATCH, PEERS, VALUE
from sej.system.watch import Watch

READY = 1_000
SIZES = (10, 100, 1_000, 10_000, 100_000)
"""How many items are ready while litequeue and this queue are compared: litequeue slows down with their number."""
PROCESSES = (1, 2, 4, 8)
ORDERS = ("ready", "key")
COUNTS = {"sej": 10_000, "persist-queue Queue": 300, "persist-queue SQLiteAckQueue": 500}
"""How many items one process works off, if it is not 1,000."""
ROUND_TRIPS = 200


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root:
        return [
            *_goals(root),
            *_one_process(root),
            *_sizes(root),
            *_ordered(root),
            *_worker_loops(root),
            *_many_processes(root),
            *_writers(root),
            *_waking(root),
            *_schedules(root),
            *_results(root),
            *_long(root),
        ]


# --- goals in CPU time, which other processes disturb less than wall time


def _goals(root: Path) -> list[Row]:
    """One process: put, get and done in turn, put alone, and what a limit adds."""
    none: dict[str, Any] = {}
    by_key, by_header = ({"limit": sej.Limit(by, concurrency=2)} for by in ("key:/", "header:tenant"))
    found = interleaved(
        {
            "turn": partial(_in_turn, root),
            "put": partial(_put_alone, root),
            "plain": partial(_limited, root, False, none),
            "key": partial(_limited, root, False, by_key),
            "plain with headers": partial(_limited, root, True, none),
            "header": partial(_limited, root, True, by_header),
        }
    )
    rows = [
        _row("put, get and done in turn, os, CPU : 30,000/s", found["turn"], 30_000, least=1),
        _row("put, one by one, os, CPU : 100,000/s", found["put"], 100_000, least=1),
    ]
    for limit, plain in (("key", "plain"), ("header", "plain with headers")):
        ratio = found[plain] / found[limit]
        name = f"CPU of get + done, with a limit by {limit} : without"
        rows.append(row(name, f"{1e6 / found[limit]:.1f} us", ratio, most=1.3))
    return rows


def _in_turn(root: Path, count: int = 5_000) -> float:
    with sej.open_queue(fresh(root)) as q:

        def work() -> None:
            for _ in range(count):
                q.put(VALUE)
                _end_each(q, 1)

        return cpu_timed(work, count)


def _put_alone(root: Path, count: int = 20_000) -> float:
    with sej.open_queue(fresh(root)) as q:
        return cpu_timed(lambda: [q.put(VALUE) for _ in range(count)], count)


def _limited(root: Path, headers: bool, options: dict[str, Any], count: int = 5_000) -> float:
    """Items of ten kinds: mixed, or with headers one kind after another."""
    with sej.open_queue(fresh(root), **options) as q:
        for kind in range(10 if headers else 0):
            q.put_many([VALUE] * (count // 10), headers={"tenant": str(kind)})
        if not headers:
            q.put_many([VALUE] * count, [b"%d/" % (n * 7919 % 10) for n in range(count)])
        return cpu_timed(lambda: _end_each(q, count), count)


# --- the order of keys


def _ordered(root: Path) -> list[Row]:
    """Get and done with and without the order of keys, one by one and in batches.

    With one key, a batch of a queue with an order has one item: it is compared with single items of the other queue.
    """
    rows = []
    for keys in (1, 1_000, 100_000):
        cases = {(order, batch): partial(_keyed, root, order, keys, batch) for order in ORDERS for batch in (1, BATCH)}
        rates = interleaved({str(case): act for case, act in cases.items()})
        for batch in (1, BATCH):
            what = f"get + done, {keys:,} keys, " + ("one by one" if batch == 1 else f"batches of {batch}")
            plain, ordered = rates[str(("ready", batch))], rates[str(("key", batch))]
            rows.append(Row(f"{what}, unordered", f"{plain:,.0f}/s", None, None, None))
            if keys == 1 and batch > 1:
                what += " of one item : one by one, unordered"
                plain = rates[str(("ready", 1))]
            least = 0.7 if keys > 1 or batch == 1 else 0.5
            rows.append(row(f"{what}, in the order of keys", f"{ordered:,.0f}/s", ordered / plain, least))
    return rows


def _keyed(root: Path, order: str, keys: int, batch: int) -> float:
    """Items a second, by the processor's clock."""
    count = 10_000
    with sej.open_queue(fresh(root), order=order) as q:
        q.put_many([VALUE] * count, [b"%d" % (n * 7919 % keys) for n in range(count)])
        start = time.process_time()
        if batch == 1:
            while (item := q.get(timeout=0)) is not None:
                item.done()
        else:
            while items := q.get_many(batch, timeout=0):
                q.done_many(items)
        return count / (time.process_time() - start)


# --- the worker loop

_TASKS = """
import os, resource, signal, time
count, done = {count}, 0

def used():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])

def handle():
    global done, begun, spent
    done += 1
    if done == 1:
        begun, spent = time.perf_counter(), used()
    elif done == count:
        with open("times", "w") as file:
            file.write(f"{{time.perf_counter() - begun}} {{used() - spent}}")
        os.kill(os.getpid(), signal.SIGTERM)

"""
_SEJ_TASKS = """
def task(item):
    handle()
"""
_HUEY_TASKS = """
from huey import SqliteHuey
huey = SqliteHuey(filename="huey.db", results=False)
huey.storage.conn.execute("PRAGMA synchronous = NORMAL")

@huey.task()
def task(value):
    handle()
"""


def _worker_loops(root: Path) -> list[Row]:
    """One thread of ``sej worker`` next to one of huey's consumer, which forgets a task when it begins it."""
    cases: dict[str, Callable[[], float]] = {
        f"{name} {unit}": partial(_worker_loop, root, name, unit == "wall")
        for name in ("sej", "huey")
        for unit in ("wall", "CPU")
    }
    found = interleaved(cases, rounds=3)
    rows = []
    for unit in ("wall", "CPU"):
        sej_rate, huey_rate = found[f"sej {unit}"], found[f"huey {unit}"]
        rows.append(_row(f"worker loop, {unit} time: huey_consumer, SqliteHuey without results (no ack)", huey_rate))
        rows.append(_row(f"worker loop, {unit} time: sej worker : huey_consumer", sej_rate, huey_rate, least=1))
    return rows


def _worker_loop(root: Path, name: str, wall: bool) -> float:
    """Items a second, from the first item to the last, without the start of the process."""
    path, count = fresh(root), 3_000
    tasks = _TASKS.format(count=count) + (_SEJ_TASKS if name == "sej" else _HUEY_TASKS)
    (path / "tasks.py").write_text(tasks)
    if name == "sej":
        with sej.open_queue(path / "q") as q:
            q.put_many([VALUE] * count)
        command = ["-m", "sej", "worker", "q", "tasks:task"]
    else:
        fill = f"import tasks\nfor _ in range({count}): tasks.task('x' * 100)"
        subprocess.run([sys.executable, "-c", fill], cwd=path, check=True, stdout=subprocess.DEVNULL)
        command = [str(Path(sys.executable).parent / "huey_consumer"), "tasks.huey", "-w", "1", "-d", "0.001", "-q"]
    subprocess.run([sys.executable, *command], cwd=path, check=False, capture_output=True, timeout=300)
    took, used = map(float, (path / "times").read_text().split())
    return (count - 1) / (took if wall else used)


# --- one process


def _one(root: Path, name: str, verb: str, ready: int = READY) -> float | None:
    """Items a second of one verb, with so many ready all the while; None where the peer does not have it."""
    peer = PEERS[name](fresh(root))
    act = getattr(peer, verb)
    if act is None:
        peer.close()
        return None
    many = verb.endswith("_many")
    count = COUNTS.get(name, 1_000)
    if name == "litequeue":  # which needs 30 ms for each of 100,000 that are ready
        count = min(count, max(1_000_000 // ready, 100))
    peer.fill(ready + (0 if verb.startswith("put") else count))

    def work() -> None:
        for _ in range(count // BATCH if many else count):
            act(BATCH) if many else act()

    rate = timed(work, count)
    found = peer.ready() - (count if verb.startswith("put") else 0)
    peer.close()
    assert found == ready, f"{name}: {found} ready"
    return rate


def _sizes(root: Path) -> list[Row]:
    """Get and done one by one, with few and with many items ready."""
    rows = []
    for ready in SIZES:
        cases = {name: partial(_rate, root, name, "end", ready) for name in ("sej", "litequeue")}
        found = interleaved({**cases}, rounds=3)
        rows.append(_row(f"get + done, {ready:,} ready: litequeue", found["litequeue"]))
        rows.append(_row(f"get + done, {ready:,} ready, os : litequeue", found["sej"], found["litequeue"], least=5))
    return rows


def _one_process(root: Path) -> list[Row]:
    verbs = {
        "put": "put, one by one",
        "put_many": "put, batches of 100",
        "end": "get + done, one by one",
        "end_many": "get + done, batches of 100",
    }
    least = {"end": 5, "end_many": 40}
    rows = [Row("ready all the while, as each of them counts it", f"{READY:,}", None, None, None)]
    lite = 0.0
    for verb, what in verbs.items():
        there = [name for name in PEERS if _one(root, name, verb) is not None]  # a round to warm up, too
        found = interleaved({name: partial(_rate, root, name, verb) for name in there}, rounds=3)
        against = "litequeue" if "litequeue" in found else "litequeue's one by one"
        lite = found.pop("litequeue", lite)
        if against == "litequeue":
            rows.append(_row(f"{what}: litequeue", lite))
        rows += [_row(f"{what}: {name}", rate, lite) for name, rate in found.items() if name != "sej"]
        rows.append(_row(f"{what}, os : {against}", found["sej"], lite, least=least.get(verb)))
    return rows


def _rate(root: Path, name: str, verb: str, ready: int = READY) -> float:
    found = _one(root, name, verb, ready)
    assert found is not None
    return found


# --- many processes


def _child(name: str, verb: str, path: Path, count: int, gate: Any, times: Any) -> None:
    peer = SHARED[name](path)
    act = getattr(peer, verb)
    gate.wait(60)
    start = time.perf_counter()
    for _ in range(count):
        act()
    times.put((start, time.perf_counter()))
    gate.wait(60)  # closing syncs: not while others are timed
    peer.close()


class _Appender:
    """A shared writer, in the shape of a peer."""

    def __init__(self, path: Path) -> None:
        self._writer = sej.SharedWriter(path)
        self.put = partial(self._writer.append, VALUE)
        self.close = self._writer.close


SHARED: dict[str, Callable[[Path], Any]] = {**PEERS, "writer": _Appender}


def _together(name: str, verb: str, path: Path, processes: int, count: int) -> float:
    """Operations a second of all processes together, count each."""
    context = multiprocessing.get_context("spawn")
    gate, times = context.Barrier(processes), context.Queue()
    children = [context.Process(target=_child, args=(name, verb, path, count, gate, times)) for _ in range(processes)]
    for child in children:
        child.start()
    spans = [times.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    took: float = max(end for _, end in spans) - min(start for start, _ in spans)
    return processes * count / took


def _many(root: Path, name: str, verb: str, processes: int) -> float:
    path = fresh(root)
    count = max((16_000 if name == "sej" else 800) // processes, 1)
    peer = PEERS[name](path)
    peer.fill(READY + (0 if verb == "put" else processes * count))
    peer.close()
    return _together(name, verb, path, processes, count)


def _many_processes(root: Path) -> list[Row]:
    names = ("litequeue", "huey SqliteStorage (no ack)", "sej")
    rows = []
    for verb, what in (("put", "put"), ("end", "get + done")):
        found = interleaved(
            {f"{name} {n}": partial(_many, root, name, verb, n) for name in names for n in PROCESSES}, rounds=3
        )
        for name in names:
            for n in PROCESSES[1:]:
                least = 0.8 if (name, verb, n) == ("sej", "end", 8) else None
                label = f"{what}, {n} processes : 1" + ("" if name == "sej" else f", {name}")
                rows.append(_row(label, found[f"{name} {n}"], found[f"{name} 1"], least=least))
        least = 8 if verb == "end" else None
        rows.append(_row(f"{what}, 8 processes : litequeue's 8", found["sej 8"], found["litequeue 8"], least=least))
    return rows


# --- the shared writer


def _exclusive(root: Path, count: int = 100_000) -> float:
    with sej.Writer(fresh(root)) as w:
        return timed(lambda: [w.append(VALUE) for _ in range(count)], count)


def _writers(root: Path) -> list[Row]:
    found = interleaved(
        {
            "exclusive": lambda: _exclusive(root),
            "one": lambda: _together("writer", "put", fresh(root), 1, 20_000),
            "eight": lambda: _together("writer", "put", fresh(root), 8, 5_000),
        },
        rounds=3,
    )
    return [
        _row("exclusive writer, append, os", found["exclusive"]),
        _row("shared writer, append, os : exclusive", found["one"], found["exclusive"], least=0.08),
        _row("shared writer, 8 processes : 1", found["eight"], found["one"], least=0.7),
    ]


# --- latency


def _answerer(there: Path, back: Path, pipe: Any) -> None:
    """A process that waits for a write, says when it was woken, and answers with a write."""
    fd = os.open(back / "file", os.O_WRONLY | os.O_APPEND)
    with Watch(there) as watch:
        watch.wait(0.01)
        pipe.send(None)
        for _ in range(ROUND_TRIPS):
            while not watch.wait(1.0):
                pass
            woken = time.perf_counter()
            os.write(fd, VALUE)
            pipe.send(woken)
    os.close(fd)


def _taker(path: Path, pipe: Any) -> None:
    """A process that waits for items, and says when it had each."""
    with sej.open_queue(path) as q:
        pipe.send(None)
        for _ in range(ROUND_TRIPS):
            item = q.get()
            pipe.send(time.perf_counter())
            assert item is not None
            item.done()


def _latency(
    target: Callable[..., None], paths: tuple[Path, ...], send: Callable[[], object], wait: Callable[[], object]
) -> tuple[float, float]:
    """Median seconds from send here to what another process says, and to the end of wait here."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(*paths, there))
    child.start()
    here.recv()
    said, answered = [], []
    for _ in range(ROUND_TRIPS):
        time.sleep(0.003)  # it waits again
        start = time.perf_counter()
        send()
        wait()
        answered.append(time.perf_counter() - start)
        said.append(here.recv() - start)
    child.join()
    return statistics.median(said), statistics.median(answered)


IDLE_WORKERS = 20


def _idle_worker(path: Path, pipe: Any) -> None:
    with sej.open_queue(path) as q:
        pipe.send(None)
        while True:
            item = q.get()
            assert item is not None
            item.done()


def _herd(root: Path) -> Row:
    """The CPU that all idle workers use for one put, until one of them has ended the item."""
    context, path = multiprocessing.get_context("spawn"), fresh(root)
    with sej.open_queue(path) as q:
        here, there = context.Pipe()
        workers = [context.Process(target=_idle_worker, args=(path, there), daemon=True) for _ in range(IDLE_WORKERS)]
        for worker in workers:
            worker.start()
        for _ in workers:
            here.recv()
        time.sleep(1)
        before = _cpu_s(workers)
        time.sleep(2)
        idle_s = (_cpu_s(workers) - before) / 2
        before, start = _cpu_s(workers), time.perf_counter()
        for _ in range(ROUND_TRIPS // 2):
            q.put(VALUE)
            time.sleep(0.02)
        used_s = _cpu_s(workers) - before - idle_s * (time.perf_counter() - start)
        for worker in workers:
            worker.kill()
            worker.join()
    used_ms = used_s / (ROUND_TRIPS // 2) * 1e3
    return row(f"CPU of {IDLE_WORKERS} idle workers for one put : 1 ms", f"{used_ms:.2f} ms", used_ms, most=1)


def _cpu_s(processes: Iterable[Any]) -> float:
    """The CPU time of other processes, by the clocks that Linux has for each of them."""
    return sum(time.clock_gettime(~process.pid << 3 | 2) for process in processes)


def _waking(root: Path) -> list[Row]:
    path, there, back = fresh(root), fresh(root), fresh(root)
    there_fd, back_fd = (os.open(where / "file", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for where in (there, back))
    with Watch(back) as watch:
        watch.wait(0.01)
        one_way, trip = _latency(
            _answerer, (there, back), lambda: os.write(there_fd, VALUE), lambda: watch.wait(1.0) or watch.wait(1.0)
        )
    os.close(there_fd)
    os.close(back_fd)
    with sej.open_queue(path) as q:
        queue, _ = _latency(_taker, (path,), lambda: q.put(VALUE), lambda: None)
    return [
        Row("bare inotify from one process to another, p50", f"{one_way * 1e6:,.0f} us", None, None, None),
        Row("bare inotify there and back, p50", f"{trip * 1e6:,.0f} us", None, None, None),
        row("put to get in a waiting process, p50 : there and back", f"{queue * 1e6:,.0f} us", queue / trip, most=5),
        _herd(root),
    ]


# --- schedules and results

SCHEDULES = 10_000
SOON = 200
"""So many of them come every two seconds, the others every hour."""
IDLE_S = 10
_IDLE = """
import os, resource, sys, threading, time

def report():
    time.sleep(6)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep({idle_s})
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with open("used", "w") as file:
        file.write(str(used))
    os._exit(0)

threading.Thread(target=report).start()
"""
_SEJ_IDLE = """
import sej
with sej.open_queue("q") as q:
    sej.work(q, print)
"""
_HUEY_PERIODIC = """
from huey import SqliteHuey, crontab
huey = SqliteHuey(filename="huey.db", results={results})
huey.storage.conn.execute("PRAGMA synchronous = NORMAL")

@huey.task()
def answer(value):
    return value

for number in range({count}):
    huey.periodic_task(crontab(minute="0", hour="3"), name=f"task{{number}}")(lambda: None)
"""
_LATE = """
import datetime, sys, time, sej
with sej.open_queue("q") as q, open("late", "w") as file:
    for _ in range(int(sys.argv[1])):
        item = q.get()
        now = time.time()
        print(now - datetime.datetime.fromisoformat(item.headers["schedule-time"]).timestamp(), file=file)
        item.done()
"""


def _schedules(root: Path) -> list[Row]:
    """The CPU of a worker that waits for 10,000 schedules, and how late their items are. Others have none, or poll."""
    paths = fresh(root), fresh(root), fresh(root)
    for path, soon in zip(paths, (0, SOON, 0), strict=True):
        with sej.open_queue(path / "q") as q:
            for number in range(SCHEDULES if path is not paths[2] else 0):
                q.put(VALUE, every=2 if number < soon else 3600, schedule=str(number))
                if number < soon:
                    time.sleep(0.005)
    (paths[2] / "tasks.py").write_text(_HUEY_PERIODIC.format(count=SCHEDULES, results=False))
    huey = "import sys; from huey.bin.huey_consumer import consumer_main; sys.argv[1:] = ['tasks.huey', '-q']; "
    sej_used = _used(paths[0], _SEJ_IDLE)
    huey_used = _used(paths[2], huey + "consumer_main()")
    late = subprocess.run([sys.executable, "-c", _LATE, str(5 * SOON)], cwd=paths[1], check=True, timeout=120)
    assert late.returncode == 0
    lines = (paths[1] / "late").read_text().splitlines()[SOON:]  # the first ones were missed
    found = sorted(float(line) * 1e3 for line in lines)
    p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    return [
        Row("huey_consumer, 10,000 periodic tasks, idle CPU", f"{huey_used:.2f} %", None, None, None),
        row("worker, 10,000 schedules, idle CPU : 0.5 %", f"{sej_used:.2f} %", sej_used / 0.5, most=1),
        Row("items of 10,000 schedules are late, p50", f"{p50:.1f} ms", None, None, None),
        row("items of 10,000 schedules are late, p99 : 50 ms", f"{p99:.1f} ms", p99 / 50, most=1),
    ]


def _used(path: Path, code: str) -> float:
    """The CPU of a process that waits, in per cent."""
    text = _IDLE.format(idle_s=IDLE_S) + code
    subprocess.run([sys.executable, "-c", text], cwd=path, check=False, capture_output=True, timeout=120)
    return float((path / "used").read_text()) / IDLE_S * 100


def _results(root: Path) -> list[Row]:
    """From a put until its result is here, which another process made; huey's result is polled for."""
    sej_path, huey_path = fresh(root), fresh(root)
    answer = "import sej\nwith sej.open_queue('q') as q: sej.work(q, lambda item: item.done(item.value))"
    with sej.open_queue(sej_path / "q") as q, subprocess.Popen([sys.executable, "-c", answer], cwd=sej_path) as worker:
        trips = _trips(lambda: q.put(VALUE, keep_result="1m").result(60))  # type: ignore[attr-defined]
        worker.terminate()
    (huey_path / "tasks.py").write_text(_HUEY_PERIODIC.format(count=0, results=True))
    consumer = str(Path(sys.executable).parent / "huey_consumer")
    command = [sys.executable, consumer, "tasks.huey", "-w", "1", "-d", "0.001", "-q"]
    asker = (
        "import tasks, time\ndef ask():\n    start = time.perf_counter()\n    tasks.answer('x' * 100)"
        "(blocking=True, backoff=1.0, max_delay=0.001)\n    return time.perf_counter() - start\n"
        f"found = [ask() for _ in range({ROUND_TRIPS})]\nopen('found', 'w').write(repr(found))"
    )
    with subprocess.Popen(command, cwd=huey_path, stderr=subprocess.DEVNULL) as worker:
        subprocess.run([sys.executable, "-c", asker], cwd=huey_path, check=True, timeout=300)
        worker.terminate()
    polled = sorted(map(float, (huey_path / "found").read_text()[1:-1].split(",")))
    rows = []
    for what, at in (("p50", 50), ("p99", 99)):
        mine, theirs = (found[len(found) * at // 100] for found in (trips, polled))
        rows.append(Row(f"put to result, huey with results, {what}", f"{theirs * 1e6:,.0f} us", None, None, None))
        most = 1 if at == 50 else None
        rows.append(row(f"put to result, {what} : huey", f"{mine * 1e6:,.0f} us", mine / theirs, most=most))
    return rows


def _trips(act: Callable[[], object]) -> list[float]:
    """The sorted seconds of many calls; one before them warms up."""
    act()
    found = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return sorted(found)


# --- long queues


@contextlib.contextmanager
def _filled(root: Path, ready: int, done: int) -> Iterator[sej.WorkQueue]:
    path = fresh(root)
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
                name: (lambda q=q: timed(lambda: _end_each(q, 3_000), 3_000))  # type: ignore[misc]
                for name, q in {"short": short, "before": before, "behind": behind}.items()
            }
        )
    return [
        _row("get + done, a million ready before it : 100,000", found["before"], found["short"], least=0.8),
        _row("get + done, a million done behind it : none", found["behind"], found["short"], least=0.8),
    ]


def _end_each(q: sej.WorkQueue, count: int) -> None:
    for _ in range(count):
        item = q.get(timeout=0)
        assert item is not None
        item.done()


def _row(name: str, rate: float, base: float | None = None, *, least: float | None = None) -> Row:
    figure = f"{rate:,.0f}/s"
    return Row(name, figure, None, None, None) if base is None else row(name, figure, rate / base, least)


def main() -> None:
    """Print the section."""
    for found in run():
        print(*found)


if __name__ == "__main__":
    main()
