"""What is done for each item and each record: compiled if that is installed, else the reference in pure Python.

As for the journal's codec, ``SEJ_CODEC=python`` selects the reference, and ``SEJ_CODEC=c`` requires the compiled one.
"""

from __future__ import annotations

from functools import update_wrapper as _update_wrapper
from operator import attrgetter as _attrgetter
from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.fast.reference import (
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
    _twin = _twin_of("kestrel.fast._hot_c", "kestrel.fast.reference")
    _names = "Appender Calls Entry Following Fuse Log Puts Rows Signal Table WriterEnd tick_ns"
    globals().update((_name, getattr(_twin, _name)) for _name in _names.split())
    if _twin.__name__ == "kestrel.fast._hot_c":
        from kestrel.fast import reference as _reference

        _public = "Calls.put Calls.get Calls.reserve Calls.confirm Following.get Following.commit Puts.put"
        for _name in _public.split():
            _update_wrapper(_attrgetter(_name)(_twin), _attrgetter(_name)(_reference))  # documentation and types

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
