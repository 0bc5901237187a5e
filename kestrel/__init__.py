"""Kestrel's two journals: read what the originals left, run queues that they could read."""

# Of the distribution sej-journals: sej/names.py looks for this name.

from kestrel import segmented
from kestrel.errors import Damage, DamageError, KestrelError
from kestrel.transfer import Moved
from kestrel.v2.codec import Operation
from kestrel.v2.counters import Counters
from kestrel.v2.directory import Queues
from kestrel.v2.items import Item
from kestrel.v2.journal import read_journal
from kestrel.v2.moving import export, import_
from kestrel.v2.packing import pack
from kestrel.v2.queue import Queue
from kestrel.v2.replay import State, replay

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
