"""The processes that serve one root together, as the store of each sees the others.

A client's connection is with one of them, which opens the client's journals. If the client connects again, the next
connection may be with another process. The lock of a journal's writer decides which process writes: a process that
finds a journal locked asks the others to close its writer, and opens it. So a journal follows its client, and if a
process dies, the locks end with it.

Two connections of one client, on two processes, take a journal from each other. So that each does more than one batch
at its turn, a process does not take a journal back for TURN_S.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from hub.naming import Source

__all__ = ["ASK_S", "TURN_S", "Siblings"]

ASK_S: Final = 5.0
"""So long a process tries to get a journal from the others, before it tells the client to try again later."""
TURN_S: Final = 0.02


@runtime_checkable
class Siblings(Protocol):
    """The other processes.

    Attributes:
        counts: a folder for what they count together.
    """

    counts: str

    def ask(self, source: Source) -> bool:
        """Ask the others to close the writer of a journal; return once they have.

        Returns:
            False if none has it: another program does. True if one had it, or is opening it, or did not answer.
        """
