"""The calls of a Kestrel 2 queue that are made for each item: compiled if that is installed, else the reference."""

from __future__ import annotations

from functools import update_wrapper as _update_wrapper
from typing import TYPE_CHECKING

from sej.imports import twin as _twin_of

if TYPE_CHECKING:  # type checkers see the reference
    from kestrel.v2.hot.reference import Calls, Changes, Reserving, Waiting, replay_block
else:
    _twin = _twin_of("kestrel.hot._hot_c", "kestrel.v2.hot.reference")
    Calls, Changes, Reserving, Waiting = _twin.Calls, _twin.Changes, _twin.Reserving, _twin.Waiting
    replay_block = _twin.replay_block
    if _twin.__name__ == "kestrel.hot._hot_c":
        from kestrel.v2.hot import reference as _reference

        for _name in ("put", "get", "reserve", "confirm"):  # their documentation and types
            _update_wrapper(getattr(Calls, _name), getattr(_reference.Calls, _name))

__all__ = ["Calls", "Changes", "Reserving", "Waiting", "replay_block"]
