"""The codec: the compiled twin if it is installed, else the pure Python reference.

``IMPLEMENTATION`` is ``"c"`` or ``"python"``; ``SEJ_CODEC=python`` forces the reference, ``SEJ_CODEC=c`` requires the
compiled one. The same tests run on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Literal as _Literal

from sej.codec.reference import Candidate, Columns, Run
from sej.imports import compiled as _compiled
from sej.imports import twin as _twin

if TYPE_CHECKING:  # type checkers see the reference
    from sej.codec.buffer_reference import Buffer
    from sej.codec.reference import (
        columns,
        decode,
        decode_many,
        encode,
        find_candidate,
        measure,
        message_size,
        renumber,
        walk,
    )
else:
    Buffer = _twin("sej.codec._codec_c", "sej.codec.buffer_reference").Buffer
    _codec = _twin("sej.codec._codec_c", "sej.codec.reference")
    columns = _codec.columns
    decode = _codec.decode
    decode_many = _codec.decode_many
    encode = _codec.encode
    find_candidate = _codec.find_candidate
    measure = _codec.measure
    message_size = _codec.message_size
    renumber = _codec.renumber
    walk = _codec.walk

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
    "renumber",
    "walk",
]

IMPLEMENTATION: _Literal["c", "python"] = "c" if _compiled("sej.codec._codec_c") else "python"
