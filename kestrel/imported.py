"""The record of a queue's last import that finished, for a caller that did not learn that it had.

A process may be killed after the last message is in the queue, or a close may fail. The caller then repeats the import.
The record names the messages and the state of the queue after them. If both are the same, nothing is added. If the
queue has changed since, the record does not count: an import of the same messages adds them again.

The record is in the queue's ``kept/``, because the originals take a file next to a journal for a file of a queue. They
ignore folders.
"""

from __future__ import annotations

import os
from typing import Any, Final

from kestrel.errors import MoveError
from kestrel.files import KEPT, join
from sej.system.disk import Disk, read_small, replace_file
from sej.system.sealed import seal, unseal

_RECORD_BYTES: Final = 1 << 20


class Imported:
    """The record of one queue. The caller holds the queue's lock.

    Attributes:
        path: the file.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, disk: Disk) -> None:
        """Name the file; nothing is opened."""
        self.path = join(directory, os.path.join(KEPT, f"{name}.imported"))
        self._disk = disk

    def load(self, queue: Any) -> Any:
        """What an import stored that left the queue in this state; None if there is no such record.

        Raises:
            MoveError: the record cannot be read.
        """
        try:
            found = unseal(self.path, read_small(self._disk, self.path, _RECORD_BYTES))
            return found["messages"] if found["queue"] == queue else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            raise MoveError(
                f"this record of an import cannot be read ({error}); compare the queue with the messages: if they are"
                " in the queue, do not import them again, otherwise remove this file",
                path=self.path,
            ) from error

    def save(self, queue: Any, messages: Any) -> None:
        """Record an import, durably: the state of the queue after it, and what names its messages. Both are JSON."""
        replace_file(
            self._disk, f"{self.path}.part", self.path, seal(self.path, {"queue": queue, "messages": messages})
        )
