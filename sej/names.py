"""Find other distributions that have the import names of our packages.

Installing such a distribution over ours replaces files of ours, and uninstalling it removes them. In a folder that
comes first in ``sys.path``, it is imported instead of ours. A package that was replaced cannot report this, so the
first import of any of our packages looks at all of them: :mod:`sej.imports` calls :func:`warn_if_foreign`. It reads one
small file for each package and the names in the folders of ``sys.path``, and loads no module.

Each ``__init__.py`` of ours contains the name of the distribution. Packages of the user's own code with such a name are
not reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Final

PACKAGES: Final = ("hub", "kestrel", "pipeline", "sej", "shard", "textqueue")
ADVICE: Final = "uninstall the other package, then run pip install --force-reinstall --no-deps sej-journals"
_OURS: Final = b"sej-journals"
_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INFO: Final = (".dist-info", ".egg-info")


def warn_if_foreign() -> None:
    """Issue a ``UserWarning`` for each result of :func:`foreign`."""
    for _, found in foreign():
        import warnings

        warnings.warn(f"{found}; {ADVICE}", UserWarning, stacklevel=3)


def foreign() -> Iterator[tuple[str, str]]:
    """Yield each package that another distribution replaced, removed, shadows or also has, and what is wrong."""
    reported = set()
    for package in PACKAGES:
        if (problem := _of_files(package)) is not None:
            reported.add(package)
            yield package, problem
    for folder in sys.path:
        for name in _names(folder):
            package = name.partition("-")[0].lower()
            if package in PACKAGES and package not in reported and name.endswith(_INFO):
                reported.add(package)
                if _has(os.path.join(folder, name), package, unknown=True):
                    found = f"{name.rpartition('.')[0]} is installed in {folder}"
                    yield package, f"{found}: it has files of the same names as ours"


def _of_files(package: str) -> str | None:
    """Look for the file that ``import`` would load."""
    for folder in (*sys.path, _HOME):
        path = os.path.join(folder, package, "__init__.py")
        try:
            with open(path, "rb") as file:
                ours = _OURS in file.read()
        except OSError:
            continue
        if ours or not (_is_home(folder) or _installed(folder, package)):
            return None
        return f"{path} is of another package, so `import {package}` gives that one"
    if os.path.isdir(os.path.join(_HOME, package)):
        return f"{os.path.join(_HOME, package, '__init__.py')} is missing: another package removed it"
    return None


def _is_home(folder: str) -> bool:
    return os.path.samefile(folder or ".", _HOME)


def _installed(folder: str, package: str) -> bool:
    """Return whether a distribution in the folder has the package."""
    found = (os.path.join(folder, name) for name in _names(folder) if name.endswith(_INFO))
    return any(_has(info, package, unknown=False) for info in found)


def _has(info: str, package: str, *, unknown: bool) -> bool:
    """Return whether a distribution lists a file of the package; ``unknown`` if it has no list."""
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8") as file:
            return any(line.startswith(f"{package}/") for line in file)
    except OSError:
        return unknown


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []
