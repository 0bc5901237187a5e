"""Grouping a batch by shard in pure Python: the reference that the compiled twin must equal."""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh64_intdigest

from sej.errors import InvalidMessageError
from sej.format import MAX_KEY_SIZE, MAX_MESSAGE_SIZE, OVERHEAD_SIZE
from shard.name_format import HASH_SEED

__all__ = ["group"]

BytesLike = bytes | bytearray | memoryview
Parts = tuple[list[BytesLike], list[BytesLike], list[int]]


def group(
    values: Sequence[BytesLike],
    keys: Sequence[BytesLike],
    bits: int,
    indexes: Sequence[int] | None,
    places: bool = False,
) -> dict[int, Parts]:
    """Put a batch into groups by shard, keeping the order within each.

    Every message is checked before anything is given out, so that a batch is refused as a whole.

    Args:
        values: the payloads.
        keys: as many.
        bits: of the tree.
        indexes: the shards, where a route of the user's own gave them; None: by the keys.
        places: say where in the batch each message stood; else those lists stay empty.

    Returns:
        For each shard (values, keys, places in the batch).

    Raises:
        ValueError: not as many keys as values.
        TypeError: a value or key is not bytes.
        InvalidMessageError: a key or message is too long.

    Example:
        >>> group([b"a", b"b", b"c"], [b"x", b"y", b"x"], 3, None, places=True)
        {1: ([b'a', b'c'], [b'x', b'x'], [0, 2]), 3: ([b'b'], [b'y'], [1])}
    """
    if len(keys) != len(values):
        raise ValueError(f"keys has {len(keys)} entries for {len(values)} values")
    mask = (1 << bits) - 1
    found: dict[int, Parts] = {}
    for place, (value, key) in enumerate(zip(values, keys, strict=True)):
        _check(place, value, key)
        index = xxh64_intdigest(key, HASH_SEED) & mask if indexes is None else indexes[place]
        parts = found.get(index)
        if parts is None:
            parts = found[index] = ([], [], [])
        parts[0].append(value)
        parts[1].append(key)
        if places:
            parts[2].append(place)
    return found


def _check(place: int, value: object, key: object) -> None:
    for name, part in (("value", value), ("key", key)):
        if not isinstance(part, bytes | bytearray | memoryview):
            hint = ": encode it first" if isinstance(part, str) else ""
            raise TypeError(f"{name} {place} must be bytes, not {type(part).__name__}{hint}; nothing was appended")
    assert isinstance(value, bytes | bytearray | memoryview) and isinstance(key, bytes | bytearray | memoryview)
    if len(key) > MAX_KEY_SIZE:
        raise InvalidMessageError(
            f"key {place} has {len(key)} bytes; the format allows {MAX_KEY_SIZE}; nothing was appended"
        )
    size = OVERHEAD_SIZE + len(key) + len(value)
    if size > MAX_MESSAGE_SIZE:
        raise InvalidMessageError(
            f"message {place} would have {size} bytes; the format allows {MAX_MESSAGE_SIZE}; nothing was appended"
        )
