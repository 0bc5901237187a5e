"""The paths that ``load`` and ``save`` were given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pipeline.options import OptionError

__all__ = ["local_path", "paths_of"]


def paths_of(options: Mapping[str, str], *, may_be_none: bool = False) -> list[str]:
    """What ``load`` was given: one path or many; ``file:`` in front is dropped.

    Raises:
        OptionError: no path was given, and may_be_none is false.
    """
    given = [options["path"]] if "path" in options else json.loads(options.get("paths", "[]"))
    if not all(given) or not (given or may_be_none):
        raise OptionError(
            "no path was given; expected load(root) with a SEJ directory, a sharded journal or a hub's root"
        )
    return [local_path(path) for path in given]


def local_path(address: str) -> str:
    """A path without ``file:`` in front; anything else as it is."""
    return re.sub(r"\Afile:(//(?=/))?", "", address)
