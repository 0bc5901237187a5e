"""Run a command of ``sej``, and die at the first call of a function, before it or after it.

python -m tests.pipeline.dying MODULE NAME before|after WORD...
"""

import importlib
import os
import sys
from typing import Any

from sej.cli import main

DIED = 9


def arm(module: str, name: str, when: str) -> None:
    """Replace a function of a module, or of a class in it: it ends this process."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real = getattr(owner, last)

    def dying(*args: Any, **more: Any) -> None:
        if when == "after":
            real(*args, **more)
        os._exit(DIED)

    setattr(owner, last, dying)


if __name__ == "__main__":
    arm(*sys.argv[1:4])
    sys.exit(main(sys.argv[4:]))
