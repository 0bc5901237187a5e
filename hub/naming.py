"""Names of directories, ``root/[client-id].[journal-dir]/``, and the marker of a root.

A client id is letters, digits, ``_``, ``-`` and single dots between them, as in ``host.example.com``. In the name of
the directory its dots are ``~``, which no identifier has, so the first dot separates it from the journal. The
identifiers must fully match, and the name must not contain ``..``, so that no name leaves the root. Names that begin
with a dot belong to the hub: ``.hub`` marks the root (names alone cannot distinguish it from a sharded journal),
``.merge/`` holds the offsets of merges.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from sej.checks import TEXT
from sej.errors import InvalidNameError, JournalNotFoundError, NotAJournalError
from sej.journal.directory import is_journal
from sej.system.disk import OS, Disk, Resolved, Status, absolute_path, replace_file
from shard.names import RECORDS_DIR

MARKER: Final = ".hub"
STAGING: Final = ".staging"
"""The folder of the rows that jobs have staged; each task has a folder there, ``task-CLIENT.JOB-TASK``."""
_MARKER_TEXT: Final = b"This directory is the root of a SEJ hub: [client-id].[journal-dir]/ each.\n"
_CLIENT: Final = re.compile(r"[0-9a-zA-Z_-]+(?:\.[0-9a-zA-Z_-]+)*")
_JOURNAL: Final = re.compile(r"[0-9a-zA-Z_.-]+")
_NAME_BYTES: Final = 255
"""The longest file name that file systems accept."""


class Source(NamedTuple):
    """One client's journal on the hub."""

    client: str
    journal_dir: str

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"{self.client.replace('.', '~')}.{self.journal_dir}"

    def __str__(self) -> str:
        """The name of its directory."""
        return self.name


def check_client(client_id: str) -> str:
    """Check that a client id can be part of a directory's name.

    Raises:
        InvalidNameError: it is not parts of ``[0-9a-zA-Z_-]+`` with single dots between them.
    """
    TEXT("client_id", client_id)
    if not _CLIENT.fullmatch(client_id) or len(client_id) > _NAME_BYTES:
        raise InvalidNameError(
            "a client id must be ASCII letters, digits, '_', '-' and single dots between them, at most"
            f" {_NAME_BYTES} bytes, got {client_id[:80]!r}"
            f"{'' if client_id else '; pass client_id to Client, or to the call'}"
        )
    return client_id


@lru_cache(maxsize=1024)
def check_journal(client_id: str, journal_dir: str) -> Source:
    """Check that both identifiers form the name of a directory inside the root.

    Each call of a hub does, mostly for the same few.

    Raises:
        InvalidNameError: one does not fully match, or they contain ``..``, or they are too long.
    """
    check_client(client_id)
    TEXT("journal_dir", journal_dir)
    source = Source(client_id, journal_dir)
    if not _JOURNAL.fullmatch(journal_dir) or ".." in source.name:
        raise InvalidNameError(
            "journal must be ASCII letters, digits, '_', '-' and '.' (not first, and not two in a row), at least one,"
            f" got {journal_dir[:80]!r}"
        )
    if len(source.name) > _NAME_BYTES:
        raise InvalidNameError(
            f"{source.name[:80]!r}... is too long for a directory's name; expected at most {_NAME_BYTES} bytes"
        )
    return source


def parse_source(name: str) -> Source | None:
    """Return the source of a directory's name, or None if the name does not match."""
    _, dot, journal_dir = name.partition(".")
    if not dot:
        return None
    try:
        return check_journal(client_of(name), journal_dir)
    except InvalidNameError:
        return None


def client_of(name: str) -> str:
    """The client id at the beginning of a directory's name.

    Example:
        >>> client_of("EWR.orders"), client_of("10~0~0~1.orders")
        ('EWR', '10.0.0.1')
    """
    return name.partition(".")[0].replace("~", ".")


def source_path(root: str, source: Source) -> str:
    """Return the path of a source's SEJ directory."""
    return Resolved(os.path.join(absolute_path(root), source.name))  # which must not be a link


def find_sources(root: str, *, client: str | None = None, disk: Disk = OS) -> list[Source]:
    """Return the SEJ directories of clients in a root, sorted by client and journal.

    Args:
        root: the hub's root.
        client: only this client's.
        disk: the disk.
    """
    found = []
    for name in disk.list(root):
        source = parse_source(name)
        if source is not None and client in (None, source.client) and is_journal(disk, os.path.join(root, name)):
            found.append(source)
    return sorted(found)


def is_root(path: str | os.PathLike[str], *, disk: Disk = OS) -> bool:
    """Return whether a directory is marked as a hub's root."""
    return disk.status(os.path.join(path, MARKER)) is not None


def make_root(root: str, *, disk: Disk = OS) -> None:
    """Create a root and mark it; an existing root is accepted, and so is that of an original hub, without the marker.

    Raises:
        NotAJournalError: the path is a file, a SEJ directory, or a directory of journals that are not of clients.
            Nothing was changed.
    """
    there = disk.status(root)
    _require_no_journal(root, there, disk)
    if there is None:
        disk.mkdir(root, parents=True)
    if not is_root(root, disk=disk):
        _require_clients_only(root, disk)
        marker = os.path.join(root, MARKER)
        with suppress(FileExistsError, FileNotFoundError):  # another store creates this root
            replace_file(disk, f"{marker}.tmp", marker, _MARKER_TEXT)


def _require_clients_only(root: str, disk: Disk) -> None:
    """Check that an unmarked directory may become a root: the marker changes how its journals are read."""
    for name in sorted(disk.list(root)):
        is_foreign = not parse_source(name) and is_journal(disk, os.path.join(root, name))
        if name == RECORDS_DIR or is_foreign:
            kind = "sharded journals" if name == RECORDS_DIR else f"journals that are not of clients, like {name!r}"
            raise NotAJournalError(
                f"this directory has {kind}; a hub's root is new or empty, or has [client-id].[journal-dir]/ only."
                f" Choose another directory, or create the file {MARKER} in it if it is the root of a hub",
                path=root,
            )


def _require_no_journal(root: str, there: Status | None, disk: Disk) -> None:
    """Check that a path is not a file or a single journal."""
    if there is not None and not there.is_dir:
        raise NotAJournalError("this is a file; expected a hub's root, a directory", path=root)
    if disk.status(os.path.join(root, "jnl")) is not None:
        raise NotAJournalError(
            "this is a SEJ directory; expected a hub's root, which has one for each journal: pass the directory that"
            " `sej hub serve` serves, or a new one for a new hub",
            path=root,
        )


def no_such_journal(source: Source, path: str) -> JournalNotFoundError:
    """Return the error of a caller that names a journal which the hub does not have."""
    return JournalNotFoundError(
        f"the hub has no journal {source.journal_dir!r} of client {source.client!r}; `sej hub ls` on its machine lists"
        " them",
        path=path,
    )


def require_root(root: str, *, disk: Disk = OS) -> None:
    """Check that a directory can be read as a hub's root, marked or not.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: it is a file, or a SEJ directory itself.
    """
    there = disk.status(root)
    if there is None:
        raise JournalNotFoundError(
            "this directory does not exist; expected a hub's root, which `sej hub serve` creates", path=root
        )
    _require_no_journal(root, there, disk)
