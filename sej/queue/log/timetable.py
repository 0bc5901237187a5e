"""The schedules of a queue, as its log tells them: what each puts, and when the next time. No I/O, no clock.

**One item for each time.** A process that finds a time over, under both locks, writes a TURN: the time after it, and
the message that is about to be appended. Then it appends the message. If it dies between the two, the message of the
TURN is not in the journal. The next process that has the lock compares them, and takes the turn back::

    next 03:00  --TURN next 04:00, message 17-->  unproven  --message 17 is there-->  next 04:00
                                                      |
                                                      +--it is not: TURN next 03:00-->  next 03:00

A definition is written before a TURN, and counts from that record on: of a change, all or nothing is read.

**The clock.** Times are those of the wall clock. If it was set, BOOT says by how much. The times of ``every`` are then
moved by as much: they keep their distance. The times of cron stay, and one that had its item gets no second one. If the
clock was set back by more than three hours, the next time is computed again: it may have been wrong before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from sej.queue.interface.schedules import Plan, Schedule, read_plan
from sej.queue.interface.values import Serializer
from sej.queue.log import format as records
from sej.queue.log.ready_queue import NEVER

_BACK_NS: Final = 3 * 3600 * 10**9


class Turn(NamedTuple):
    """The turn of a schedule.

    Attributes:
        next_ns: its next time, by the wall clock; 0: not computed.
        paused: whether its times pass without items.
        every: whether its times keep their distance when the clock is set.
        message: the offset of its last item; NEVER: that is compared, or there is none.
        check: the CRC32C of that message.
        before_ns: the next time if that message does not exist.
    """

    next_ns: int
    paused: bool
    every: bool
    message: int
    check: int
    before_ns: int


class Timetable:
    """The schedules by their numbers.

    Attributes:
        texts: their definitions, as :func:`sej.queue.log.format.packed_schedule` packs them.
        drafts: definitions that do not count yet.
        turns: the turn of each.
        due: (the next time, number) of those that are not paused, as the keys of a dict.
        unproven: those whose last message was not compared with the journal.
    """

    def __init__(self) -> None:
        """Create it without schedules."""
        self.texts: dict[int, bytes] = {}
        self.turns: dict[int, Turn] = {}
        self.due = SortedDict()
        self.unproven: set[int] = set()
        self.drafts: dict[int, bytes] = {}

    def defined(self, number: int) -> tuple[Plan, bytes, bytes]:
        """Return the plan, the key and the value of a schedule."""
        found = records.schedule_of(self.texts[number])
        assert found is not None
        return read_plan(found[0]), *found[1:]

    def shown(self, serializer: Serializer | None) -> list[Schedule]:
        """Return the schedules as users see them, in the order of their names."""
        found = []
        for number, turn in self.turns.items():
            plan, key, value = self.defined(number)
            found.append(plan.shown(turn.next_ns, turn.paused, key, value, serializer))
        return sorted(found, key=lambda schedule: schedule.name)

    def turned(self, number: int, turn: Turn, *, removed: bool) -> None:
        """A schedule has its next time, and what was defined before counts."""
        draft = self.drafts.pop(number, None)
        if records.schedule_of(draft) is not None:
            assert draft is not None
            self.texts[number] = draft
        old = self.turns.get(number, turn)
        self._drop(number)
        if removed or number not in self.texts:
            self.texts.pop(number, None)
            return
        self._set(number, turn._replace(before_ns=old.next_ns))
        if turn.message != NEVER:
            self.unproven.add(number)

    def proven(self, number: int) -> None:
        """The last message of a schedule exists."""
        self.unproven.discard(number)

    def put_off(self, number: int) -> None:
        """Leave a schedule out until another process has made its item."""
        self.due.pop((self.turns[number].next_ns, number), None)

    def clock_set(self, by_ns: int) -> None:
        """The wall clock was set by so much."""
        for number, turn in list(self.turns.items()):
            if turn.every:
                self._move(number, turn, by_ns)
            elif by_ns < -_BACK_NS:
                self._set(number, turn._replace(next_ns=0))

    def restarted(self, seen_ns: int, now_ns: int) -> None:
        """The machine was restarted; these are the last known time of the wall clock, and the time now.

        If it was set back meanwhile, no interval is longer than without the restart.
        """
        for number, turn in list(self.turns.items()):
            late = turn.next_ns - now_ns - max(turn.next_ns - seen_ns, 0)
            if turn.every and late > 0:
                self._move(number, turn, -late)

    def _move(self, number: int, turn: Turn, by_ns: int) -> None:
        next_ns, before_ns = (max(min(at + by_ns, NEVER), 1) for at in (turn.next_ns, turn.before_ns))
        self._set(number, turn._replace(next_ns=next_ns, before_ns=before_ns))

    def _set(self, number: int, turn: Turn) -> None:
        self._drop(number, keep=True)
        self.turns[number] = turn
        if not turn.paused:
            self.due[turn.next_ns, number] = None

    def _drop(self, number: int, *, keep: bool = False) -> None:
        there = self.turns.pop(number, None)
        if there is not None:
            self.due.pop((there.next_ns, number), None)
        if not keep:
            self.unproven.discard(number)
