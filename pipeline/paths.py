"""The paths that were passed to ``load`` and ``save``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from pipeline.options import OptionError

__all__ = ["is_address", "local_path", "paths_of", "spark_path"]

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def paths_of(options: Mapping[str, str], *, may_be_none: bool = False, local: bool = True) -> list[str]:
    """Return the paths passed to ``load``, one or many; a leading ``file:`` is dropped.

    Args:
        options: the options of a source, as Spark passes them.
        may_be_none: whether the path may be omitted.
        local: whether they are paths on a local disk; if not, they are names on a hub.

    Raises:
        OptionError: no path was passed, and may_be_none is false; or it is not on a local disk.
    """
    given = [options["path"]] if "path" in options else json.loads(options.get("paths", "[]"))
    if not all(given) or not (given or may_be_none):
        raise OptionError(
            "expected load(root) with a SEJ directory, a sharded journal or a hub's root; no path was passed"
        )
    return [local_path(path) if local else path for path in given]


def is_address(path: str) -> bool:
    """Return whether a path has a scheme, as in ``hdfs://host/orders``."""
    return _ADDRESS.match(path) is not None


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path on a local disk, without a leading ``file:``.

    Raises:
        OptionError: the path has another scheme, or names another host.

    Example:
        >>> local_path("file:///srv/orders")
        '/srv/orders'
    """
    text = os.fspath(path)
    found = _ADDRESS.match(text)
    if found is None:
        return text.removeprefix("file:")
    rest = text[found.end() - 1 :]
    if found[1].lower() != "file":
        raise OptionError(
            f"journals and queues are on a local disk, and {text!r} is on a file system of type {found[1]}: pass a"
            " local path, or use a hub; `archive` and `restore` accept such an address for the archive"
        )
    if rest.startswith("//") and not rest.startswith("///"):
        raise OptionError(f"{text!r} names a host; for a local path write it as in file:///srv/orders")
    return "/" + rest.lstrip("/")


def spark_path(path: str | os.PathLike[str]) -> str:
    """Return a path for a format of Spark itself: an address unchanged, a local path made absolute.

    Raises:
        OptionError: the address has lost a slash, as in ``pathlib.Path("s3a://b/x")``.
    """
    text = os.fspath(path)
    found = _ADDRESS.match(text)
    if found is None or found[1].lower() == "file":
        return os.path.abspath(local_path(text))
    if not text[found.end() :].startswith("/"):
        raise OptionError(f"{text!r} is not an address; pass it as text, as in 's3a://bucket/orders'")
    return text.rstrip("/")
