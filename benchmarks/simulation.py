"""Section simulation: a week of 2,000 edges and their hub, with the time compressed; counted at the end.

Each edge has a journal on a file system of its own of 256 KiB. Twice a day it wakes up, appends what it measured, once
and only once (``append_once``), and copies it by a gRPC connection of its own to a hub, then removes what the hub has.
A fifth of the edges are offline for days, until their file systems are full. The processes that run the edges, 500
each, and the hub are killed (SIGKILL) and started again. At the end every edge is online. Then the hub must have every
message that an append acknowledged, once and in order.

The clock is the order of the wake-ups, so not all clients are connected concurrently: section growth does that. Files
are in memory. ``SEJ_BENCH_EDGES`` is the number of edges. Needs util-linux's ``unshare``.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, folder

EDGES = int(os.environ.get("SEJ_BENCH_EDGES", "2000"))
PROCESSES = 4
WAKES = 14
MESSAGES = 20
VALUE_BYTES = 1000
SEGMENT_BYTES = 1 << 15
DISK_BYTES = 1 << 18
WEEK_S = 7 * 86400
START_NS = 1_700_000_000 * 10**9
OFFLINE_SHARE = 0.2
OFFLINE_S = 3 * 86400
SERVE = [sys.executable, "-c", "from hub.cli import app; app(prog_name='sej hub')", "serve", "--address"]


def run() -> list[Row]:
    """All lines of the section."""
    with folder("/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        found = simulate(root, EDGES, kills=8 * PROCESSES, hub_kills=6)
    messages = found["messages"]
    return [
        Row("edges, days of each, messages acknowledged", f"{EDGES:,}, 7, {messages:,}", None, None, None),
        _none("acknowledged messages that the hub does not have", found["missing"]),
        _none("messages that the hub has twice, or in another order", found["wrong"]),
        Row(
            "kills of the processes of the edges, of the hub",
            f"{found['killed']}, {found['hub killed']}",
            None,
            None,
            None,
        ),
        *(
            Row(f"wake-ups: {what}", f"{found[what]:,}", None, None, None)
            for what in ("copied", "offline", "disk full", "hub away")
        ),
        Row("hub: CPU for each message", f"{found['hub_s'] / messages * 1e6:.0f} us", None, None, None),
        Row(
            "hub: CPU for each connection and copy",
            f"{found['hub_s'] / found['copied'] * 1e3:.1f} ms",
            None,
            None,
            None,
        ),
        Row("hub: descriptors, the most", f"{found['descriptors']:,}", None, None, None),
        Row("hub: resident memory, the most", f"{found['memory'] >> 20:,} MiB", None, None, None),
        Row("hub: files and directories for each journal", f"{found['inodes'] / EDGES:.1f}", None, None, None),
        Row("wall time", f"{found['wall_s']:.0f} s", None, None, None),
    ]


def _none(name: str, count: int) -> Row:
    return Row(name, str(count), count, "<= 0", count == 0)


def simulate(root: Path, edges: int, *, kills: int, hub_kills: int, seed: int = 1) -> dict[str, int]:
    """Run a week where file systems can be mounted; what was counted."""
    arguments = [str(root), str(edges), str(kills), str(hub_kills), str(seed)]
    command = ["unshare", "--mount", "--map-root-user", sys.executable, "-m", "benchmarks.simulation", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


# --- an edge


def values(edge: int, batch: int) -> list[bytes]:
    """What an edge measures before a wake-up."""
    return [b"%d %d %d" % (edge, batch, n) + bytes(VALUE_BYTES) for n in range(MESSAGES)]


def week(edge: int, seed: int) -> Iterator[tuple[float, int, bool]]:
    """When an edge wakes up, which wake-up that is, and whether it is online."""
    dice = random.Random(f"{seed} {edge}")
    away = dice.uniform(0, WEEK_S), 0.0
    if dice.random() < OFFLINE_SHARE:
        away = away[0], away[0] + dice.expovariate(1 / OFFLINE_S)
    for number in range(WAKES):
        at = (number + dice.random()) * WEEK_S / WAKES
        yield at, number, not away[0] <= at < away[1]
    yield WEEK_S, WAKES, True


def wake(path: Path, edge: int, appended: int, number: int, address: str | None) -> str:
    """Append the batches up to a number, print each that was acknowledged, copy to an address; what happened."""
    import sej
    from hub import UnavailableError
    from hub.wire import Client, Copier

    happened = "copied"
    try:
        with sej.Writer(path, segment_bytes=SEGMENT_BYTES) as writer:
            for batch in range(appended, min(number + 1, WAKES)):
                stamp = START_NS + batch * (WEEK_S * 10**9 // WAKES)
                writer.append_once("edge", batch, values(edge, batch), timestamp=stamp)
                print(edge, "appended", batch, flush=True)
    except (sej.WriterFailedError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno != errno.ENOSPC:
            raise
        happened = "disk full"
    nowhere = f"unix:{path}/nowhere"
    try:
        with (
            Client(address or nowhere, client_id=f"edge{edge}") as client,
            Copier(path, client, journal_dir="week") as copier,
        ):
            copier.run_once()
    except UnavailableError:
        return "hub away" if address else "offline" if happened == "copied" else happened
    sej.Journal(path).clean(max_bytes=0)
    return happened


def work(root: Path, address: str, seed: int, first: int, stop: int, begun: str) -> None:
    """Let edges wake up in the order of the time, from where a killed process was."""
    places: dict[str, list[int]] = json.loads(begun)
    plan = sorted((at, edge, number, online) for edge in range(first, stop) for at, number, online in week(edge, seed))
    for _, edge, number, online in plan:
        appended, woken = places.get(str(edge), (0, 0))
        if number < woken:
            continue
        while True:
            happened = wake(root / f"edge{edge}", edge, appended, number, address if online else None)
            print(edge, happened, number, flush=True)
            if number < WAKES or happened == "copied":
                break
            time.sleep(0.1)  # the week has ended: until the hub is there again, and until all of it was appended
            appended = _appended(root / f"edge{edge}")
        places[str(edge)] = [_appended(root / f"edge{edge}"), number + 1]


def _appended(path: Path) -> int:
    """How many batches a journal has: what is left of it tells."""
    import sej

    return sej.Journal(path).end_offset // MESSAGES


# --- all of them


class World:
    """The hub and the processes of the edges, and what they reported."""

    def __init__(self, root: Path, edges: int, kills: int, hub_kills: int, seed: int) -> None:
        self.root, self.edges, self.seed = root, edges, seed
        self.address = f"unix:{root}/hub.sock"
        self.counts: Counter[str] = Counter()
        self.places = {edge: [0, 0] for edge in range(edges)}
        self.dice = random.Random(seed)
        self.hub = self.serve()
        wakes = edges * WAKES
        self.kills = set(self.dice.sample(range(1, wakes), kills))
        self.hub_kills = set(self.dice.sample(range(1, wakes), hub_kills))
        self.lock = threading.Lock()

    def serve(self) -> subprocess.Popen[str]:
        """Start the hub."""
        command = [*SERVE, self.address, str(self.root / "hub")]
        hub = subprocess.Popen(command, text=True, stdout=subprocess.PIPE)
        assert hub.stdout is not None and self.address in hub.stdout.readline()
        return hub

    def kill_hub(self) -> None:
        """End it as a crash does, and start it again."""
        self.look_at_hub()
        self.hub.kill()
        self.hub.communicate()
        self.hub = self.serve()
        self.counts["hub killed"] += 1

    def look_at_hub(self) -> None:
        """Add what this process of the hub has used."""
        place = Path("/proc", str(self.hub.pid))
        used = sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:13]))
        peak = next(
            int(line.split()[1]) << 10 for line in (place / "status").read_text().splitlines() if "VmHWM" in line
        )
        self.counts["hub_ms"] += used * 1000 // os.sysconf("SC_CLK_TCK")
        self.counts["memory"] = max(self.counts["memory"], peak)

    def edges_of(self, first: int, stop: int) -> None:
        """Run a process for some edges, again whenever it was killed."""
        ended = False
        while not ended:
            with self.lock:
                begun = json.dumps({edge: self.places[edge] for edge in range(first, stop)})
            words = [str(self.root), self.address, str(self.seed), str(first), str(stop), begun]
            command = [sys.executable, "-m", "benchmarks.simulation", "edges", *words]
            with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if self.heard(*line.split(maxsplit=1)):
                        process.kill()
            ended = process.returncode == 0
            assert ended or process.returncode == -9, f"a process of edges ended with {process.returncode}"

    def heard(self, edge: str, what: str) -> bool:
        """Count what an edge reported; whether its process is killed now."""
        event, _, number = what.strip().rpartition(" ")
        with self.lock:
            place = self.places[int(edge)]
            if event == "appended":
                place[0] = max(place[0], int(number) + 1)
                return False
            place[1] = min(int(number) + 1, WAKES)
            self.counts[event] += 1
            self.counts["wakes"] += 1
            if not self.counts["wakes"] % 100:
                self.counts["descriptors"] = max(
                    self.counts["descriptors"], len(os.listdir(f"/proc/{self.hub.pid}/fd"))
                )
            if self.counts["wakes"] in self.hub_kills:
                self.kill_hub()
            killed = self.counts["wakes"] in self.kills
            self.counts["killed"] += killed
            return killed

    def check(self) -> None:
        """Compare the hub with what was acknowledged."""
        import sej

        for edge, (appended, _) in self.places.items():
            expected = [value for batch in range(appended) for value in values(edge, batch)]
            with sej.Scanner(self.root / "hub" / f"edge{edge}.week") as scanner:
                found = [message.value for message in scanner]
            self.counts["messages"] += len(expected)
            self.counts["missing"] += len(set(expected) - set(found))
            self.counts["wrong"] += found != expected
        self.counts["inodes"] = sum(len(folders) + len(files) for _, folders, files in os.walk(self.root / "hub"))


def main(root: Path, edges: int, kills: int, hub_kills: int, seed: int) -> dict[str, float]:
    """A week, in a namespace of its own."""
    begun = time.monotonic()
    for edge in range(edges):
        path = root / f"edge{edge}"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path], check=True)
    world = World(root, edges, kills, hub_kills, seed)
    share = -(-edges // PROCESSES)
    threads = [
        threading.Thread(target=world.edges_of, args=(first, min(first + share, edges)))
        for first in range(0, edges, share)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.look_at_hub()
    world.hub.kill()
    world.hub.communicate()
    world.check()
    return {**world.counts, "hub_s": world.counts["hub_ms"] / 1000, "wall_s": time.monotonic() - begun}


if __name__ == "__main__":
    if sys.argv[1] == "edges":
        seed, first, stop = map(int, sys.argv[4:7])
        work(Path(sys.argv[2]), sys.argv[3], seed, first, stop, sys.argv[7])
    else:
        edges, kills, hub_kills, seed = map(int, sys.argv[2:])
        print(json.dumps(main(Path(sys.argv[1]), edges, kills, hub_kills, seed)))
