"""CRC32C (Castagnoli), by the package ``crc32c``, which is loaded by the first call."""

from __future__ import annotations

from collections.abc import Callable

_library: Callable[..., int] | None = None


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the checksum of the bytes with checksum ``crc``, followed by data.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    global _library
    if _library is None:
        _library = crc32c_function()
    return _library(data, crc)


def crc32c_function() -> Callable[..., int]:
    """Return the package's own function, for a module that calls it for each of many small records.

    The extension alone is loaded: all of the package also loads importlib.metadata, half of the time of `sej tail`.
    """
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    package = find_spec("crc32c")
    found = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if found and found.loader:
        module = module_from_spec(found)
        found.loader.exec_module(module)
        return module.crc32c  # type: ignore[no-any-return]
    from crc32c import crc32c as function

    return function
