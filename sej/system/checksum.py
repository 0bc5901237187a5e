"""CRC32C (Castagnoli), by the package ``crc32c``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


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


crc32c: Final = crc32c_function()
"""``crc32c(data, crc=0)``: the checksum of the bytes with checksum ``crc``, followed by data.

Example:
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
"""
