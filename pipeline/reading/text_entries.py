"""The entries of ``.tq`` files as rows, with any status. Reading marks nothing."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.columns import TEXTQUEUE
from sej.system.disk import OS
from sej.system.paths import absolute_path
from textqueue import MessageStatus, TextQueue
from textqueue.reading.files import is_special


class TextEntries:
    """The entries of files, and of the ``.tq`` files of directories; see :class:`pipeline.columns.RowSource`."""

    columns: Mapping[str, str] = TEXTQUEUE

    def __init__(self, paths: Sequence[str]) -> None:
        """Set the paths."""
        self._paths = [absolute_path(path) for path in paths]  # an executor has another working directory

    def parts(self) -> list[str]:
        """Return the files."""
        found = []
        for path in self._paths:
            there = OS.status(path)
            if there is None:
                raise FileNotFoundError(
                    2, "expected a .tq file or a directory of them, and the path does not exist", path
                )
            names = sorted(glob.glob(os.path.join(glob.escape(path), "*.tq"))) if there.is_dir else [path]
            found += [name for name in names if not (there.is_dir and is_special(name))]
        return found

    def name(self, part: str) -> str:
        """Return the file's name."""
        return os.path.basename(part)

    def path(self, part: str) -> str:
        """Return the file."""
        return part

    def rows(self, part: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a file, in order; bytes that are not UTF-8 become U+FFFD."""
        shown = _text(os.fsencode(part))
        with TextQueue(part, settle_s=0.0) as queue:
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

    def size_of(self, row: dict[str, Any]) -> int:
        """Return about how many bytes a row has."""
        return len(row["value"]) + sum(map(len, row["variables"]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
