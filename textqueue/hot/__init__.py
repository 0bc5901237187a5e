"""The hot paths: compiled where that is installed, the pure Python reference elsewhere.

``IMPLEMENTATION`` is ``"c"`` or ``"python"``; ``SEJ_CODEC=python`` forces the reference, ``SEJ_CODEC=c`` insists on the
compiled one, as for the journal's codec. The same tests run on both.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING
from typing import Literal as _Literal

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from textqueue.hot.reference import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

__all__ = ["DONE", "GONE", "IMPLEMENTATION", "NOT_DONE", "Core", "Held", "ends", "proven", "ready", "status_lines"]

IMPLEMENTATION: _Literal["c", "python"]
if not TYPE_CHECKING:
    _wish = _os.environ.get("SEJ_CODEC", "")
    try:
        if _wish == "python":
            raise ImportError("the reference was asked for")
        from textqueue.hot._hot_c import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

        IMPLEMENTATION = "c"
    except ImportError:
        if _wish == "c":
            raise
        from textqueue.hot.reference import DONE, GONE, NOT_DONE, Core, Held, ends, proven, ready, status_lines

        IMPLEMENTATION = "python"
