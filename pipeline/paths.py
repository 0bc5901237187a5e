"""The paths that were passed to ``load`` and ``save``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pipeline.options import OptionError

__all__ = ["local_path", "paths_of"]


def paths_of(options: Mapping[str, str], *, may_be_none: bool = False) -> list[str]:
    """Return the paths passed to ``load``, one or many; a leading ``file:`` is dropped.

    Raises:
        OptionError: no path was passed, and may_be_none is false.
    """
    given = [options["path"]] if "path" in options else json.loads(options.get("paths", "[]"))
    if not all(given) or not (given or may_be_none):
        raise OptionError(
            "expected load(root) with a SEJ directory, a sharded journal or a hub's root; no path was passed"
        )
    return [local_path(path) for path in given]


def local_path(address: str) -> str:
    """Return a path without a leading ``file:``."""
    return re.sub(r"\Afile:(//(?=/))?", "", address)
