"""What is done for each item and each record: compiled if that is installed, else the reference in pure Python.

As for the journal's codec, ``SEJ_CODEC=python`` selects the reference, and ``SEJ_CODEC=c`` requires the compiled one.
"""

from __future__ import annotations

from functools import update_wrapper as _update_wrapper
from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.fast.reference import Appender as Appender
    from kestrel.fast.reference import Calls as Calls
    from kestrel.fast.reference import Entry as Entry
    from kestrel.fast.reference import Following as Following
    from kestrel.fast.reference import Fuse as Fuse
    from kestrel.fast.reference import Output as Output
    from kestrel.fast.reference import Puts as Puts
    from kestrel.fast.reference import Rows as Rows
    from kestrel.fast.reference import Table as Table
    from kestrel.fast.reference import WriterEnd as WriterEnd
    from kestrel.fast.reference import tick_ns as tick_ns
else:
    _twin = _twin_of("kestrel.fast._hot_c", "kestrel.fast.reference")

    def __getattr__(name: str) -> object:
        return getattr(_twin, name)


def shorten(kind: type, *names: str) -> None:
    """Put the compiled calls of its base before those of a class, which they call as ``_name`` for the long way."""
    for name in names:
        short = getattr(super(kind, kind), name, None)
        if short is not None:
            setattr(kind, f"_{name}", getattr(kind, name))
            setattr(kind, name, _update_wrapper(short, getattr(kind, f"_{name}")))  # documentation and types
