"""Which shard a message belongs to: XXH64 of its key, seed 42, low bits; equal to Spark's ``xxhash64(key)``.

No key is the empty key, so messages without keys all go to one shard. The functions over many keys come twice, like
the codec: pure Python and compiled; ``SEJ_CODEC`` chooses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh64_intdigest

from sej.checks import a, between
from sej.imports import twin
from sej.message import Message
from shard.name_format import HASH_SEED, MAX_BITS

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from shard._route_py import Parts, group
else:
    _twin = twin("shard._route_c", "shard._route_py")
    Parts, group = _twin.Parts, _twin.group

__all__ = ["BytesLike", "Parts", "Route", "group", "index_of", "routed"]

BytesLike = bytes | bytearray | memoryview
Route = Callable[[Message], int]
"""A function of a message that gives an int: its low bits are the shard. The message's offset is -1, not yet given."""

_BITS: Final = between(0, MAX_BITS)
_KEY: Final = a(bytes, bytearray, memoryview)


def index_of(key: BytesLike, bits: int) -> int:
    """The shard, of ``2**bits``, that a key belongs to.

    Example:
        >>> index_of(b"alice", 3), index_of(b"", 10)
        (3, 772)
    """
    if type(bits) is not int or not 0 <= bits <= MAX_BITS:
        _BITS("bits", bits)
    return xxh64_intdigest(_no_text(key), HASH_SEED) & ((1 << bits) - 1)


def _no_text(key: object) -> Any:
    if isinstance(key, str):  # which xxhash would take, in UTF-8
        raise TypeError("key must be bytes, not str: encode it first, for example key.encode()")
    if not isinstance(key, bytes):
        _KEY("key", key)
    return key


def routed(route: Route, messages: Sequence[Message], bits: int) -> list[int]:
    """The shards that a route of the user's own gives.

    Raises:
        TypeError: it gave something that is no int.
    """
    mask = (1 << bits) - 1
    found = []
    for message in messages:
        index = route(message)
        if not isinstance(index, int):
            raise TypeError(f"route must give an int, whose low {bits} bits are the shard, not {type(index).__name__}")
        found.append(index & mask)
    return found
