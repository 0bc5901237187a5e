"""Opening a queue for a command, and printing its conflicts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import click

from sej.cli.shared.parameters import PATH
from sej.system.disk import OS
from sej.system.locks import process_host, process_start
from textqueue.claims.drain import OnceWriter
from textqueue.commands.output import shown
from textqueue.commands.versioning import advising
from textqueue.editing.conflicts import Conflict
from textqueue.editing.source import Source
from textqueue.errors import InvalidTextError
from textqueue.format.grammar import BOM, CONTROL_OF, CONTROLS, MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.files import SUFFIX, files_of

QUEUE: Final = click.argument("path", metavar="PATH", type=PATH)
SETTLE_S: Final = 1.0
"""The default of ``TextQueue``."""
_BEGINS: Final = frozenset(CONTROL_OF.values())
"""The first bytes of the lines that begin an entry."""
_MESSAGES: Final = frozenset(CONTROL_OF[status] for status in MessageStatus if status is not MessageStatus.comment)
_KNOWN: Final = frozenset(bytes([control.byte]) for control in CONTROLS)
_LOOK_BYTES: Final = 1 << 16
_EMPTY: Final = f"no file in this directory has a name that ends in {SUFFIX}; `sej tq add` creates one"


class JournalsLike(Protocol):
    """Access to journals, which the command ``sej`` provides, so that this package does not import them."""

    def writer(self, path: str | os.PathLike[str]) -> AbstractContextManager[OnceWriter]:
        """Open a writer of a journal."""

    def until_reader_leaves(self) -> AbstractContextManager[None]:
        """Within this context, a wait ends when the reader of standard output has closed it."""


def require(path: Path, *, some: bool = True) -> None:
    """Check that a queue exists: its file, a file in its directory, or a file that matches its pattern.

    Args:
        path: the queue.
        some: False: a directory may be empty.

    Raises:
        FileNotFoundError: it does not exist.
    """
    files = files_of(os.fspath(path), None, OS)
    if not path.exists():
        if files.single is not None or not files.found(OS):
            raise FileNotFoundError(f"{path}: the file does not exist; `sej tq add` creates it")
    elif some and not files.found(OS):
        raise FileNotFoundError(f"{path}: {_EMPTY}")


def opened(path: Path, *, some: bool = False) -> AbstractContextManager[TextQueue]:
    """Open a queue that exists, and print its conflicts at the end. some: a directory must have a file."""
    require(path, some=some)
    return reporting(TextQueue(path))


@contextmanager
def reporting(queue: TextQueue) -> Iterator[TextQueue]:
    """Close the queue at the end, and print its conflicts, also if the command fails."""
    try:
        with advising(queue.input_files), queue:
            yield queue
    finally:
        report(queue)


@contextmanager
def opened_files(path: Path) -> Iterator[list[Source]]:
    """Open the files of a queue for edits that concern one file each. Print the conflicts at the end."""
    require(path)
    conflicts: list[Conflict] = []
    with TextQueue(path) as queue:
        files = queue.input_files
    sources = [Source(file, disk=OS, settle_s=SETTLE_S, on_revert="reapply", conflicts=conflicts) for file in files]
    try:
        with advising(files):
            yield sources
    finally:
        for source in sources:
            source.file.close()
        _print(conflicts)


def report(queue: TextQueue) -> None:
    """Print the conflicts that were found since the last call."""
    _print(queue.conflicts)


def _print(conflicts: list[Conflict]) -> None:
    while conflicts:
        path, position, text, kind, action = conflicts.pop(0)
        value = shown(text.encode("utf-8", "surrogateescape")).decode(errors="backslashreplace")
        click.echo(f"sej: {path}: position {position}: {value}: {kind}: {action}", err=True)


def refuse_foreign(path: Path) -> None:
    """Check that an append does not change a file that is not a queue, like a program or a page in Markdown.

    Such a file has another suffix, and more lines that a queue skips than lines that begin a message. A queue in which
    a person has typed a wrong line is not refused.

    Raises:
        InvalidTextError: it is such a file.
    """
    if path.suffix == SUFFIX or not path.is_file():
        return
    with open(path, "rb") as file:
        data = file.read(_LOOK_BYTES)
    lines = [line for line in data.removeprefix(BOM).splitlines() if line.strip()]
    skipped = [line for line in lines if line[:1] not in _KNOWN]
    if len(skipped) > sum(line[:1] in _MESSAGES for line in lines):
        known = " ".join(repr(chr(control.byte)) for control in CONTROLS)
        raise InvalidTextError(
            f"this is not a text queue: lines like {skipped[0][:40].decode(errors='backslashreplace')!r} do not begin"
            f" with one of {known}; choose a new file or a queue, or let the name end in {SUFFIX}",
            path=path,
        )


def note_if_foreign(queue: TextQueue, path: Path) -> None:
    """Report a directory without files, and each file that has lines and no entry: it is probably not a queue."""
    if not queue.input_files:
        click.echo(f"sej: {path}: {_EMPTY}", err=True)
    for file in queue.input_files:
        skipped = _skipped(file)
        if skipped:
            lines = "1 line is" if skipped == 1 else f"{skipped} lines are"
            click.echo(f"sej: {file}: no line is a message ({lines} skipped); run `sej tq check {file}`", err=True)


def _skipped(path: str) -> int:
    """Return the number of lines that are not blank; 0 if one of them begins an entry."""
    skipped, rest = 0, BOM
    with open(path, "rb") as file:
        for line in file:
            text = line.removeprefix(rest)
            rest = b""
            if text[:1] in _BEGINS:
                return 0
            skipped += bool(text.strip())
    return skipped


def shell() -> str:
    """Return the owner of a claim of the calling shell."""
    parent = os.getppid()
    return f"{parent}@{process_host()}/{process_start(parent)}"


def directories(queue: TextQueue, path: Path) -> set[str]:
    """Return the directories in which a change may be a new message."""
    own = path if path.is_dir() else path.parent
    return {os.fspath(own), *(os.path.dirname(os.path.realpath(file)) for file in queue.input_files)}
