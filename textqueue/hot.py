"""The hot paths: compiled where that is installed, the pure Python reference elsewhere.

``IMPLEMENTATION`` is ``"c"`` or ``"python"``; ``SEJ_CODEC=python`` forces the reference, ``SEJ_CODEC=c`` insists on the
compiled one, as for the journal's codec. The same tests run on both.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from textqueue._hot_py import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

__all__ = ["DONE", "GONE", "IMPLEMENTATION", "NOT_DONE", "Core", "Held", "ends", "proven", "ready", "status_lines"]

IMPLEMENTATION: Literal["c", "python"]
if not TYPE_CHECKING:
    _wish = os.environ.get("SEJ_CODEC", "")
    try:
        if _wish == "python":
            raise ImportError("the reference was asked for")
        from textqueue._hot_c import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

        IMPLEMENTATION = "c"
    except ImportError:
        if _wish == "c":
            raise
        from textqueue._hot_py import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

        IMPLEMENTATION = "python"
