"""Hash keys and group a batch by shard, in pure Python: the reference for the compiled twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xxhash import xxh64_intdigest

from sej.codec import Buffer
from sej.codec.format import MAX_KEY_SIZE, MAX_MESSAGE_SIZE, OVERHEAD_SIZE
from sej.errors import InvalidMessageError
from shard.name_format import FNV_BASIS, FNV_PRIME, HASH_SEED, Hash

BytesLike = bytes | bytearray | memoryview
_Lists = tuple[list[BytesLike], list[BytesLike], list[int]]


def fnv(key: BytesLike) -> int:
    """FNV-1a of the key in 32 bits, folded to 16: the upper half XOR the lower half."""
    found = FNV_BASIS
    for byte in bytes(key):
        found = (found ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return found >> 16 ^ found & 0xFFFF


def hash_of(key: BytesLike, name: Hash) -> int:
    """Return the hash whose low bits are the shard."""
    return fnv(key) if name == "fnv" else xxh64_intdigest(key, HASH_SEED)


def group(
    values: Sequence[BytesLike],
    keys: Sequence[BytesLike],
    bits: int,
    indexes: Sequence[int] | None,
    places: bool = False,
    name: Hash = "xxh64",
) -> dict[int, _Lists]:
    """Group a batch by shard, keeping the order within each.

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
