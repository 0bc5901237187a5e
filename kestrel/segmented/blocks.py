"""Decoding whole blocks of records: compiled if that is installed, else by :mod:`kestrel.segmented.codec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.segmented import codec
from sej.imports import compiled

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.segmented.codec import decode_items, decode_sizes, decode_totals, items_in
else:
    _twin = compiled("kestrel.segmented._blocks_c") or codec
    decode_items, decode_sizes, decode_totals = _twin.decode_items, _twin.decode_sizes, _twin.decode_totals
    items_in = _twin.items_in

__all__ = ["decode_items", "decode_sizes", "decode_totals", "items_in"]
