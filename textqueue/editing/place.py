"""The place of a message, and a change to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textqueue.ledger.records import EMPTY


class Place(NamedTuple):
    """A message as it was read: its position, its bytes, and the epoch of the ledger (-1: unknown)."""

    position: int
    raw: bytes
    epoch: int


class Change(NamedTuple):
    """A change: bytes with their positions relative to the control byte, and the kind and owner of the ledger line."""

    writes: Sequence[tuple[int, bytes]]
    kind: int
    owner: bytes = EMPTY
