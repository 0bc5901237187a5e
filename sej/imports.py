"""How packages import: public names at their first use, compiled modules if they are installed.

The first import of any of our packages loads this module, so it imports nothing that the interpreter has not loaded
already. That import warns if another distribution has replaced one of our packages.

``sej doctor`` reports other distributions with the names of our packages, and the first import warns. Installing such a
distribution over ours replaces files of ours, and uninstalling it removes them. In a folder that comes first in
``sys.path``, it is imported instead of ours. The search reads the names in the folders of ``sys.path``, and loads no
module.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
"""That of :mod:`typing`, whose import takes longer than that of a whole package."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Final

PACKAGES: Final = ("hub", "kestrel", "pipeline", "sej", "shard", "textqueue")
ADVICE: Final = "uninstall the other package, then run pip install --force-reinstall --no-deps sej-journals"


def warn_if_foreign() -> None:
    """Issue a ``UserWarning`` for each result of :func:`foreign`."""
    for found in foreign().values():
        import warnings

        warnings.warn(f"{found}; {ADVICE}", UserWarning, stacklevel=3)


def foreign() -> dict[str, str]:
    """Return the packages that another distribution is named after, each with what is wrong."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            package = name.partition("-")[0].lower()
            if package in PACKAGES and name.endswith((".dist-info", ".egg-info")):
                what = f"{name.rpartition('.')[0]} is installed in {folder}"
                found.setdefault(package, f"{what}: it has files of the same names as ours")
    return found


def lazily(
    package: str, homes: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports each public name at its first use.

    Type checkers read the same names as ``import NAME as NAME`` under ``if TYPE_CHECKING``.

    Args:
        package: the package's ``__name__``.
        homes: for each module, the public names that it defines.
        modules: the names of the package's modules that are public themselves.
    """
    module_of = {name: module for module, names in homes.items() for name in names}
    public = frozenset(modules)

    def fetch(name: str) -> object:
        if name in public:
            return _imported(f"{package}.{name}")  # which sets the attribute
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(_imported(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return fetch, lambda: sorted(public.union(module_of)), sorted(module_of)


def compiled(module: str) -> ModuleType | None:
    """Return the compiled module, or None to use pure Python.

    Pure Python is used if the module is not built, or if the environment variable ``SEJ_CODEC`` is ``python``.

    Raises:
        ImportError: ``SEJ_CODEC`` is ``c`` and the module is not built, or ``SEJ_CODEC`` has an unknown value.
        OSError: this process has no free file descriptor.
    """
    wish = os.environ.get("SEJ_CODEC", "")
    if wish not in ("", "c", "python"):
        raise ImportError(f"SEJ_CODEC must be 'c', 'python' or unset, got {wish!r}")
    if wish == "python":
        return None
    try:
        return _imported(module)
    except ImportError:
        if wish == "c":
            raise
        return None


def twin(module: str, reference: str) -> ModuleType:
    """Return the compiled module, or its pure Python reference if :func:`compiled` returns None.

    Type checkers see no names through it: a caller imports them from the reference under ``if TYPE_CHECKING``.
    """
    return compiled(module) or _imported(reference)


def _imported(name: str) -> ModuleType:
    """Import a module.

    Raises:
        ImportError: it is not installed, or cannot be loaded.
        OSError: this process has no free file descriptor. The interpreter reports that as an ImportError if it comes
            from the dynamic linker, or from the list of a directory, which it would also remember as empty.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as cause:
            importlib.invalidate_caches()
            raise cause from error
        raise


if sys.platform != "linux":
    raise ImportError(
        f"SEJ runs on Linux, not on {sys.platform!r}: run it in a Linux container, or on Windows in WSL (wsl --install)"
    )
warn_if_foreign()
