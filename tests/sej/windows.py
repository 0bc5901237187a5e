"""The windows through which files are read and written, smaller than they are, all in proportion.

What happens where a message is larger than one of them is the same; a test of it costs kilobytes, not megabytes. All
of them are module constants that the code looks up when it runs, and the defaults of two functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import pytest

from sej.journal.cursor import Cursor
from sej.journal.segment import SegmentReader

WINDOWS: Final = {
    "sej.writing.appender": ["_BUFFER_BYTES", "_BATCH_BYTES", "_INDEX_BYTES", "BLOCK_BYTES"],
    "sej.writing.exactly_once": ["_CHUNK_MESSAGES", "_CHUNK_BYTES"],
    "sej.journal.cursor": ["_PASSED_AT_ONCE", "BLOCK_BYTES"],
    "sej.journal.index": ["_READ_BYTES", "BLOCK_BYTES"],
    "sej.journal.view": ["_BACK_BYTES", "_SCAN_MESSAGES"],
    "sej.writing.opening": ["BLOCK_BYTES", "_SYNC_BYTES"],
    "sej.queue.log.reader": ["_SKIP"],
    "sej.journal.recovery": ["_WINDOW_BYTES", "_FIRST_WINDOW_BYTES", "_STEP_BYTES"],
    "sej.journal.repair": ["_NEAR_BYTES"],
    "sej.system.disk": ["_PIECE_BYTES"],
    "sej.journal.segment": ["_SMALL_BYTES"],
}
SCALE: Final = 256
BLOCK_BYTES: Final = (1 << 18) // SCALE
READ_BYTES: Final = (1 << 20) // SCALE
INDEX_BYTES: Final = (1 << 24) // SCALE
NEAR: Final = [(1 << bits) // SCALE for bits in (16, 18, 20, 22)]
"""Sizes around which something else happens, bytes."""


@contextmanager
def shrunk(windows: Mapping[str, Sequence[str]], scale: int = SCALE, least: int = 1) -> Iterator[pytest.MonkeyPatch]:
    """Constants of modules so many times smaller, and none smaller than least, as long as this is open."""
    with pytest.MonkeyPatch.context() as patch:
        for name, constants in windows.items():
            module = import_module(name)
            for constant in constants:
                patch.setattr(module, constant, max(getattr(module, constant) // scale, least))
        yield patch


@contextmanager
def small_windows() -> Iterator[None]:
    """Those of the journal."""
    with shrunk(WINDOWS) as patch:
        for function in (Cursor.__init__, SegmentReader.__init__):
            defaults: dict[str, Any] = function.__kwdefaults__ or {}
            patch.setitem(defaults, "chunk_bytes", defaults["chunk_bytes"] // SCALE)
        yield
