"""Opens journals for commands of packages that may not import the core's upper layers: the context's object."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sej.reading.scanner import Scanner
    from sej.writing.writer import Writer


class Journals:
    """Opens journals; imports the core's classes at their first use."""

    def until_reader_leaves(self) -> AbstractContextManager[None]:
        """End a wait when the reader of standard output has closed the pipe; see :mod:`sej.cli.shared.pipes`."""
        from sej.cli.shared.pipes import until_reader_leaves

        return until_reader_leaves()

    def writer(self, path: str | os.PathLike[str]) -> Writer:
        """Open the writer of a journal; the journal is created if it is missing."""
        from sej.writing.writer import Writer

        return Writer(path)

    def scanner(self, path: str | os.PathLike[str], offset: int | None = None) -> Scanner:
        """Scan the existing messages from an offset on, by default from the first."""
        from sej.reading.scanner import Scanner

        return Scanner(path) if offset is None else Scanner(path, offset)
