"""The latest consecutive edits of a queue object, so that its readers need not read the file again after them."""

from __future__ import annotations

from textqueue.format.windows import Token


class Chain:
    """Consecutive edits: the states of the file before the first and after the last, and the highest position."""

    def __init__(self) -> None:
        """Begin without edits."""
        self._first: Token | None = None
        self._last: Token | None = None
        self._high = -1

    def add(self, before: Token, now: Token, position: int) -> None:
        """Add an edit at a position. If the file has changed since the last edit, a new chain begins."""
        if self._last != before:
            self._first, self._high = before, -1
        self._last = now
        if position > self._high:
            self._high = position

    def spans(self, before: Token | None, now: Token, position: int) -> bool:
        """Return whether these edits alone, all before a position, led from one state of the file to the other."""
        return self._first == before and self._last == now and self._high < position

    def caught_up(self, now: Token) -> None:
        """Begin a new chain at this state, because a reader has read the file in it."""
        if self._last == now:
            self._first, self._high = now, -1
