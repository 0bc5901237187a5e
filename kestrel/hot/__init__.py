"""What is done for each item and each record: compiled if that is installed, else the reference in pure Python.

As for the journal's codec, ``SEJ_CODEC=python`` selects the reference, and ``SEJ_CODEC=c`` requires the compiled one.
"""

from __future__ import annotations

from functools import update_wrapper as _update_wrapper
from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.hot.reference import (
        Appender,
        Calls,
        Entry,
        Following,
        Fuse,
        Log,
        Puts,
        Rows,
        Signal,
        Table,
        WriterEnd,
        tick_ns,
    )
else:
    _twin = _twin_of("kestrel.hot._hot_c", "kestrel.hot.reference")
    Appender, Entry, Fuse, Log, Signal, Table = (
        getattr(_twin, name) for name in ("Appender", "Entry", "Fuse", "Log", "Signal", "Table")
    )
    Calls, Following, Puts, Rows, WriterEnd, tick_ns = (
        getattr(_twin, name) for name in ("Calls", "Following", "Puts", "Rows", "WriterEnd", "tick_ns")
    )
    if _twin.__name__ == "kestrel.hot._hot_c":
        from kestrel.hot import reference as _reference

        for _kind, _names in (
            ("Calls", ("put", "get", "reserve", "confirm")),
            ("Following", ("get", "commit")),
            ("Puts", ("put",)),
        ):
            for _name in _names:  # their documentation and types
                _update_wrapper(getattr(getattr(_twin, _kind), _name), getattr(getattr(_reference, _kind), _name))

__all__ = [
    "Appender",
    "Calls",
    "Entry",
    "Following",
    "Fuse",
    "Log",
    "Puts",
    "Rows",
    "Signal",
    "Table",
    "WriterEnd",
    "tick_ns",
]
