"""The history of one reader's name, as its holders reported it, and what must be true of it.

A run is the time in which one process holds the name. Its reports, in order::

    claim                   a worker claimed the shard
    note OFFSET ATTEMPTS    the attempts were stored
    begin FIRST LAST        the handler was called; one of these follows, or the process dies
        end FIRST LAST      it returned
        fail FIRST LAST     it raised an exception
    kept OFFSET             every message below is handled and is not delivered again
    stop                    the consumer was asked to stop
    over OFFSET             the run ended without a crash
"""

from collections import Counter

import sej


class ReaderHistory:
    """The history of one name. Each method that gets a report checks it.

    Attributes:
        kept: no message below this offset may be delivered again.
        used: the attempts of each message: the processes that died with it, and the failures within one process.
    """

    def __init__(
        self, ended: set[str], stopped: set[str], letters: list[sej.DeadLetter], most: int, *, exact: bool = True
    ) -> None:
        """Start an empty history.

        Args:
            ended: the runs that ended without a crash.
            stopped: the runs that may have ended without a crash.
            letters: the dead letters.
            most: how many attempts each message has.
            exact: whether a counted attempt stays counted if a process dies before it begins the message again.
        """
        self.ended = ended
        self.stopped = stopped
        self.letters, self.most = letters, most
        self.dead = {letter.message.offset for letter in letters}
        self.exact = exact
        self.done: set[int] = set()
        self.kept = 0
        self.run = ""
        self.over: set[str] = set()
        self.in_hand: tuple[int, int] | None = None
        self.reached = 0
        self.noted: Counter[int] = Counter()
        self.tried: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.used: Counter[int] = Counter()
        self.note = self.before = -1

    def add(self, run: str, word: str, *about: int) -> None:
        """Add the next report."""
        if word in ("kept", "over"):  # the latter after the release of the name: another process may already have it
            self.keep(about[0])
            return
        if run != self.run:
            self.leave()
            assert run not in self.over, "two processes had the name concurrently"
            self.over.add(run)
            self.run = run
        getattr(self, f"_{word}")(*about)

    def end(self, left: list[int], end: int) -> None:
        """End the history. The offsets in left were delivered last, and end is the end of the journal."""
        self.leave()
        assert left == sorted(set(left))
        assert not left or left[0] >= self.kept, "a message below the kept offset was delivered again"
        self.done.update(left)
        self.keep(end)
        assert len(self.dead) == len(self.letters), "two letters of one message"
        for letter in self.letters:
            assert self.used[letter.message.offset] >= self.most, f"{letter} was given up early"
            assert letter.attempts == self.most, letter

    def keep(self, offset: int) -> None:
        missing = [n for n in range(self.kept, offset) if n not in self.done and n not in self.dead]
        assert not missing, f"{missing} were skipped"
        self.kept = max(self.kept, offset)

    def leave(self) -> None:
        """End the current run."""
        if self.run in self.ended | self.stopped:
            self.tried.clear()
        if self.run not in self.ended:  # the last note may not have been written, so the one before it may count
            for offset in {self.note, self.before} - {-1}:
                self.noted[offset] += 1
                self.used[offset] = max(self.used[offset], self.noted[offset])
        self.failed.clear()
        self.in_hand = None
        self.note = self.before = -1

    def _note(self, offset: int, attempts: int) -> None:
        if offset >= 0:
            self.before, self.note = self.note, offset
            least = self.tried[offset] + 1 if self.exact else 1
            assert least <= attempts <= self.noted[offset] + 1, f"attempts at {offset} are {attempts}"

    def _begin(self, first: int, last: int) -> None:
        assert self.in_hand is None, "two messages are handled concurrently"
        assert first >= self.kept, f"{first} was delivered again, but {self.kept} is kept"
        while self.reached in self.done or self.reached in self.dead:
            self.reached += 1
        assert first <= self.reached, f"{first} was delivered before {self.reached}"
        self.in_hand = first, last
        if self.note == first and not self.failed[first]:
            self.tried[first] += 1

    def _fail(self, first: int, last: int) -> None:
        assert self.in_hand == (first, last)
        self.in_hand = None
        if first == last:
            self.failed[first] += 1
            self.used[first] = max(self.used[first], self.noted[first] + self.failed[first])

    def _end(self, first: int, last: int) -> None:
        assert self.in_hand == (first, last)
        self.in_hand = None
        self.done.update(range(first, last + 1))

    def _claim(self) -> None:
        """Begin a run, which :meth:`add` has noticed."""

    _stop = _claim
