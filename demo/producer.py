"""One airport on its own machine: a process that appends its flights to four sharded journals, in time order.

    python -m demo.producer EWR artifacts/demo/machines/EWR 127.0.0.1:7890

A copier in the same process brings the journals to the hub while they grow. Each line that it prints says how many
flights were appended, and how many of them the hub has.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import shard
from demo.flights import AIRPORTS, flights_of

PREFIX = "flights"
BITS = 2
BATCH = 2000


def produce(airport: str, root: str, progress: Callable[[int], None] = lambda _: None) -> int:
    """Append all flights of an airport; returns how many."""
    flights = flights_of(airport)
    done = 0
    with shard.Writer(shard.Path(root, PREFIX, BITS)) as writer:
        for start in range(0, len(flights), BATCH):
            batch = flights[start : start + BATCH]
            writer.append_many(
                [flight.value for flight in batch],
                [flight.key for flight in batch],
                timestamp=[flight.timestamp for flight in batch],
            )
            done += len(batch)
            progress(done)
    return done


def run(airport: str, root: str, address: str) -> None:
    """Append, and copy at the same time until the hub has everything."""
    from hub.wire import Client, Copier, Progress

    lock = threading.Lock()
    counts = {"appended": 0, "copied": 0}

    def say(what: str, count: int) -> None:
        with lock:
            counts[what] = count
            print(counts["appended"], counts["copied"], flush=True)

    def on_progress(progress: Progress) -> None:
        say("copied", progress.messages)

    finished = threading.Event()
    os.makedirs(root, exist_ok=True)
    with Client(address, client_id=airport) as client, Copier(root, client, on_progress=on_progress) as copier:
        following = threading.Thread(target=copier.run, args=(finished,))
        following.start()
        try:
            produce(airport, root, lambda count: say("appended", count))
        finally:
            finished.set()
            following.join()
        copier.run_once()  # what came between its last look and the end


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in AIRPORTS:
        sys.exit(f"usage: python -m demo.producer {'|'.join(AIRPORTS)} DIRECTORY HUB")
    run(*sys.argv[1:])
