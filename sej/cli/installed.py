"""The commands of this distribution, as its entry points name them.

``importlib.metadata`` finds those of all distributions. To import it takes a quarter of a short command.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import sej


class Found(NamedTuple):
    """An entry point.

    Attributes:
        value: where the command is, as ``module:attribute``.
    """

    value: str

    def load(self) -> Any:
        """Import the module and return the command."""
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


def own_commands(group: str) -> dict[str, Found]:
    """Return the entry points of a group by name; none if this version was not installed by a wheel or by pip."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, f"sej_journals-{sej.__version__}.dist-info", "entry_points.txt")) as file:
                sections = file.read().split("[")
        except OSError:
            continue
        for section in sections:
            name, _, lines = section.partition("]")
            if name == group:
                pairs = (line.partition("=") for line in lines.splitlines() if "=" in line)
                return {key.strip(): Found(value.strip()) for key, _, value in pairs}
    return {}
