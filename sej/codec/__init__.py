"""The codec: the compiled twin where it is installed, the pure Python reference elsewhere.

``IMPLEMENTATION`` is ``"c"`` or ``"python"``; ``SEJ_CODEC=python`` forces the reference, ``SEJ_CODEC=c`` insists on
the compiled one. The same tests run on both.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING
from typing import Literal as _Literal

from sej.codec.reference import Candidate, Columns, Run

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from sej.codec.buffer_reference import Buffer
    from sej.codec.reference import (
        columns,
        decode,
        decode_many,
        encode,
        find_candidate,
        measure,
        message_size,
        walk,
    )

__all__ = [
    "IMPLEMENTATION",
    "Buffer",
    "Candidate",
    "Columns",
    "Run",
    "columns",
    "decode",
    "decode_many",
    "encode",
    "find_candidate",
    "measure",
    "message_size",
    "walk",
]

_wish = _os.environ.get("SEJ_CODEC", "")
if _wish not in ("", "c", "python"):
    raise ImportError(f"SEJ_CODEC={_wish!r}: expected 'c', 'python' or nothing")
IMPLEMENTATION: _Literal["c", "python"]
if not TYPE_CHECKING:
    try:
        if _wish == "python":
            raise ImportError("the reference was asked for")
        from sej.codec import _codec_c as _codec
        from sej.codec._buffer_c import Buffer

        IMPLEMENTATION = "c"
    except ImportError:
        if _wish == "c":
            raise
        from sej.codec import reference as _codec
        from sej.codec.buffer_reference import Buffer

        IMPLEMENTATION = "python"
    columns = _codec.columns
    decode = _codec.decode
    decode_many = _codec.decode_many
    encode = _codec.encode
    find_candidate = _codec.find_candidate
    measure = _codec.measure
    message_size = _codec.message_size
    walk = _codec.walk
