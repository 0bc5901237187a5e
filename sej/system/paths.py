"""Paths: a relative one means the current directory of the call that passed it, and some are those of a journal."""

from __future__ import annotations

import os
from typing import Final

from sej.system.disk import Disk
from sej.system.file import Resolved, absolute_path

__all__ = ["Resolved", "absolute_name", "absolute_path", "around", "is_journal"]

_PARTS: Final = frozenset({"gaps", "idx", "jnl", "kept", "ofs", "tmp", "txn"})


def absolute_name(path: str | os.PathLike[str]) -> str:
    """Return a path like :func:`absolute_path`, but with a link in its last part: for files that users replace."""
    folder, name = os.path.split(os.fspath(path))
    if not folder and name.startswith("~"):
        folder = name  # refused
    return os.path.join(absolute_path(folder), name) if name not in ("", ".", "..") else absolute_path(path)


def is_journal(disk: Disk, path: str) -> bool:
    """Return whether a path is a SEJ directory: it has a directory ``jnl/``."""
    inside = disk.status(os.path.join(path, "jnl"))
    return inside is not None and inside.is_dir


def around(disk: Disk, path: str) -> str | None:
    """Return the SEJ directory that a path is inside of, as for ``orders/jnl/x``, where only SEJ may write; or None.

    Symbolic links are followed. Neither the path nor its directories need exist.
    """
    inside = os.path.realpath(path)
    while (parent := os.path.dirname(inside)) != inside:
        if os.path.basename(inside) in _PARTS and is_journal(disk, parent):
            return parent
        inside = parent
    return None
