"""Decode MessagePack and BSON values into JSON for ``--format``. Bytes in, text out.

The libraries are the extra ``formats``; each is imported when its format is requested.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from sej.cli.shared.units import iso_time


def decoder(form: str) -> Callable[[bytes], str]:
    """Return a function that turns one value into JSON text, or raises ValueError if it cannot be decoded.

    Args:
        form: ``msgpack`` or ``bson``.

    Bytes become ``{"b64": ...}``. Other types that JSON lacks become objects with the type's name; for BSON these are
    MongoDB's Extended JSON.

    Raises:
        ImportError: the library is not installed; the command names the extra that installs it.

    Example:
        >>> decoder("msgpack")(bytes([0x82, 0xA1, 0x61, 0x01, 0x07, 0xC4, 0x01, 0xFF]))
        '{"a": 1, "7": {"b64": "/w=="}}'
    """
    return {"msgpack": _msgpack, "bson": _bson}[form]()


def _msgpack() -> Callable[[bytes], str]:
    import msgpack

    def decode(value: bytes) -> str:
        try:
            found = msgpack.unpackb(value, strict_map_key=False, unicode_errors="backslashreplace")
            return json.dumps(plain(found), ensure_ascii=False)
        except Exception as error:  # its own errors, those of what it calls, and times out of range
            raise ValueError(f"not MessagePack: {str(error) or type(error).__name__}") from None

    def plain(found: Any) -> Any:
        match found:
            case dict():
                return {key if isinstance(key, str) else _name(plain(key)): plain(one) for key, one in found.items()}
            case list() | tuple() if not isinstance(found, msgpack.ExtType):
                return [plain(one) for one in found]
            case bytes():
                return _b64(found)
            case float() if not math.isfinite(found):
                return str(found)
            case msgpack.Timestamp():
                return iso_time(found.to_unix_nano())
            case msgpack.ExtType():
                return {"ext": found.code, **_b64(found.data)}
        return found

    return decode


def _bson() -> Callable[[bytes], str]:
    import bson
    from bson import json_util
    from bson.codec_options import DatetimeConversion

    options: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(
        tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
    )

    def decode(value: bytes) -> str:
        try:
            found = bson.decode(value, options)
            return json_util.dumps(found, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False)
        except Exception as error:  # InvalidBSON, and errors that it does not wrap
            raise ValueError(f"not BSON: {error}") from None

    return decode


def _name(key: Any) -> str:
    """Return a map's key as text, as JSON requires."""
    return json.dumps(key, ensure_ascii=False)


def _b64(data: bytes) -> dict[str, str]:
    return {"b64": b64encode(data).decode()}
