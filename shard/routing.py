"""The shard of a message: the low bits of a hash of its key, or of the result of a user's function.

``xxh64`` is XXH64 with seed 42, equal to Spark's ``xxhash64(key)``; ``fnv`` is the hash of the original's example. A
message without a key has the empty key, so all messages without keys go to one shard. The functions over many keys
exist twice, like the codec: pure Python and compiled; ``SEJ_CODEC`` chooses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from xxhash import xxh64_intdigest

from sej.checks import a, between, one_of
from sej.imports import twin
from sej.message import Message
from shard.name_format import HASH_SEED, MAX_BITS, Hash

if TYPE_CHECKING:  # type checkers see the reference
    from shard._route_py import Appender, fnv, group
else:
    _twin = twin("shard._route_c", "shard._route_py")
    Appender, fnv, group = _twin.Appender, _twin.fnv, _twin.group

__all__ = [
    "HASHES",
    "Appender",
    "BytesLike",
    "Function",
    "Route",
    "check_route",
    "fnv",
    "group",
    "index_of",
    "routed",
]

BytesLike = bytes | bytearray | memoryview
Function = Callable[[Message], int]
"""A function of a message that returns an int, whose low bits are the shard. The message's offset is unknown: -1."""
Route = Hash | Function
HASHES: Final[tuple[Hash, ...]] = get_args(Hash)

_BITS: Final = between(0, MAX_BITS)
_KEY: Final = a(bytes, bytearray, memoryview)
_HASH: Final = one_of(HASHES)
_ROUTE: Final = one_of(HASHES, ", or a function of a message")


def check_route(name: str, route: object) -> None:
    """Refuse a value that is not None, the name of a hash or a function.

    Raises:
        TypeError: it has the wrong type.
        ValueError: no hash has this name.
    """
    if route is not None and not callable(route):
        _ROUTE(name, route)


def index_of(key: BytesLike, bits: int, route: Hash = "xxh64") -> int:
    """Return the shard, of ``2**bits``, that a key belongs to.

    Args:
        key: up to 127 bytes.
        bits: of the sharded journal, 0 to 10.
        route: the hash: ``"xxh64"``, which equals Spark's ``xxhash64``, or ``"fnv"``, as in the original's example.

    Raises:
        TypeError: key is not bytes, or bits not an int.
        ValueError: bits is out of its range, or no hash has this name.

    Example:
        >>> index_of(b"alice", 3), index_of(b"", 10), index_of(b"alice", 3, "fnv")
        (3, 772, 5)
    """
    if type(bits) is not int or not 0 <= bits <= MAX_BITS:
        _BITS("bits", bits)
    if route == "xxh64":
        return xxh64_intdigest(_no_text(key), HASH_SEED) & ((1 << bits) - 1)
    _HASH("route", route)
    return fnv(_no_text(key)) & ((1 << bits) - 1)


def _no_text(key: object) -> Any:
    if isinstance(key, str):  # xxhash would accept it, as UTF-8
        raise TypeError("key must be bytes, got str; encode it first, for example key.encode()")
    if not isinstance(key, bytes):
        _KEY("key", key)
    return key


def routed(route: Function, messages: Sequence[Message], bits: int) -> list[int]:
    """Return the shards that a function of the user returned.

    Raises:
        TypeError: it returned something that is not an int.
    """
    mask = (1 << bits) - 1
    found = []
    for message in messages:
        index = route(message)
        if not isinstance(index, int):
            raise TypeError(
                f"route must return an int, whose low {bits} bits are the shard, got {type(index).__name__}"
            )
        found.append(index & mask)
    return found
