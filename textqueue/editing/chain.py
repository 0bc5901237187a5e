"""Edits of one queue object that follow each other, so that its readers need not read anew because of them."""

from __future__ import annotations

from textqueue.format.windows import Token

__all__ = ["Chain"]


class Chain:
    """The file before the first edit and after the last, and how far down they went."""

    def __init__(self) -> None:
        """No edits."""
        self._first: Token | None = None
        self._last: Token | None = None
        self._high = -1

    def add(self, before: Token, now: Token, position: int) -> None:
        """An edit at a position; when the file was not as the last one left it, a new chain begins."""
        if self._last != before:
            self._first, self._high = before, -1
        self._last = now
        self._high = max(self._high, position)

    def spans(self, before: Token | None, now: Token, position: int) -> bool:
        """Whether nothing but these edits, all above a position, lies between two states of the file."""
        return self._first == before and self._last == now and self._high < position

    def caught_up(self, now: Token) -> None:
        """A reader has seen everything so far: what follows is told from here on."""
        if self._last == now:
            self._first, self._high = now, -1
