"""The shard of a message: the low bits of a hash of its key, or of the result of a user's function.

``xxh64`` is XXH64 with seed 42, equal to Spark's ``xxhash64(key)``; ``fnv`` is the hash of the original's example:
FNV-1a in 32 bits, folded to 16. Both never change. A message without a key has the empty key, so all messages without
keys go to one shard. :func:`group` and :class:`Appender` exist twice, like the codec: pure Python and compiled;
``SEJ_CODEC`` chooses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from xxhash import xxh64_intdigest

from sej.checks import between, instance_of, one_of
from sej.codec import Buffer
from sej.codec.format import MAX_KEY_SIZE, MAX_MESSAGE_SIZE, OVERHEAD_SIZE
from sej.errors import InvalidMessageError, SejError
from sej.imports import compiled
from sej.message import Message

MAX_BITS: Final = 10
Hash = Literal["xxh64", "fnv"]
"""The hash that routes the keys of a sharded journal, by its name."""
HASH_SEED: Final = 42
_FNV_BASIS: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


class RouteError(SejError):
    """The keys of a sharded journal are routed in another way: an append would split them. Nothing was appended."""


BytesLike = bytes | bytearray | memoryview
Function = Callable[[Message], int]
"""A function of a message that returns an int, whose low bits are the shard. The message's offset is unknown: -1."""
Route = Hash | Function
HASHES: Final[tuple[Hash, ...]] = get_args(Hash)

_BITS: Final = between(0, MAX_BITS)
_KEY: Final = instance_of(bytes, bytearray, memoryview)
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
    if route != "xxh64":
        _HASH("route", route)
    return hash_of(_no_text(key), route) & ((1 << bits) - 1)


def _no_text(key: object) -> Any:
    if isinstance(key, str):  # xxhash would accept it, as UTF-8
        raise TypeError("key must be bytes, got str; encode it first, for example key.encode()")
    if not isinstance(key, bytes):
        _KEY("key", key)
    return key


_Lists = tuple[list[BytesLike], list[BytesLike], list[int]]


def hash_of(key: BytesLike, name: Hash) -> int:
    """Return the hash whose low bits are the shard."""
    if name == "xxh64":
        return xxh64_intdigest(key, HASH_SEED)
    found = _FNV_BASIS
    for byte in bytes(key):
        found = (found ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return found >> 16 ^ found & 0xFFFF


def group(
    values: Sequence[BytesLike],
    keys: Sequence[BytesLike],
    bits: int,
    indexes: Sequence[int] | None,
    places: bool = False,
    name: Hash = "xxh64",
) -> dict[int, _Lists]:
    """Group a batch by shard, keeping the order within each. The compiled one takes lists of bytes.

    Every message is checked before the result is returned, so that a batch is refused as a whole.

    Args:
        values: the payloads.
        keys: one for each value.
        bits: bits of the sharded journal.
        indexes: the shards that a route function returned; None: by the keys.
        places: also return each message's position in the batch; otherwise those lists are empty.
        name: the hash of the keys.

    Returns:
        For each shard (values, keys, places in the batch).

    Raises:
        ValueError: the number of keys differs from the number of values.
        TypeError: a value or key is not bytes.
        InvalidMessageError: a key or message is too long.

    Example:
        >>> group([b"a", b"b", b"c"], [b"x", b"y", b"x"], 3, None, places=True)
        {1: ([b'a', b'c'], [b'x', b'x'], [0, 2]), 3: ([b'b'], [b'y'], [1])}
    """
    if len(keys) != len(values):
        raise ValueError(f"keys must have {len(values)} entries, one for each value, got {len(keys)}")
    mask = (1 << bits) - 1
    found: dict[int, _Lists] = {}
    for place, (value, key) in enumerate(zip(values, keys, strict=True)):
        check_message(place, value, key)
        index = (hash_of(key, name) if indexes is None else indexes[place]) & mask
        parts = found.get(index)
        if parts is None:
            parts = found[index] = ([], [], [])
        parts[0].append(value)
        parts[1].append(key)
        if places:
            parts[2].append(place)
    return found


class Appender:
    """Appends to the shards that are open, and leaves everything else to its owner.

    A shard's buffer has its own protection against threads, signal handlers, failures and forks, so no lock of the
    owner is needed.
    """

    __slots__ = ("_buffers", "_mask", "_name", "_owner", "_under_way")

    def __init__(
        self, bits: int, name: Hash, owner: Callable[..., tuple[int, int]], under_way: Callable[[], bool]
    ) -> None:
        """Know no shard yet.

        Args:
            bits: bits of the sharded journal.
            name: the hash of the keys.
            owner: appends a message in any case.
            under_way: returns whether a call of the owner is under way in this thread. Then the owner is asked, which
                refuses.
        """
        self._mask = (1 << bits) - 1
        self._name: Hash = name
        self._owner = owner
        self._under_way = under_way
        self.forget()

    def open(self, index: int, buffer: Buffer) -> None:
        """Append to this buffer from now on."""
        self._buffers[index] = buffer

    def forget(self) -> None:
        """Leave everything to the owner again."""
        self._buffers: list[Buffer | None] = [None] * (self._mask + 1)

    def append(
        self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None
    ) -> tuple[int, int]:
        """Append one message; see :meth:`shard.Writer.append`."""
        if isinstance(key, bytes):
            index = hash_of(key, self._name) & self._mask
            buffer = self._buffers[index]
            if buffer is not None and not self._under_way():
                return index, buffer.append(value, key, type, timestamp)
        return self._owner(value, key, type, timestamp)


def check_message(place: int, value: object, key: object) -> tuple[bytes, bytes]:
    """Return a value and a key as bytes, if they are bytes and not too long."""
    for name, part in (("value", value), ("key", key)):
        if not isinstance(part, bytes | bytearray | memoryview):
            hint = ": encode it first" if isinstance(part, str) else ""
            raise TypeError(f"{name} {place} must be bytes, not {type(part).__name__}{hint}; nothing was appended")
    assert isinstance(value, bytes | bytearray | memoryview) and isinstance(key, bytes | bytearray | memoryview)
    payload, label = bytes(value), bytes(key)
    if len(label) > MAX_KEY_SIZE:
        raise InvalidMessageError(
            f"key {place} must have at most {MAX_KEY_SIZE} bytes, got {len(label)}; nothing was appended"
        )
    size = OVERHEAD_SIZE + len(label) + len(payload)
    if size > MAX_MESSAGE_SIZE:
        raise InvalidMessageError(
            f"message {place} must have at most {MAX_MESSAGE_SIZE} bytes, got {size}; nothing was appended"
        )
    return payload, label


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


GROUP: Final = group
APPENDER: Final = Appender
"""The references."""
if not TYPE_CHECKING:  # type checkers see the references
    _fast = compiled("shard._route_c")
    if _fast is not None:
        Appender = _fast.Appender

        def group(values, keys, bits, indexes, places=False, name="xxh64"):
            """Group a batch by shard; see :data:`GROUP`, which takes what the compiled one does not."""
            found = _fast.group(values, keys, bits, indexes, places, name)
            return GROUP(values, keys, bits, indexes, places, name) if found is None else found
