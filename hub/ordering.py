"""The order of a merge: compiled where that is installed and the compiled codec is on, pure Python elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from hub._merge_py import Merger

__all__ = ["Merger"]

if not TYPE_CHECKING:
    from sej import codec

    try:
        if codec.IMPLEMENTATION == "python":
            raise ImportError("the reference was asked for")
        from hub._merge_c import Merger
    except ImportError:
        from hub._merge_py import Merger
