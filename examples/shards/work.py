"""A worker: ships the orders of its shards. Start as many as you like; together they have all shards, each has its own.

    python examples/shards/work.py

Stop one with Ctrl-C, or kill it with SIGKILL: the others take up its shards, and no order is left out.
"""

import os
import signal
from pathlib import Path

import sej
import shard

ORDERS = shard.Path("orders-data", prefix="orders", bits=3)


def ship(index: int, order: sej.Message) -> None:
    """Handle one order; an exception would have it tried again, and put aside after the fifth time."""
    print(f"worker {os.getpid()}, shard {index}: {order.value.decode()} of {order.key.decode()}", flush=True)


if __name__ == "__main__":
    Path(ORDERS.root).mkdir(exist_ok=True)  # whoever comes first: a worker may wait for the producer
    worker = shard.Worker(ORDERS, "shipping", dead_letter="orders-dead")
    signal.signal(signal.SIGINT, lambda *_: worker.stop())  # as SIGTERM: after the order in hand
    handled = worker.run(ship)
    print(f"worker {os.getpid()} was asked to stop: it handled {handled} orders")
