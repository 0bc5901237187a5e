"""Kestrel's two journals: read what the originals left, run queues that they could read."""

from kestrel import segmented
from kestrel.codec import Operation
from kestrel.errors import Damage, DamageError, KestrelError
from kestrel.journal import read_journal
from kestrel.replay import Item, State, replay

__all__ = [
    "Damage",
    "DamageError",
    "Item",
    "KestrelError",
    "Operation",
    "State",
    "read_journal",
    "replay",
    "segmented",
]
