"""The calls of a libkestrel queue that are made for each item: compiled if that is installed, else the reference."""

from __future__ import annotations

from functools import update_wrapper as _update_wrapper
from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.segmented.hot.reference import Appending, FileEntry, Following, Gets, Puts, Shared
else:
    _twin = _twin_of("kestrel.hot._hot_c", "kestrel.segmented.hot.reference")
    Appending, FileEntry, Following = _twin.Appending, _twin.FileEntry, _twin.Following
    Gets, Puts, Shared = _twin.Gets, _twin.Puts, _twin.Shared
    if _twin.__name__ == "kestrel.hot._hot_c":
        from kestrel.segmented.hot import reference as _reference

        for _own, _other in (  # their documentation and types
            (Puts.put, _reference.Puts.put),
            (Gets.get, _reference.Gets.get),
            (Gets.commit, _reference.Gets.commit),
        ):
            _update_wrapper(_own, _other)

__all__ = ["Appending", "FileEntry", "Following", "Gets", "Puts", "Shared"]
