"""Section textqueue: against the published textqueue 1.1, which is installed into a folder of its own.

100,000 messages in two shapes: one line each, and one line with the two variables that a shared queue needs. The peer's
rate does not depend on the length of the file, so it is measured over the first 20,000. Page cache warm; a mark of ours
is locked, proven, logged, and in the file when the call returns; the peer's is in a buffer of the process.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import textqueue
from benchmarks.measure import Row, interleaved, row

COUNT = 100_000
PEER_COUNT = 20_000
DONE = 1_000_000
SHARED = 5_000
ROUNDS = 3
SHAPES = {
    "one line": "-message number %06d, ready to be worked on\n",
    "with retries and mutex": "-message number %06d, ready to be worked on\n\\retries=3 \n\\mutex=" + " " * 30 + "\n",
}


def run() -> list[Row]:
    """All lines of the section."""
    with tempfile.TemporaryDirectory(prefix="textqueue-bench-") as folder:
        root = Path(folder)
        peer = _peer()
        rows = []
        for shape, line in SHAPES.items():
            rows += _rates(root, peer, shape, line)
        return [*rows, _claims(root), _shared(root), _memory(root)]


def _peer() -> ModuleType:
    """The published package, under another name."""
    folder = Path(os.environ.get("SEJ_PEERS", "artifacts/peers")).absolute() / "textqueue-1.1"
    if not (folder / "textqueue").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, "textqueue==1.1"], check=True)
    place = folder / "textqueue" / "__init__.py"
    inside = [str(place.parent)]
    spec = importlib.util.spec_from_file_location("textqueue_1_1", place, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["textqueue_1_1"] = module
    spec.loader.exec_module(module)
    return module


def _rates(root: Path, peer: ModuleType, shape: str, line: str) -> list[Row]:
    path = root / "jobs.tq"
    text = "".join(line % number for number in range(COUNT))

    def fresh() -> Path:
        for old in root.glob("*jobs.tq*"):
            old.unlink()
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        return path

    def theirs(*, mark: bool = False, variable: bool = False) -> Callable[[], float]:
        def measure() -> float:
            queue = peer.TextQueue()
            queue.add_input(str(fresh()))
            start = time.perf_counter()
            for _ in range(PEER_COUNT):
                message = queue.get_next()
                if variable:
                    message.set_variable(0, "retries=2")
                if mark:
                    message.mark_as_cleared()
            queue.close()
            return PEER_COUNT / (time.perf_counter() - start)

        return measure

    def theirs_set() -> float:
        queue = peer.TextQueue()
        queue.add_input(str(fresh()))
        messages = [queue.get_next() for _ in range(PEER_COUNT)]
        start = time.perf_counter()
        for message in messages:
            message.set_variable(0, "retries=2")
        queue.close()
        return PEER_COUNT / (time.perf_counter() - start)

    def ours_set() -> float:
        with textqueue.TextQueue(fresh()) as queue:
            messages = list(itertools.islice(queue.messages(), PEER_COUNT))
            start = time.perf_counter()
            for message in messages:
                message.set_variable(0, "retries=2")
            return PEER_COUNT / (time.perf_counter() - start)

    def ours(work: Callable[[textqueue.TextQueue], int]) -> Callable[[], float]:
        def measure() -> float:
            with textqueue.TextQueue(fresh()) as queue:
                start = time.perf_counter()
                count = work(queue)
                return count / (time.perf_counter() - start)

        return measure

    has_variables = "\\" in line
    sets = {"peer set": theirs(mark=True, variable=True), "set": ours(_set)} if has_variables else {}
    sets |= {"peer set alone": theirs_set, "set alone": ours_set} if has_variables else {}
    found = interleaved(
        {
            "peer": theirs(),
            "peer mark": theirs(mark=True),
            "get_next": ours(_get_next),
            "messages": ours(_messages),
            "mark": ours(_mark),
            "mark_many": ours(_mark_many),
            **sets,
        },
        ROUNDS,
    )
    read, mark = found["peer"], found["peer mark"]
    name = f"get_next, set_variable and mark, {shape}"
    alone = f"set_variable of messages that were read before, {shape}"
    ratios = {name: ("set", "peer set"), alone: ("set alone", "peer set alone")} if has_variables else {}
    return [
        *(row(text, f"{found[a]:,.0f}/s", found[a] / found[b], 1) for text, (a, b) in ratios.items()),
        row(f"textqueue 1.1 get_next, {shape}", f"{read:,.0f}/s", 1.0),
        row(f"textqueue 1.1 get_next and mark, {shape}", f"{mark:,.0f}/s", 1.0),
        row(f"get_next, {shape}", f"{found['get_next']:,.0f}/s", found["get_next"] / read, 10),
        row(f"messages, {shape}", f"{found['messages']:,.0f}/s", found["messages"] / read, 10),
        row(f"get_next and mark one by one, {shape}", f"{found['mark']:,.0f}/s", found["mark"] / mark, 0.95),
        row(f"messages and mark_many, {shape}", f"{found['mark_many']:,.0f}/s", found["mark_many"] / mark, 2),
    ]


def _get_next(queue: textqueue.TextQueue) -> int:
    get_next = queue.get_next
    count = 0
    while get_next() is not None:
        count += 1
    assert count == COUNT
    return count


def _messages(queue: textqueue.TextQueue) -> int:
    count = 0
    for _ in queue.messages():
        count += 1
    assert count == COUNT
    return count


def _mark(queue: textqueue.TextQueue) -> int:
    for _ in range(PEER_COUNT):
        message = queue.get_next()
        assert message is not None
        message.mark_as_cleared()
    return PEER_COUNT


def _set(queue: textqueue.TextQueue) -> int:
    for _ in range(PEER_COUNT):
        message = queue.get_next()
        assert message is not None
        message.set_variable(0, "retries=2")
        message.mark_as_cleared()
    return PEER_COUNT


def _mark_many(queue: textqueue.TextQueue) -> int:
    messages = list(queue.messages())
    queue.mark_many(messages, textqueue.MessageStatus.cleared)
    return len(messages)


def _claims(root: Path) -> Row:
    path = root / "done.tq"
    path.write_text("=a message that was done long ago\n" * DONE + "-to do\n" * 200)
    times = []
    with textqueue.TextQueue(path) as queue:
        for _ in range(100):
            start = time.perf_counter()
            claim = queue.take()
            times.append(time.perf_counter() - start)
            assert claim is not None
            claim.done()
    slow = statistics.quantiles(times[1:], n=20)[-1] * 1000
    name = f"claim behind {DONE:,} done messages, after the first: 95 % take at most ms"
    rate = f"{statistics.median(times[1:]) * 1e6:,.0f} µs median"
    return row(name, rate, slow, most=2)


def _shared(root: Path) -> Row:
    """Claim and clear, without work in between, which is the worst case for workers that share a file."""
    script = (
        "import sys, time, textqueue\n"
        "with textqueue.TextQueue(sys.argv[1]) as q:\n"
        "    print(flush=True), sys.stdin.readline()\n"
        "    start = time.process_time()\n"
        "    while claim := q.take(): claim.done()\n"
        "    print(time.process_time() - start)\n"
    )
    path = root / "shared.tq"

    def claims(workers: int) -> Callable[[], float]:
        def measure() -> float:
            for old in root.glob("*shared.tq*"):
                old.unlink()
            path.write_text("".join(f"-message {number}\n" for number in range(SHARED)))
            command = [sys.executable, "-c", script, str(path)]
            pipe = subprocess.PIPE
            started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(workers)]
            for worker in started:
                assert worker.stdout is not None
                worker.stdout.readline()
            start = time.perf_counter()
            for worker in started:
                assert worker.stdin is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
            outputs = [worker.communicate()[0] for worker in started]
            cpu_s.setdefault(workers, []).append(sum(map(float, outputs)))
            return SHARED / (time.perf_counter() - start)

        return measure

    cpu_s: dict[int, list[float]] = {}
    found = interleaved({"one": claims(1), "four": claims(4)}, ROUNDS)
    cost = statistics.median(cpu_s[4]) / statistics.median(cpu_s[1])
    rate = f"{found['four']:,.0f}/s, CPU {cost:.2f}"
    return row("claims of four processes on one file, against one process", rate, found["four"] / found["one"], 0.5)


def _memory(root: Path) -> Row:
    path = root / "large.tq"
    block = b"-a message of a large file, with some text to make it longer than most\n" * 15_000
    size = 0
    with path.open("wb") as file:
        while size < 1 << 30:
            size += file.write(block)
    script = (
        "import sys, textqueue\n"
        "q = textqueue.TextQueue(sys.argv[1])\n"
        "count = sum(1 for _ in q.messages())\n"
        "for _ in range(100_000): m = q.get_next()\n"
        "m.mark_as_cleared()\n"
        "with q.claim(): pass\n"
        # Not getrusage: that one remembers the process that started this one.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    start = time.perf_counter()
    command = [sys.executable, "-c", script, str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate = f"{size / (1 << 20) / (time.perf_counter() - start):,.0f} MiB/s"
    path.unlink()
    return row("a file of 1 GiB read, marked and claimed: peak MiB", rate, int(output) / 1024, most=128)


def main() -> None:
    """Print the section."""
    for found in run():
        verdict = {None: "", True: "ok", False: "MISSED"}[found.ok]
        ratio = "" if found.ratio is None else f"{found.ratio:8.2f}"
        print(f"{found.name:70} {found.rate:>18} {ratio} {found.target or '':>8} {verdict}")


if __name__ == "__main__":
    main()
