"""The order of a merge: compiled where that is installed and the compiled codec is on, pure Python elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import twin

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from hub._merge_py import Merger
else:
    Merger = twin("hub._merge_c", "hub._merge_py").Merger

__all__ = ["Merger"]
