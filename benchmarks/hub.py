"""Section hub: the wire against bare gRPC and a bare disk, many clients against one, the merge against its parts.

Everything on the loopback, the servers in processes of their own; durability is that of the hub: synced before it is
acknowledged. One run, interleaved rounds, page cache warm.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, folder, interleaved, row

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
LARGE_COUNT = 96
WINDOW = 16
"""The hub syncs at the latest when so many MiB wait for it, and appends meanwhile."""
BATCH = 1000
BATCHES = 100
VALUE = b"v" * 100
CLIENTS = 64
DIRECTORIES = 16
EACH = 60_000
LINES = 200_000

SERVERS = {
    "hub": """
import hub
from hub.wire import Server
server = Server(hub.Store(sys.argv[1]), "127.0.0.1:0", threads=64)
address = server.address
""",
    "bare": """
from concurrent.futures import ThreadPoolExecutor
import grpc
handlers = grpc.method_handlers_generic_handler("bare.Bare", {
    "Discard": grpc.unary_unary_rpc_method_handler(lambda data, context: b""),
    "DiscardAll": grpc.stream_unary_rpc_method_handler(lambda requests, context: b"%d" % sum(1 for _ in requests)),
})
options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
server = grpc.server(ThreadPoolExecutor(64), handlers=[handlers], options=options)
address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
server.start()
""",
}
LOOP = """
print(address, flush=True)
for line in sys.stdin:
    print(time.process_time(), flush=True)
"""


class Process:
    """A server in a process of its own."""

    def __init__(self, kind: str, root: Path) -> None:
        program = "import sys, time\n" + SERVERS[kind] + LOOP
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(root)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.address = self._line()

    def cpu_s(self) -> float:
        """What it has used of the processor so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("cpu\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _servers(root: Path) -> Iterator[tuple[Process, Process]]:
    hub_server, bare = Process("hub", root / "hub"), Process("bare", root)
    try:
        yield hub_server, bare
    finally:
        hub_server.close()
        bare.close()


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root, _servers(root) as (server, bare):
        copied = [*_copy(root, server, bare), *_compressed(root, server)]
        return [*copied, *_put(server, bare), *_many(server), *_merge(root)]


def main() -> None:
    """Print the lines."""
    for found in run():
        print(found)


def _bare(address: str) -> Any:
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(address, options=options)


def _copy(root: Path, server: Process, bare: Process) -> list[Row]:
    """1 MiB messages: from a journal on the disk to the hub's disk, synced and acknowledged."""
    import sej
    from hub.wire import Client, Copier

    value = os.urandom(MIB)
    with sej.Writer(root / "source") as writer:
        writer.append_many([value] * LARGE_COUNT)
    channel = _bare(bare.address)
    send: Any = channel.stream_unary("/bare.Bare/DiscardAll")
    numbers = iter(range(1000))

    def copy() -> float:
        number = next(numbers)
        with Client(server.address, client_id=f"copy{number}") as client:
            client.where("j")  # connected
            copier = Copier(root / "source", client, reader=f"r{number}")
            start = time.perf_counter()
            copier.run_once()
            took = time.perf_counter() - start
            copier.close()
        shutil.rmtree(root / "hub" / f"copy{number}.source")
        return LARGE_COUNT / took

    def discard() -> float:
        start = time.perf_counter()
        assert send(iter([value] * LARGE_COUNT)) == b"%d" % LARGE_COUNT
        return LARGE_COUNT / (time.perf_counter() - start)

    def write() -> float:
        fd = os.open(root / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        start = time.perf_counter()
        for at in range(LARGE_COUNT):
            os.write(fd, value)
            if (at + 1) % WINDOW == 0:
                os.fdatasync(fd)
        took = time.perf_counter() - start
        os.close(fd)
        return LARGE_COUNT / took

    found = interleaved({"copy": copy, "discard": discard, "write": write}, 5)
    channel.close()
    slower = min(found["discard"], found["write"])
    return [
        row("gRPC of 1 MiB that is discarded, one stream", f"{found['discard']:,.0f} MiB/s", 1.0),
        row(f"write of 1 MiB, fdatasync every {WINDOW}", f"{found['write']:,.0f} MiB/s", 1.0),
        row("raw copy, 1 MiB a message, of the slower", f"{found['copy']:,.0f} MiB/s", found["copy"] / slower, 0.6),
    ]


def _compressed(root: Path, server: Process) -> list[Row]:
    """Lines of JSON, copied with gzip and without: bytes on the loopback interface, and CPU of both sides."""
    import sej
    from hub.wire import Client, Copier

    rng = random.Random(7)
    with sej.Writer(root / "lines") as writer:
        for at in range(LINES):
            line = {
                "id": at,
                "carrier": rng.choice(["UA", "DL", "B6"]),
                "delay": rng.randrange(-20, 200),
                "dest": "LAX",
            }
            writer.append(json.dumps(line).encode(), b"EWR")
    numbers = iter(range(1000))
    used: dict[str, int] = {}

    def copy(name: str) -> float:
        number = next(numbers)
        with Client(server.address, client_id=f"lines{number}", compress=name == "gzip") as client:
            client.where("j")
            before, cpu_s = _loopback_bytes(), time.process_time() + server.cpu_s()
            with Copier(root / "lines", client, reader=f"lines{number}") as copier:
                copier.run_once()
            found = time.process_time() + server.cpu_s() - cpu_s
            used[name] = _loopback_bytes() - before
        return found / LINES

    found = interleaved({"plain": lambda: copy("plain"), "gzip": lambda: copy("gzip")}, 5)
    return [
        row(f"copy of {LINES:,} lines of JSON", f"{used['plain'] / MIB:.1f} MiB sent", 1.0),
        row("compressed: bytes", f"{used['gzip'] / MIB:.1f} MiB sent", used["gzip"] / used["plain"]),
        row("compressed: CPU of both", f"{found['gzip'] * 1e9:,.0f} ns/message", found["gzip"] / found["plain"]),
    ]


def _loopback_bytes() -> int:
    """What the loopback interface has received."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[0] == "lo:")


def _put(server: Process, bare: Process) -> list[Row]:
    """The server's processor time a message, against a handler that throws the same bytes away."""
    import grpc

    from hub.wire import hub_pb2 as pb

    def request(client: str, first: int) -> bytes:
        messages = [pb.Message(Offset=first + n, Timestamp=first + n, Value=VALUE) for n in range(BATCH)]
        return pb.PutRequest(ClientID=client, JournalDir="j", Messages=messages).SerializeToString()

    bare_channel = _bare(bare.address)
    discard: Any = bare_channel.unary_unary("/bare.Bare/Discard")
    channel = grpc.insecure_channel(server.address)
    put: Any = channel.unary_unary("/hub.Hub/Put")
    numbers = iter(range(1000))

    def through(process: Process, call: Callable[[bytes], bytes]) -> float:
        client = f"put{next(numbers)}"
        requests = [request(client, at * BATCH) for at in range(BATCHES)]
        call(request(client, 0))
        before = process.cpu_s()
        for data in requests:
            call(data)
        return (process.cpu_s() - before) / (BATCH * BATCHES)

    found = interleaved({"put": lambda: through(server, put), "discard": lambda: through(bare, discard)}, 5)
    bare_channel.close()
    channel.close()
    ratio = found["put"] / found["discard"]
    return [
        row("handler that discards 1,000 x 100 B", f"{found['discard'] * 1e9:,.0f} ns CPU/message", 1.0),
        row("Put of 1,000 x 100 B, synced: server's CPU", f"{found['put'] * 1e9:,.0f} ns CPU/message", ratio, most=3.5),
    ]


def _many(server: Process) -> list[Row]:
    """One client that sends batch after batch, and 64 clients that send as many concurrently."""
    import sej
    from hub.wire import Client

    numbers = iter(range(1000))

    def send(clients: int) -> float:
        number = next(numbers)
        each = 256 // clients
        batches = [[sej.Message(at * 100 + n, n, 0, b"", VALUE) for n in range(100)] for at in range(each)]
        callers = [Client(server.address, client_id=f"many{number}-{n}") for n in range(clients)]

        def one(client: Client) -> None:
            for batch in batches:
                client.put("j", batch)

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda client: client.where("j"), callers))
            start = time.perf_counter()
            list(pool.map(one, callers))
            took = time.perf_counter() - start
        for client in callers:
            client.close()
        return 25_600 / took

    found = interleaved({"one": lambda: send(1), "many": lambda: send(CLIENTS)}, 5)
    ratio = found["many"] / found["one"]
    return [
        row("1 client, Put of 100 x 100 B, synced", f"{found['one']:,.0f} messages/s", 1.0),
        row(f"{CLIENTS} clients together, each its own directory", f"{found['many']:,.0f} messages/s", ratio, 1.0),
    ]


def _merge(root: Path) -> list[Row]:
    """16 directories in time order, against iterating over one after the other; both by the processor's clock."""
    import random

    import hub
    import sej
    from sej.codec import IMPLEMENTATION

    rng = random.Random(1)
    with hub.Store(root / "merge") as store:
        for number in range(DIRECTORIES):
            stamp = 0
            messages = []
            for offset in range(EACH):
                stamp += rng.randrange(1, 100)
                messages.append(sej.Message(offset, stamp, 0, b"", VALUE))
            store.put(f"c{number:02d}", "j", messages)
        paths = [root / "merge" / source.name for source in store.sources()]
    total = DIRECTORIES * EACH

    def one_after_the_other() -> float:
        start, count = time.process_time(), 0
        for path in paths:
            with sej.Scanner(path) as scanner:
                for _ in scanner:
                    count += 1
        assert count == total
        return total / (time.process_time() - start)

    def merged() -> float:
        with hub.Merge(root / "merge", "bench") as merge:
            start, count = time.process_time(), 0
            for _ in merge:
                count += 1
            assert count == total
            return total / (time.process_time() - start)

    found = interleaved({"apart": one_after_the_other, "merge": merged}, 5)
    ratio = found["merge"] / found["apart"]
    target = 0.5 if IMPLEMENTATION == "c" else 0.25
    return [
        row("16 directories, one after the other", f"{found['apart'] / 1e6:,.2f} M/s", 1.0),
        row("merge of 16, in time order", f"{found['merge'] / 1e6:,.2f} M/s", ratio, target),
    ]


if __name__ == "__main__":
    main()
