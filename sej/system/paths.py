"""Paths: a relative one means the current directory of the call that passed it, and some are those of a journal."""

from __future__ import annotations

import os
from typing import Final

from sej.system.disk import Disk
from sej.system.file import real_path

_PARTS: Final = frozenset({"gaps", "idx", "jnl", "kept", "ofs", "tmp", "txn"})


class Resolved(str):
    """An absolute path that is not resolved again: a link in it is refused. For journals inside a directory of ours."""

    __slots__ = ()


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path of the same file without symbolic links, for an object that opens files later.

    The program may change its current directory meanwhile, and :mod:`sej.system.disk` follows no links.

    Raises:
        ValueError: the path begins with ``~``.

    Example:
        >>> absolute_path("/usr/../orders")
        '/orders'
    """
    name = os.fspath(path)
    if type(name) is Resolved:
        return str(name)
    if not os.path.isabs(name):
        if name.startswith("~"):
            raise ValueError(
                f"path {name!r} begins with '~', which only a shell expands: pass os.path.expanduser({name!r}), or"
                f" './{name}' for a file of this name"
            )
        name = os.path.join(os.getcwd(), name)
    return real_path(name)


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
