"""The published package of the same import name: importing this one says so where both are installed.

Whichever stands first on the path is imported, and the other one's scripts get it.
"""

from __future__ import annotations

import sys
import warnings

from sej.system.disk import OS

__all__ = ["warn_if_installed"]


def warn_if_installed() -> None:
    """Warn once, by a ``UserWarning``, when the published ``textqueue`` is on the path as well."""
    for folder in sys.path:
        try:
            names = OS.list(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("textqueue-") and name.endswith((".dist-info", ".egg-info")):
                warnings.warn(
                    f"the published package {name.rpartition('.')[0]} is installed in {folder} as well, under the same"
                    " import name; this is the textqueue of sej-journals, which takes its scripts unchanged: uninstall"
                    " the other one, then install sej-journals again, since both have files of the same names",
                    UserWarning,
                    stacklevel=3,
                )
                return
