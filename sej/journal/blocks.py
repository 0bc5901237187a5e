"""Whole blocks as columns: read, checked and decoded by one compiled call, which works without the interpreter's lock.

It is an addition to the ordinary way of :class:`sej.journal.cursor.Cursor`, which checks and decodes everything that
these functions leave. So they need no twin in pure Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sej.codec import Columns, Views
from sej.imports import compiled
from sej.system.disk import File, OsFile

if TYPE_CHECKING:
    from sej.journal.index import Block

Allocate = Callable[[int], tuple[memoryview, bool]]
"""Returns writable memory of at least so many bytes, and whether it has no pages yet. It begins at a multiple of 16."""

_compiled = compiled("sej.journal._blocks_c")


class BlockColumns(NamedTuple):
    """Which columns are read of blocks, and how many blocks by one call.

    Attributes:
        size: the bytes of the blocks, at most.
        types: whether the types are needed.
        keys: whether the keys are needed; only with ``allocate``.
        values: whether the values are needed; only with ``allocate``.
        allocate: makes the memory of :class:`~sej.codec.Views`; None: :class:`~sej.codec.Columns` without keys and
            values are returned.
    """

    size: int
    types: bool = True
    keys: bool = False
    values: bool = False
    allocate: Allocate | None = None

    @property
    def is_available(self) -> bool:
        """Whether the compiled module is installed and this processor has the instructions that it needs."""
        return _compiled is not None and bool(_compiled.can_read())

    def read(self, file: File, blocks: list[Block], position: int, due: int, limit: int) -> Columns | Views | None:
        """Read up to limit messages, in blocks from the end of a list on; only those that are as they were written.

        Args:
            file: the segment.
            blocks: the entries, from the last to the first.
            position: where the next message is.
            due: its offset.
            limit: how many messages to read at most.

        Returns:
            The columns; None if the next message is not at the beginning of a block that is good and within the limits.
        """
        if not self.is_available or (fd := _descriptor(file)) < 0:
            return None
        assert _compiled is not None
        found: Columns | Views | None
        if self.allocate is None:
            found = _compiled.fixed_columns(fd, blocks, position, due, limit, self.size, self.types)
        else:
            wanted = self.types, self.keys, self.values, self.allocate
            found = _compiled.views(fd, blocks, position, due, limit, self.size, *wanted)
        return found


def _descriptor(file: File) -> int:
    """Return the descriptor of a file that is read by the system alone; otherwise -1."""
    return file.fileno() if type(file) is OsFile else -1
