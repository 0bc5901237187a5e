"""Kestrel's two journals: read what the originals left, run queues that they could read."""

from kestrel import segmented
from kestrel.codec import Operation
from kestrel.errors import Damage, DamageError, KestrelError
from kestrel.journal import read_journal
from kestrel.moving import export, import_
from kestrel.packing import pack
from kestrel.queue import Counters, Queue
from kestrel.queues import Queues
from kestrel.replay import Item, State, replay
from kestrel.transfer import Moved

__all__ = [
    "Counters",
    "Damage",
    "DamageError",
    "Item",
    "KestrelError",
    "Moved",
    "Operation",
    "Queue",
    "Queues",
    "State",
    "export",
    "import_",
    "pack",
    "read_journal",
    "replay",
    "segmented",
]
