"""Shards in three terminals: one produces orders, any number of workers share them by customer.

    python examples/shards.py work       # in two terminals
    python examples/shards.py produce    # in a third

Stop a worker with Ctrl-C, or kill it: the other one takes up its shards within a second. Without an argument, all
three run for a moment.
"""

import contextlib
import multiprocessing
import os
import sys

import sej
import shard

ORDERS = shard.Path("orders-data", prefix="orders", bits=3)


def produce(count: int = 1000) -> None:
    """Append orders of a few customers; each customer's stay in one shard, in order."""
    with shard.Writer(ORDERS) as writer:
        for number in range(count):
            writer.append(b"order %d" % number, b"customer %d" % (number % 20))


def work(timeout: float | None = None) -> None:
    """Handle orders until stopped, or until none came for a while."""
    os.makedirs(ORDERS.root, exist_ok=True)

    def handle(index: int, message: sej.Message) -> None:
        print(f"worker {os.getpid()}, shard {index}: {message.key.decode()}, {message.value.decode()}")

    handled = shard.Worker(ORDERS, "shipping", timeout=timeout).run(handle)
    print(f"worker {os.getpid()} handled {handled}")


if __name__ == "__main__":
    if sys.argv[1:] == ["produce"]:
        produce()
    elif sys.argv[1:] == ["work"]:
        with contextlib.suppress(KeyboardInterrupt):
            work()
    else:
        workers = [multiprocessing.Process(target=work, args=(1.0,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        produce(100)
        for worker in workers:
            worker.join()
        left = sum(row.messages for row in shard.lag(ORDERS, "shipping"))
        print(f"{left} orders are left")
        sys.exit(left > 0 or any(worker.exitcode for worker in workers))
