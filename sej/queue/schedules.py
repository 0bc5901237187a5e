"""The schedules of a queue on a journal: they are kept in its log, and the process that takes items makes theirs.

A ``get`` that finds a time over makes the item before it takes one, also one that has waited for that time. It needs
the journal's lock, which comes before the queue's: so ``get`` looks under the queue's lock, gives that back, and takes
both. Of many processes the first one makes the item, and the others read that in the log
(:mod:`sej.queue.log.timetable`).

While a :class:`sej.Writer` has the journal, or the disk is full, no item can be made: ``get`` delivers others, and the
items are made later.
"""

from __future__ import annotations

from typing import Final

from sej.checks import backoff
from sej.codec import decode_many
from sej.errors import LockedError, QueueFullError, SejError
from sej.journal.tail import sync_up_to
from sej.queue.core import QueueCore
from sej.queue.interface.schedules import Plan
from sej.queue.interface.values import ACTIVE
from sej.queue.log import format as records
from sej.queue.log.ready_queue import NEVER, key_hash
from sej.queue.put import Putter
from sej.system.disk import full_disk_advice, of_system

_BATCH: Final = 64
"""So many items are made in one turn: other workers wait meanwhile."""
_PAUSES_S: Final = 0.002, 1.0
"""The shortest and the longest wait between two attempts while another process has the journal."""
_FAILED_NS: Final = 10_000_000_000
_LOOK_NS: Final = 60_000_000_000
"""A process that waits for a time looks this often whether the clock was set."""


class Scheduler:
    """Makes the items of one open queue.

    Attributes:
        problem: why an item could not be made since the last check; None: all were.
    """

    def __init__(self, core: QueueCore, putter: Putter) -> None:
        """Make items for this queue, as the putter puts them."""
        self._core, self._putter = core, putter
        self.problem: Exception | None = None
        self._retry_at = self._busy = 0

    def problems(self) -> list[str]:
        """Return why items were not made since the last call, for the user."""
        error, self.problem = self.problem, None
        return [] if error is None else [f"an item of a schedule cannot be made, and is made later: {error}"]

    # --- under the queue's lock

    def is_over(self, now_ns: int) -> bool:
        """Return whether :meth:`make` must be called."""
        table, clock = self._core.log.state.timetable, self._core.clock
        late = bool(table.unproven) or bool(table.due and table.due.peekitem(0)[0][0] <= clock.wall_ns())
        return late and now_ns >= self._retry_at

    def wait_ns(self, now_ns: int) -> int | None:
        """Return how long a process may wait for the next time; None: no schedule has one."""
        table, clock = self._core.log.state.timetable, self._core.clock
        if not table.due and not table.unproven:
            return None
        at = 0 if table.unproven else table.due.peekitem(0)[0][0]
        return min(max(at - clock.wall_ns(), self._retry_at - now_ns, 0), _LOOK_NS)

    # --- with both locks

    def make(self) -> None:
        """Make the items whose time is over, if the journal is free."""
        core = self._core
        now = core.clock.boot_ns()
        try:
            if core.log.reserve.spent and not core.log.reserve.fill():
                raise QueueFullError(
                    f"nothing is put: {full_disk_advice(core.directory.disk, core.path)}", path=core.path
                )
            if core.writer.is_free():
                core.end_in_turn(self._make)
                self._retry_at = self._busy = 0
                return
        except LockedError:
            pass
        except (OSError, SejError) as error:
            if not core.life.open or (isinstance(error, OSError) and not of_system(error)):
                raise
            self.problem, self._retry_at = error, now + _FAILED_NS
            return
        self._busy += 1
        self._retry_at = now + int(backoff(self._busy, *_PAUSES_S) * 1e9)

    def _make(self) -> None:
        log, clock = self._core.log, self._core.clock
        log.keep_clock()  # first: if the clock was set, intervals move with it
        self.prove()
        table, now = log.state.timetable, clock.wall_ns()
        left = _BATCH
        while over := [number for next_ns, number in table.due.islice(0, left) if next_ns <= now]:
            left -= len(over)
            self._make_each(over, now)

    def _make_each(self, numbers: list[int], now: int) -> None:
        """Make an item of each of these schedules, or pass its time, with one write to each file."""
        core, log, writer = self._core, self._core.log, self._core.writer
        table, boot_ns, rows, found = log.state.timetable, core.clock.boot_ns(), [], []
        for number in numbers:
            turn, (plan, key, value) = table.turns[number], table.defined(number)
            try:
                at, next_ns = plan.turn(turn.next_ns, now)
            except (ImportError, ValueError) as error:  # another process may have the package, or the zone
                table.put_off(number)
                self.problem = error
                continue
            if at is None:
                found.append(records.TURN(number, next_ns, NEVER, 0, turn.every))
            else:
                rows.append((number, turn.every, next_ns, plan, plan.headers_at(at), key, value))
        data, span = writer.encode_many([row[-1] for row in rows], [row[-2] for row in rows])
        messages, _ = decode_many(data, 0, len(data), span.start, len(span))
        for message, (number, every, next_ns, plan, headers, _, _) in zip(messages, rows, strict=True):
            found += self._putter.records_before(
                message, boot_ns, 0.0, plan.priority, plan.expire_s, headers, plan.keep_s
            )
            found.append(records.TURN(number, next_ns, message.offset, records.message_check(message), every))
        if found:
            log.append(*found)
        if rows:
            if core.durable:
                log.force()
            writer.append_encoded(data, len(span))
            for row in rows:
                table.proven(row[0])
            if core.durable:
                writer.sync()

    def prove(self) -> None:
        """Compare the last items with the journal; take back the turns whose item was never written."""
        core, log = self._core, self._core.log
        table = log.state.timetable
        for number in list(table.unproven):
            turn = table.turns[number]
            if self._putter.is_written(turn.message, turn.check):
                if core.durable:
                    sync_up_to(core.directory, turn.message + 1, log.tail)
                table.proven(number)
            else:
                log.append(records.TURN(number, turn.before_ns, NEVER, 0, turn.every, turn.paused))

    # --- add and change, under the queue's lock

    def change(self, name: str, state: int) -> bool:
        """Pause, resume or remove a schedule; return False if there is none of this name."""
        log, number = self._core.log, key_hash(name.encode(errors="replace"))
        log.keep_clock()
        self.prove()
        turn = log.state.timetable.turns.get(number)
        if turn is None:
            return False
        next_ns = turn.next_ns
        if state == ACTIVE and turn.paused:
            plan, _, _ = log.state.timetable.defined(number)
            next_ns = max(next_ns, plan.after(self._core.clock.wall_ns(), next_ns))
        log.append(records.TURN(number, next_ns, NEVER, 0, turn.every, state))
        return True

    def add(self, plan: Plan, key: bytes, value: bytes) -> int:
        """Add a schedule, or change the one of this name; return its next time."""
        log, number = self._core.log, key_hash(plan.name.encode())
        self._core.writer.encode_many([value], [key])  # raises if they do not fit the format
        data = records.packed_schedule(plan.packed(), key, value)
        log.keep_clock()
        self.prove()
        table = log.state.timetable
        turn, next_ns = table.turns.get(number), 0
        if turn is not None:
            if table.texts[number] == data:
                return turn.next_ns
            if table.defined(number)[0].timing == plan.timing:
                next_ns = turn.next_ns
        next_ns = next_ns or plan.after(self._core.clock.wall_ns())
        paused = turn is not None and turn.paused
        log.append(
            *records.in_parts(records.SCHEDULE, number, data),
            records.TURN(number, next_ns, NEVER, 0, bool(plan.every_ns), paused),
        )
        return next_ns
