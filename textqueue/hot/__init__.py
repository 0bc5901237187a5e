"""The hot paths: the compiled module if it is installed, otherwise the reference in pure Python.

``IMPLEMENTATION`` is ``"c"`` or ``"python"``. As for the journal's codec, ``SEJ_CODEC=python`` selects the reference,
and ``SEJ_CODEC=c`` requires the compiled module. The same tests run on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Literal as _Literal

from sej.imports import compiled as _compiled
from sej.imports import twin as _twin

if TYPE_CHECKING:  # type checkers see the reference
    from textqueue.hot.reference import (
        DONE,
        GONE,
        NOT_DONE,
        Core,
        Held,
        ends,
        essence,
        newest,
        proven,
        ready,
        status_lines,
        variable_at,
    )
    from textqueue.hot.single import Single
else:
    _hot = _twin("textqueue.hot._hot_c", "textqueue.hot.reference")
    DONE, GONE, NOT_DONE, Core, Held = _hot.DONE, _hot.GONE, _hot.NOT_DONE, _hot.Core, _hot.Held
    ends, essence, newest, proven = _hot.ends, _hot.essence, _hot.newest, _hot.proven
    ready, status_lines, variable_at = _hot.ready, _hot.status_lines, _hot.variable_at
    Single = _twin("textqueue.hot._single_c", "textqueue.hot.single").Single

__all__ = [
    "DONE",
    "GONE",
    "IMPLEMENTATION",
    "NOT_DONE",
    "Core",
    "Held",
    "Single",
    "ends",
    "essence",
    "newest",
    "proven",
    "ready",
    "status_lines",
    "variable_at",
]

IMPLEMENTATION: _Literal["c", "python"] = "c" if _compiled("textqueue.hot._hot_c") else "python"
