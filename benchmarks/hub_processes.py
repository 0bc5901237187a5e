"""Part of the section hub: one server process against two, with 64 and 1,000 clients.

The senders (:mod:`benchmarks.hub_senders`) are one process with one thread, so they leave most of the machine to the
hub: its processor time for each second tells how many cores it uses.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import hub
from benchmarks.hub_senders import BATCH
from benchmarks.measure import Row, row

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = (64, 1000)
SECONDS = 4.0
ROUNDS = 3
_TICKS = os.sysconf("SC_CLK_TCK")


class Found(NamedTuple):
    """One measurement: messages a second, cores that the hub used, and the senders."""

    rate: float
    cores: float
    senders: float


class Command:
    """``sej hub serve`` with a number of processes."""

    def __init__(self, root: Path, processes: int) -> None:
        words = ["hub", "serve", "--address", "127.0.0.1:0", "--processes", str(processes), "--max-open", "2048"]
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sej", *words, str(root)], cwd=ROOT, text=True, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    def cpu_s(self) -> float:
        """The processor time of all its processes."""
        pid = self._process.pid
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in pids]
        return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS

    def stored(self, prefix: str) -> int:
        """How many messages of the clients with this prefix are on the disk."""
        return sum(each.end_offset for each in hub.stats(self._root) if each.source.client.startswith(f"{prefix}-"))

    def close(self) -> None:
        """Stop it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()


def measure(command: Command, prefix: str, clients: int) -> Found:
    """Send with many clients for some seconds."""
    words = [sys.executable, "-m", "benchmarks.hub_senders", command.address, prefix, str(clients), str(SECONDS)]
    with subprocess.Popen(words, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as senders:
        assert senders.stdin is not None and senders.stdout is not None
        assert senders.stdout.readline() == "ready\n"
        before = command.cpu_s()
        senders.stdin.write("go\n")
        senders.stdin.flush()
        batches, cpu_s = senders.stdout.readline().split()
        cores = (command.cpu_s() - before) / SECONDS
    assert command.stored(prefix) >= (int(batches) + clients) * BATCH
    return Found(int(batches) * BATCH / SECONDS, cores, float(cpu_s) / SECONDS)


def run(root: Path) -> list[Row]:
    """The lines: for each number of clients one process, then two, of the same root each."""
    commands = {count: Command(root / f"hub-{count}", count) for count in (1, 2)}
    rows: list[Row] = []
    try:
        for clients in CLIENTS:
            found: dict[int, list[Found]] = {count: [] for count in commands}
            for number in range(ROUNDS):
                for count, command in commands.items():
                    found[count].append(measure(command, f"c{clients}-{number}", clients))
            medians = {count: Found(*map(statistics.median, zip(*each, strict=True))) for count, each in found.items()}
            for count, median in medians.items():
                rate = f"{median.rate:,.0f}/s on {median.cores:.2f} cores"
                name = f"{clients} clients, {count} process{'es' * (count > 1)}, senders on {median.senders:.2f} cores"
                rows.append(row(name, rate, median.rate / medians[1].rate))
    finally:
        for command in commands.values():
            command.close()
    return rows


def main() -> None:
    """Print the lines."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hub-processes-") as folder:
        for each in run(Path(folder)):
            print(each)


if __name__ == "__main__":
    main()
