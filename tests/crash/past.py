"""What the holders of one reader's name said, told in the order of time, and what must be true of it."""

from collections import Counter


class Past:
    """The history of one name.

    Attributes:
        kept: up to here nothing may come back.
        used: how many attempts each message has used: processes that it ended, and failures in the hands of one.
    """

    def __init__(self, ended: set[str], stopped: set[str], buried: set[int], *, sure: bool = True) -> None:
        """Nothing happened yet.

        Args:
            ended: the runs that left in order.
            stopped: those that may have.
            buried: the dead letters.
            sure: whether what was counted stays counted, whoever dies before the message is in hand again.
        """
        self.ended = ended
        self.stopped = stopped
        self.buried = buried
        self.sure = sure
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

    def tell(self, run: str, word: str, *about: int) -> None:
        if word == "kept":
            self.keep(about[0])
            return
        if word == "over":  # said when somebody else may have the name
            self.keep(about[0])
            return
        if run != self.run:
            self.leave()
            assert run not in self.over, "two had one name at once"
            self.over.add(run)
            self.run = run
        getattr(self, f"_{word}")(*about)

    def end(self, left: list[int], end: int) -> None:
        """All is over, and what was left was handled in this order."""
        self.leave()
        assert left == sorted(set(left))
        assert not left or left[0] >= self.kept, "what is kept came back"
        self.done.update(left)
        self.keep(end)

    def keep(self, offset: int) -> None:
        missing = [n for n in range(self.kept, offset) if n not in self.done and n not in self.buried]
        assert not missing, f"{missing} were passed over"
        self.kept = max(self.kept, offset)

    def leave(self) -> None:
        """Whoever had the name is gone."""
        if self.run in self.ended | self.stopped:
            self.tried.clear()
        if self.run not in self.ended:  # the last note may never have been written, and then the one before it stands
            for offset in {self.note, self.before} - {-1}:
                self.noted[offset] += 1
                self.used[offset] = max(self.used[offset], self.noted[offset])
        self.failed.clear()
        self.in_hand = None
        self.note = self.before = -1

    def _note(self, offset: int, attempts: int) -> None:
        if offset >= 0:
            self.before, self.note = self.note, offset
            least = self.tried[offset] + 1 if self.sure else 1
            assert least <= attempts <= self.noted[offset] + 1, f"attempts at {offset} are {attempts}"

    def _begin(self, first: int, last: int) -> None:
        assert self.in_hand is None, "one after another"
        assert first >= self.kept, f"{first} came back behind {self.kept}"
        while self.reached in self.done or self.reached in self.buried:
            self.reached += 1
        assert first <= self.reached, f"{first} came before {self.reached}"
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
        pass

    def _stop(self) -> None:
        pass
