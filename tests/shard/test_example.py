"""The example of three terminals, run as it says: two workers and a producer; one worker killed, the other stopped."""

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path as FilePath

import shard

EXAMPLE = FilePath(__file__).parent.parent.parent / "examples" / "shards"
SHIPPED = re.compile(r"worker (\d+), shard (\d): order (\d+) of customer (\d+)\n")
Shipped = tuple[int, int, int]


class Terminal:
    """A worker of the example; what it ships goes into a queue: its pid, the shard, the order."""

    def __init__(self, cwd: FilePath, shipped: "queue.Queue[Shipped]") -> None:
        command = [sys.executable, "-W", "error", str(EXAMPLE / "work.py")]
        self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
        self.last = ""
        self._shipped = shipped
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line
            found = SHIPPED.fullmatch(line)
            if found:
                pid, index, order, _ = map(int, found.groups())
                self._shipped.put((pid, index, order))

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def produce(cwd: FilePath, count: int) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE / "produce.py"), str(count)]
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_three_terminals(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path / "orders-data", "orders", 3)
    shipped: queue.Queue[Shipped] = queue.Queue()
    until = time.monotonic() + 60
    first, second = Terminal(tmp_path, shipped), Terminal(tmp_path, shipped)
    try:
        produced = 0
        rows: list[Shipped] = []
        while {pid for pid, _, _ in rows} != {first.process.pid, second.process.pid}:
            assert time.monotonic() < until
            produce(tmp_path, 40)
            produced += 40
            for _ in range(40):
                rows.append(shipped.get(timeout=60))
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        produce(tmp_path, 100)
        produced += 100
        while sum(row.messages for row in shard.lag(path, "shipping")):
            assert time.monotonic() < until
            try:
                rows.append(shipped.get(timeout=0.1))
            except queue.Empty:
                continue
        assert second.end(signal.SIGINT) == 0
        while not shipped.empty():
            rows.append(shipped.get())
        assert len(rows) >= produced
        assert {order for _, _, order in rows} == set(range(100))
        assert all(index == path.index(b"customer %d" % (order % 20)) for _, index, order in rows)
        assert second.last.startswith(f"worker {second.process.pid} was asked to stop: it handled ")
    finally:
        for terminal in (first, second):
            if terminal.process.poll() is None:
                terminal.end(signal.SIGKILL)
