"""The entries of ``.tq`` files as rows, with any status. Reading marks nothing."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from typing import Any

from sej.system.disk import OS
from textqueue import MessageStatus, TextQueue
from textqueue.reading.files import is_special


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file, in order; bytes that are not UTF-8 become U+FFFD."""
    shown = _text(os.fsencode(path))
    with TextQueue(path, settle_s=0.0) as queue:
        for message in queue.messages(set(MessageStatus)):
            yield {
                "path": shown,
                "position": message.position,
                "status": message.status.name,
                "value": _text(message.value_bytes),
                "variables": [
                    _text(variable.encode("utf-8", "surrogateescape")) for variable in message.get_variables()
                ],
            }


def size_of(row: dict[str, Any]) -> int:
    """Return about how many bytes a row has."""
    return len(row["value"]) + sum(map(len, row["variables"]))


def files_in(paths: Iterable[str]) -> list[str]:
    """Return files unchanged, and for a directory its ``.tq`` files."""
    found = []
    for path in paths:
        there = OS.status(path)
        if there is None:
            raise FileNotFoundError(2, "expected a .tq file or a directory of them, and the path does not exist", path)
        names = sorted(glob.glob(os.path.join(glob.escape(path), "*.tq"))) if there.is_dir else [path]
        found += [name for name in names if not (there.is_dir and is_special(name))]
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
