"""What opens journals, for commands of packages that do not know the core: the context's object."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sej.reading.scanner import Scanner
    from sej.writing.writer import Writer

__all__ = ["Journals"]


class Journals:
    """Opens journals; loads the core's classes when they are wanted."""

    def until_reader_leaves(self) -> AbstractContextManager[None]:
        """A wait inside ends when nobody reads standard output any more; see :mod:`sej.cli.pipes`."""
        from sej.cli.pipes import until_reader_leaves

        return until_reader_leaves()

    def writer(self, path: str | os.PathLike[str]) -> Writer:
        """The writer of a journal, which is made if missing."""
        from sej.writing.writer import Writer

        return Writer(path)

    def scanner(self, path: str | os.PathLike[str], offset: int | None = None) -> Scanner:
        """The messages that are there, from an offset on; without it from the first."""
        from sej.reading.scanner import Scanner

        return Scanner(path) if offset is None else Scanner(path, offset)
