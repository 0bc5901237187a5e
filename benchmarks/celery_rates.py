"""Celery's tasks end to end, with a journal, kombu's folders and Redis as the broker, in turn.

    python -m benchmarks.celery_rates [TASKS] [ROUNDS]

A round puts all tasks, then starts a worker with two processes, and measures both: the puts, and the time from the
first task that has run until the last one. With a worker that waits, a round with folders may never end: kombu 5.7
raised JSONDecodeError for a message that was just being written, and the task was lost. The tasks do nothing, and are
acknowledged after they ran. Redis is `redis-server` with the package `redis`, if both are installed, and syncs its log
once per second.
"""

import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APPLICATION = """
import os
from celery import Celery
import sej.contrib.kombu

here = os.environ["SEJ_PLACE"]
app = Celery("rates", broker=os.environ["SEJ_BROKER"])
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=16,
    task_ignore_result=True, broker_connection_retry_on_startup=True, broker_transport_options={
        "data_folder_in": f"{here}/folder", "data_folder_out": f"{here}/folder", "control_folder": f"{here}/control",
    } if os.environ["SEJ_BROKER"].startswith("filesystem") else {})

@app.task
def work(number):
    with open(f"{here}/marks", "ab", buffering=0) as file:
        file.write(b"x")
"""


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """Start Redis on a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        server.terminate()
        server.wait()


def until(path: Path, size: int) -> None:
    """Wait until a file has a size."""
    pause = threading.Event()
    while not path.exists() or path.stat().st_size < size:
        pause.wait(0.005)


def rate(place: Path, broker: str, tasks: int) -> tuple[float, float]:
    """Return the puts per second and the tasks per second of one round."""
    for name in ("folder", "control"):
        (place / name).mkdir(parents=True)
    (place / "rates.py").write_text(APPLICATION)
    root = str(Path(__file__).parent.parent)
    env = {**os.environ, "SEJ_PLACE": str(place), "SEJ_BROKER": broker, "PYTHONPATH": f"{place}:{root}"}
    put = "import sys, time, rates\nrates.work.delay(0)\nstarted = time.perf_counter()\n"
    put += "for number in range(int(sys.argv[1])): rates.work.delay(number)\nprint(time.perf_counter() - started)"
    words = [sys.executable, "-c", put, str(tasks)]
    took = float(subprocess.run(words, env=env, check=True, cwd=place, stdout=subprocess.PIPE).stdout)
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-q", "-A", "rates", "worker", "-c", "2", "-l", "CRITICAL"], env=env, cwd=place
    )
    try:
        until(place / "marks", 1)
        started = time.perf_counter()
        until(place / "marks", tasks + 1)
        return tasks / took, tasks / (time.perf_counter() - started)
    finally:
        worker.terminate()
        worker.wait()


def main() -> None:
    """Measure, and print the median of each broker."""
    tasks, rounds = (int(word) for word in (sys.argv[1:] + ["2000", "3"][len(sys.argv) - 1 :]))
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            place = Path(folder, str(number))
            place.mkdir()
            found.setdefault("journal", []).append(rate(place / "sej", f"sej:///{place}/sej/broker", tasks))
            found.setdefault("folders", []).append(rate(place / "fs", "filesystem://", tasks))
            if shutil.which("redis-server") and importlib.util.find_spec("redis"):
                with redis(place) as port:
                    found.setdefault("Redis", []).append(rate(place / "redis", f"redis://127.0.0.1:{port}/0", tasks))
    for name, rates in found.items():
        puts, tasks_s = (statistics.median(column) for column in zip(*rates, strict=True))
        print(f"{name:8} {puts:8,.0f} puts/s {tasks_s:8,.0f} tasks/s   {rates}")


if __name__ == "__main__":
    main()
