"""A worker: ships the orders of its shards. Start as many as you like. They share all shards.

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
    """Handle one order. After an exception it is tried again, and after five attempts it is a dead letter."""
    print(f"worker {os.getpid()}, shard {index}: {order.value.decode()} of {order.key.decode()}", flush=True)


if __name__ == "__main__":
    Path(ORDERS.root).mkdir(exist_ok=True)  # a worker may start before the producer
    worker = shard.Worker(ORDERS, "shipping", dead_letter="orders-dead")
    signal.signal(signal.SIGINT, lambda *_: worker.stop())  # like SIGTERM: stop after the current order
    handled = worker.run(ship)
    print(f"worker {os.getpid()} was asked to stop: it handled {handled} orders")
