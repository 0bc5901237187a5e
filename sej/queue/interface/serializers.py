"""How a queue turns values into bytes and back: named when it is opened, never guessed.

``None`` passes bytes through. ``"json"`` and ``"msgspec"`` (MessagePack; a package to install) are safe for bytes from
any source. ``"pickle"`` executes code in the bytes, so it must be requested by name: never use it on a journal that
others may write to.
"""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sej.checks import one_of
from sej.errors import InvalidMessageError

SERIALIZERS: Final = ("json", "msgspec", "pickle")


class Serializer(NamedTuple):
    """A pair of functions.

    Attributes:
        name: the name that was passed.
        encode: turns a value into bytes.
        decode: turns the bytes back into the value.
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def serializer(name: str | None) -> Serializer | None:
    """Return the serializer of a name; None for None: bytes stay bytes.

    Raises:
        ValueError: an unknown name.
        ImportError: ``"msgspec"`` without the package.
    """
    if name is None:
        return None
    one_of(SERIALIZERS)("serializer", name)
    if name == "pickle":
        return Serializer(name, pickle.dumps, pickle.loads)
    if name == "msgspec":
        try:
            msgpack = importlib.import_module("msgspec.msgpack")
        except ImportError as error:
            raise ImportError(
                "serializer 'msgspec' needs a package that is not installed: pip install msgspec, or use 'json'"
            ) from error
        return Serializer(name, msgpack.encode, msgpack.decode)
    return Serializer(name, _json, json.loads)


def decoded(serializer: Serializer | None, data: bytes, path: str | None, offset: int | None) -> Any:
    """Return the value of an item: the bytes, or the object that the serializer made them of.

    Raises:
        InvalidMessageError: the serializer cannot decode it.
    """
    if serializer is None:
        return data
    try:
        return serializer.decode(data)
    except Exception as error:
        raise InvalidMessageError(
            f"{serializer.name} cannot decode this value ({error}); if another program put it, call fail() on the item",
            path=path,
            offset=offset,
        ) from error


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
