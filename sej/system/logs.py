"""Log records of what no result and no error reports: a torn tail was cut, a shard was claimed.

A library must not slow down or write to the terminal of a program that does not use :mod:`logging`. So a record is made
only if the program has imported :mod:`logging`, and the logger of each package has a ``NullHandler``. Loggers have the
names of their modules, so ``logging.getLogger("sej")`` has all of this package.
"""

from __future__ import annotations

import sys
from typing import Final

INFO: Final = 20
WARNING: Final = 30
"""The levels of :mod:`logging`."""


def record(name: str, level: int, text: str, *values: object, error: BaseException | None = None) -> None:
    """Make a log record.

    Args:
        name: the name of the module.
        level: INFO or WARNING.
        text: a format in the style of ``%``.
        values: its values.
        error: an exception whose traceback follows; None: none.

    Example:
        >>> record(__name__, INFO, "claimed shard %d", 3)
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return
    package = logging.getLogger(name.partition(".")[0])
    if not package.handlers:
        package.addHandler(logging.NullHandler())
    logging.getLogger(name).log(level, text, *values, exc_info=error)
