"""The queue that a command names: its path, its name and its backend."""

from __future__ import annotations

import glob
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from sej.cli.shared.parameters import PATH
from sej.journal.directory import Directory, is_journal
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.queue.interface.queue import BACKENDS, WorkQueue, open_queue, require_known
from sej.system.disk import OS


class Place(NamedTuple):
    """The path, name and backend of a queue."""

    path: Path
    name: str
    backend: str

    def open(self, *, is_new: bool = False, **options: Any) -> WorkQueue:
        """Open the queue; it is created if it is missing, but over old messages only with ``create=True``.

        An option that is None is not passed on.
        """
        if options.get("create") is None and not is_new and self._has_messages():
            options["create"] = False
        given = {name: value for name, value in options.items() if value is not None}
        return open_queue(self.path, self.name, backend=self.backend, **given)

    def open_existing(self, **options: Any) -> WorkQueue:
        """Open a queue over a journal or file that exists; neither is created."""
        self._require_path()
        if self.backend == "journal":
            Directory(self.path, OS).require()
        return self.open(**options)

    def require(self) -> None:
        """Raise an error if the queue does not exist."""
        self._require_path()
        if self.backend == "journal":
            from sej.queue.log.file import queue_names

            directory = Directory(self.path, OS)
            directory.require()
            require_known(self.name, queue_names(directory), False, directory.path)

    def _has_messages(self) -> bool:
        directory = Directory(self.path, OS)
        if self.backend != "journal" or not is_journal(OS, directory.path):
            return False
        return Journal(self.path).first_offset < Tail(directory).end_offset()

    def _require_path(self) -> None:
        # A Kestrel queue is files whose names begin with its name.
        if not self.path.exists() and not glob.glob(f"{glob.escape(str(self.path))}.*"):
            raise FileNotFoundError(f"{self.path}: the queue does not exist; `sej queue put` creates it")


def placed_command(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command the queue that its argument and options name."""

    @click.argument("path", metavar="QUEUE", type=PATH)
    @click.option("--name", default="queue", show_default=True, help="The queue's name, if a journal has several.")
    @click.option(
        "--backend",
        metavar="NAME",
        help=f"The backend: {', '.join(BACKENDS)}, or one that an installed package adds; by default chosen by QUEUE.",
    )
    @wraps(command)
    def placed(path: Path, name: str, backend: str | None, **options: Any) -> None:
        kind = backend or ("textqueue" if path.suffix == ".tq" else "journal")
        command(Place(path, name, kind), **options)

    return placed
