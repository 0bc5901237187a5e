"""One airport on its own machine: a process that appends its flights to four sharded journals, in time order.

    python -m demo.producer EWR artifacts/demo/machines/EWR

Each line that it prints is the number of flights appended so far.
"""

from __future__ import annotations

import sys

import shard
from demo.flights import AIRPORTS, flights_of

__all__ = ["BITS", "PREFIX", "produce"]

PREFIX = "flights"
BITS = 2
BATCH = 2000


def produce(airport: str, root: str) -> int:
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
            print(done, flush=True)
    return done


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in AIRPORTS:
        sys.exit(f"usage: python -m demo.producer {'|'.join(AIRPORTS)} DIRECTORY")
    produce(sys.argv[1], sys.argv[2])
