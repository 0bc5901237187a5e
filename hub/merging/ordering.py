"""The order of a merge: the compiled module if it is installed and the compiled codec is on, else pure Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import twin

if TYPE_CHECKING:  # type checkers see the reference
    from hub.merging._merge_py import Merger
else:
    Merger = twin("hub.merging._merge_c", "hub.merging._merge_py").Merger

__all__ = ["Merger"]
