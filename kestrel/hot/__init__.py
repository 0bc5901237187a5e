"""What both formats do at every append: compiled if that is installed, else the reference in pure Python.

As for the journal's codec, ``SEJ_CODEC=python`` selects the reference, and ``SEJ_CODEC=c`` requires the compiled one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.hot.reference import Appender, Entry, Fuse, Log, tick_ns
else:
    _twin = _twin_of("kestrel.hot._hot_c", "kestrel.hot.reference")
    Appender, Entry, Fuse, Log, tick_ns = _twin.Appender, _twin.Entry, _twin.Fuse, _twin.Log, _twin.tick_ns

__all__ = ["Appender", "Entry", "Fuse", "Log", "tick_ns"]
