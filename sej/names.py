"""Find other distributions with the names of our packages: ``sej doctor`` reports them, the first import warns.

Installing such a distribution over ours replaces files of ours, and uninstalling it removes them. In a folder that
comes first in ``sys.path``, it is imported instead of ours. The search reads the names in the folders of ``sys.path``,
and loads no module.
"""

from __future__ import annotations

import os
import sys
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
