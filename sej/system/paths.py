"""Paths that stay the same: a relative path means the current directory of the call that passed it."""

from __future__ import annotations

import os

__all__ = ["absolute_path"]


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path of the same file, for an object that opens files later.

    The program may change its current directory meanwhile. Symbolic links and ``..`` are not resolved.

    Example:
        >>> absolute_path("/srv/../orders")
        '/srv/../orders'
    """
    name = os.fspath(path)
    if os.path.isabs(name):
        return name
    return os.getcwd() if name in ("", ".") else os.path.join(os.getcwd(), name)
