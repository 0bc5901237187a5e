"""The hub takes the airports' journals, while they are being written.

Each airport's tree is followed from where the hub says; a message that came twice would be left, a gap refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import hub
import sej
import shard
from demo.producer import BITS, PREFIX

__all__ = ["collect"]

BATCH = 4000


def collect(
    store: hub.Store, airport: str, tree: Path, finished: threading.Event, progress: Callable[[int], None]
) -> int:
    """Bring one airport's journals to the hub until they have ended and everything is there; returns how many."""
    path = shard.Path(tree, PREFIX, BITS)
    done = 0
    while True:
        last = finished.is_set()  # before looking: what is appended until then is still taken
        for journal in path.dirs():
            if os.path.isdir(os.path.join(journal, "jnl")):
                done += _take(store, airport, journal, progress)
        if last:
            return done
        finished.wait(0.2)


def _take(store: hub.Store, airport: str, journal: str, progress: Callable[[int], None]) -> int:
    name = os.path.basename(journal)
    taken = 0
    with sej.Scanner(journal, store.end_offset(airport, name)) as scanner:
        while messages := scanner.read(BATCH):
            store.put(airport, name, messages)
            taken += len(messages)
            progress(len(messages))
    return taken
