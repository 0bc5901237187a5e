"""A warning if the published package of the same import name is installed as well.

Python imports the one that comes first in ``sys.path``, so scripts written for the other package get it, too.
"""

from __future__ import annotations

import sys
import warnings

from sej.system.disk import OS

__all__ = ["warn_if_installed"]


def warn_if_installed() -> None:
    """Warn once, with a ``UserWarning``, if the published ``textqueue`` is in ``sys.path`` as well."""
    for folder in sys.path:
        try:
            names = OS.list(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("textqueue-") and name.endswith((".dist-info", ".egg-info")):
                warnings.warn(
                    f"the published package {name.rpartition('.')[0]} is installed in {folder} under the same import"
                    " name; this is the textqueue of sej-journals, which runs its scripts unchanged. Both packages have"
                    " files of the same names: uninstall the published package, then reinstall sej-journals",
                    UserWarning,
                    stacklevel=3,
                )
                return
