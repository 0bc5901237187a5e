"""A message as it was read, and what an edit writes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textqueue.ledger.log import EMPTY

__all__ = ["Change", "Place"]


class Place(NamedTuple):
    """A message as it was read: where, its bytes, and in which epoch of the ledger (-1: unknown)."""

    position: int
    raw: bytes
    epoch: int


class Change(NamedTuple):
    """Bytes to write over others of the same length, counted from the control byte, and the kind of ledger line."""

    writes: Sequence[tuple[int, bytes]]
    kind: int
    owner: bytes = EMPTY
