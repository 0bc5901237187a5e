"""The example of three terminals: two workers ship what the producer appends, and one of them is killed."""

import re
import signal
import subprocess
import sys
from pathlib import Path as FilePath

import shard
from tests.sej.hooks import Script

EXAMPLE = FilePath(__file__).parent.parent.parent / "examples" / "shards"
SHIPPED = re.compile(r"worker \d+, shard (\d): order (\d+) of customer (\d+)\n")


def start(cwd: FilePath) -> Script:
    command = [sys.executable, "-W", "error", str(EXAMPLE / "work.py")]
    return Script(command, cwd=cwd, stdout=subprocess.PIPE, text=True)


def produce(cwd: FilePath, count: int) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE / "produce.py"), str(count)]
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_three_terminals(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path / "orders-data", "orders", 3)
    produce(tmp_path, 100)
    with start(tmp_path) as first:
        assert SHIPPED.fullmatch(first.stdout.readline())
        with start(tmp_path) as second:
            try:
                first.kill()
                produce(tmp_path, 100)
                orders: set[int] = set()
                while orders != set(range(100)):  # the second one gets all shards
                    found = SHIPPED.fullmatch(second.stdout.readline())
                    assert found is not None
                    index, order, customer = map(int, found.groups())
                    assert index == path.index(b"customer %d" % customer) and customer == order % 20
                    orders.add(order)
                second.send_signal(signal.SIGINT)
                last = second.stdout.readlines()[-1]
                assert last.startswith(f"worker {second.pid} was asked to stop: it handled ")
                assert second.wait(60) == 0
            finally:
                first.kill()
                second.kill()
