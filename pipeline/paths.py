"""The paths that were passed to ``load`` and ``save``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pipeline.options import OptionError
from sej.checks import ITERABLE, PATH
from sej.system.disk import OS, around
from sej.system.locks import host_name

_NO_CLIENT = re.compile(r"Class \S+ not found|No FileSystem for scheme")
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
            "expected load(root) with a SEJ directory, a sharded journal or a hub's root; no path was passed. A"
            " table of the catalogue keeps its path if its columns are left out, as in CREATE TABLE t USING sej OPTIONS"
            " (path '/data'); any table can be read with SELECT ... FROM t WITH ('path' = '/data')"
        )
    return [local_path(path) if local else path for path in given]


def several(name: str, given: object) -> list[str]:
    """Return an argument that is a path or several of them, as a list.

    Raises:
        TypeError: it is something else.
    """
    paths = [given] if isinstance(given, str | os.PathLike) else given
    ITERABLE(name, paths)
    found = list(cast("Iterable[Any]", paths))
    for path in found:
        PATH(name, path)
    return [os.fspath(path) for path in found]


def file_system(path: str) -> str | None:
    """Return the file system of an address, as ``hdfs`` of ``hdfs://host/orders``; None for a local path."""
    found = _ADDRESS.match(path)
    return None if found is None or found[1].lower() == "file" else found[1]


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path on a local disk, without a leading ``file:``.

    Raises:
        OptionError: the path has another scheme, or names another host.

    Example:
        >>> local_path("file:///srv/orders")
        '/srv/orders'
    """
    text = os.fspath(path)
    if (kind := file_system(text)) is not None:
        raise OptionError(
            f"journals and queues are on a local disk, and {text!r} is on a file system of type {kind}: pass a"
            " local path, or use a hub; only the archive of `archive` and `restore` may be remote"
        )
    found = _ADDRESS.match(text)
    if found is None:
        return text.removeprefix("file:")
    rest = text[found.end() - 1 :]
    if rest.startswith("//") and not rest.startswith("///"):
        raise OptionError(f"{text!r} names a host; for a local path write it as in file:///srv/orders")
    return "/" + rest.lstrip("/")


def local_target(path: str | os.PathLike[str]) -> str:
    """Return the path of a file or directory that is written without Spark, without a leading ``file:``.

    Raises:
        OptionError: it is not on a local disk, or it is among the files of a journal.
    """
    text = os.fspath(path)
    if (kind := file_system(text)) is not None:
        raise OptionError(
            f"this command writes to a local disk, and {text!r} is on a file system of type {kind}: let Spark write"
            f" there, as in spark.read.format('sej').load(path).write.parquet({text!r})"
        )
    return outside(local_path(text))


def outside(target: str) -> str:
    """Return the path or address of a file or directory that is written.

    Raises:
        OptionError: it is among the files of a journal, as in ``orders/jnl/x.parquet``.
    """
    journal = around(OS, local_path(target)) if file_system(target) is None else None
    if journal is not None:
        raise OptionError(
            f"{target!r} is among the files of the journal {journal}, where only SEJ may write: choose a path outside"
            " of it"
        )
    return target


def unseen() -> str:
    """Return what to report about a path that the driver has seen and this host does not have."""
    return (
        f"host {host_name()} cannot see this path, which existed when the read was planned: executors need the same"
        " disk as the driver (or, for journals, the option hub), or it was removed"
    )


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Explain the error of the block if Spark has no client of an address's file system.

    Raises:
        OptionError: it has none.
    """
    try:
        yield
    except Exception as error:
        if file_system(address) is None or _NO_CLIENT.search(str(error)) is None:
            raise
        raise OptionError(
            f"Spark has no client for the file system of {address!r}: add one to the session, as for s3a with the"
            " setting spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, with the version of Spark's Hadoop"
        ) from error


def spark_path(path: str | os.PathLike[str]) -> str:
    """Return a path for a format of Spark itself: an address unchanged, a local path made absolute.

    Raises:
        OptionError: the address has lost a slash, as in ``pathlib.Path("s3a://b/x")``.
    """
    text = os.fspath(path)
    kind = file_system(text)
    if kind is None:
        return os.path.abspath(local_path(text))
    if not text.startswith(f"{kind}://"):
        raise OptionError(f"{text!r} is not an address; pass it as text, as in 's3a://bucket/orders'")
    return text.rstrip("/")
