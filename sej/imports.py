"""How packages import: public names at their first use.

Every ``import sej`` loads this module, so it imports nothing that the interpreter has not loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

__all__ = ["lazily"]


def lazily(package: str, homes: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package that imports each public name at its first use.

    Args:
        package: the package's ``__name__``.
        homes: for each module, the public names that it defines.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def fetch(name: str) -> object:
        import importlib

        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return fetch, lambda: sorted(module_of)
