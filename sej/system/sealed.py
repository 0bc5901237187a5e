"""Small JSON files that decisions depend on: one line that begins with a checksum.

::

    1234abcd {"start":28,"stop":33,"reason":"no message","kept":null}

The eight hexadecimal digits are the CRC32C of the file's name (without its directory) and the JSON text after the
space. With the name in it, a file that was swapped with another one of its kind is noticed too.

Every package may import it. No I/O: bytes in, values out.
"""

from __future__ import annotations

import os
from typing import Any

from sej.system.checksum import crc32c


def seal(path: str | os.PathLike[str], content: Any) -> bytes:
    r"""Return the bytes of a file that will be at path.

    Example:
        >>> seal("gaps/7.gap", {"start": 7})
        b'4172aaa8 {"start":7}\n'
    """
    import json  # here, because a writer opens most journals without it

    body = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (_check(path, body), body)


def unseal(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    """Return the object in the bytes of the file at path. Of the path, only the name of the file counts.

    Raises:
        ValueError: the checksum is wrong, or the bytes are not such an object.
    """
    import json

    check, _, body = data.rstrip(b"\n").partition(b" ")
    wanted = b"%08x" % _check(path, body)
    if check != wanted:
        raise ValueError(f"its checksum is {check[:8]!r}, expected {wanted!r}")
    try:
        content = json.loads(body)
    except RecursionError:
        raise ValueError("its objects are nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    return content


def whole(value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
    """Return the value if it is an integer from low to high.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"expected an integer from {low} to {high}, got {str(value)[:40]}")
    return value


def _check(path: str | os.PathLike[str], body: bytes) -> int:
    return crc32c(body, crc32c(os.path.basename(os.fspath(path)).encode("utf-8", "surrogateescape") + b"\0"))
