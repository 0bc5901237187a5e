"""The queues of a directory, of both formats. Nothing here changes a file."""

from __future__ import annotations

import os

from kestrel.files import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC, join, names_in
from kestrel.v2.listing import queue_names
from sej.system.disk import OS
from sej.system.paths import absolute_path


def files_of(directory: str | os.PathLike[str], name: str) -> list[str]:
    """The paths of a queue's files: its name, or its name and a dot or ``~~``.

    Raises:
        MissingError: the directory does not exist.
    """
    mine = [file for file in names_in(directory, OS) if file == name or file.startswith((f"{name}.", f"{name}~~"))]
    paths = (join(directory, file) for file in mine)
    return [path for path in paths if (there := OS.status(path)) is not None and not there.is_dir]


def magic_of(path: str | os.PathLike[str]) -> bytes:
    """How a file begins."""
    file = OS.open(absolute_path(path), "read")
    try:
        return file.read(MAGIC_SIZE, 0)
    finally:
        file.close()


def formats_of(directory: str | os.PathLike[str], name: str) -> set[bool]:
    """Whose the files of a queue are, by how they begin: True for libkestrel's, False for Kestrel 2's."""
    formats = set()
    for path in files_of(directory, name):
        if "~~" not in os.path.basename(path):
            try:
                magic = magic_of(path)
            except FileNotFoundError:  # a running Kestrel has removed it
                continue
            if magic:
                formats.add(magic in (READER_MAGIC, WRITER_MAGIC))
    return formats


def queues_in(directory: str | os.PathLike[str]) -> list[str]:
    """The queues of both formats that have files in a directory, sorted.

    Raises:
        MissingError: the directory does not exist.
    """
    readers = {file.partition(".read.")[0] for file in names_in(directory, OS) if ".read." in file and "~" not in file}
    return sorted({*queue_names(directory), *filter(None, readers)})
