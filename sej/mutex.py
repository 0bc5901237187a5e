"""The mutex of a writer: reentrant, and cheap for the compiled modules, which take it around each write.

The reference is :class:`threading.RLock`. As there, the ``with`` statement releases it in C, so that an exception of a
signal handler cannot come in between.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sej.imports import compiled

if TYPE_CHECKING:  # type checkers see the reference
    from threading import RLock as Mutex
else:
    _twin = compiled("sej._mutex_c")
    Mutex = threading.RLock if _twin is None else _twin.Mutex

__all__ = ["Mutex"]
