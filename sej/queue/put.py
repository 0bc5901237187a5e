"""Put items into a queue on a journal: plain appends, and items that need a record in the log first.

A plain put is one append by the shared writer and does not touch the queue's log. A put with a delay, a priority, an
expiry, a dedupe key or a bound takes the queue's lock, then the journal's: the intent is logged with the offset,
timestamp and checksum that the message will have, then the message is appended. A crash between the two leaves an
intent that matches no message, which is void.

**Schedules** are kept in the log. A ``get`` that finds a time over makes the item before it takes one, also one that
has waited for that time. It needs the journal's lock, which comes before the queue's: so ``get`` looks under the
queue's lock, gives that back, and takes both. Of many processes the first one makes the item, and the others read that
in the log (:mod:`sej.queue.log.ready_queue`). While a :class:`sej.Writer` has the journal, or the disk is full, no item
can be made: ``get`` delivers others, and the items are made later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from sej.checks import backoff
from sej.codec import decode_many
from sej.errors import LockedError, OffsetTooSmallError, QueueFullError, SejError
from sej.journal.tail import sync_up_to
from sej.message import Message
from sej.queue.core import QueueCore
from sej.queue.interface.values import ACTIVE, PLAIN, Plan, PutOptions
from sej.queue.log import format as records
from sej.queue.log.ready_queue import NEVER, key_hash
from sej.queue.log.state import hashed, requeue_key
from sej.reading.dead_letters import DeadLetter, sync_dead_letters
from sej.system.clock import span_ns
from sej.system.disk import of_system
from sej.system.watch import Watch

_LETTERS: Final = 256
"""So many dead letters are put back in one turn."""
_ITEMS: Final = 64
"""So many items of schedules are made in one turn: other workers wait meanwhile."""
_PAUSES_S: Final = 0.002, 1.0
"""The shortest and the longest wait between two attempts while another process has the journal."""
_FAILED_NS: Final = 10_000_000_000
_LOOK_NS: Final = 60_000_000_000
"""A process that waits for a time looks this often whether the clock was set."""


class Putter:
    """The putting side of one open queue."""

    def __init__(self, core: QueueCore, *, maxsize: int, window_ns: int) -> None:
        """Put through the journal's writer, with intents in the log.

        Args:
            core: the queue.
            maxsize: the most items that may wait; 0: no limit.
            window_ns: how long dedupe keys are remembered.
        """
        self._core, self._log, self._writer = core, core.log, core.writer
        self._maxsize = maxsize
        self._window_ns = window_ns

    def put(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes] | None,
        options: PutOptions,
    ) -> Sequence[int]:
        """Put many items; see :meth:`sej.WorkQueue.put`.

        The journal's lock is taken before the queue's: while another process holds the journal, workers can still take
        items and end them.
        """
        values = list(values)  # the iterable must not run under a lock
        keys = None if keys is None else list(keys)
        if not self._maxsize and (options is PLAIN or options._replace(timeout=None) == PLAIN):
            if len(values) == 1 and (keys is None or len(keys) == 1):  # as in most puts
                return (self._writer.append(values[0], keys[0] if keys else b""),)
            return self._writer.append_many(values, keys)
        timeout = options.timeout
        for name, column in (("dedupe_keys", options.dedupe_keys), ("keys", keys)):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{name} must have {len(values)} entries, one for each value, got {len(column)}")
        deadline = None if timeout is None else time.monotonic() + timeout
        watch: Watch | None = None
        try:
            while True:
                found: Sequence[int] | None
                found = self._writer.turn(self._core.locked, self._put_now, values, keys, options)
                if found is not None:
                    break
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise QueueFullError(
                        f"the queue is full: it has {self._maxsize} waiting items (maxsize), and none was taken in"
                        " time",
                        path=self._log.path,
                    )
                if watch is None:  # its own: a shared one would take the events of a thread in get()
                    watch = Watch(self._core.directory.at("ofs"))
                else:
                    watch.wait(left)
        finally:
            if watch is not None:
                watch.close()
        if found and self._core.durable:
            self._writer.settle(max(found) + 1)
        return found

    def _put_now(self, values: list[bytes], keys: list[bytes] | None, options: PutOptions) -> Sequence[int] | None:
        """Put what has no known dedupe key, under both locks; return None if the queue is full."""
        log, now = self._log, self._core.clock.boot_ns()
        hashes = [hashed(key) for key in options.dedupe_keys or ()]
        offsets = {key: offset for key in hashes if (offset := self._known(key, now)) is not None}
        new: dict[bytes, int] = {}
        if options.dedupe_keys is not None:
            for index, key in enumerate(hashes):
                if key not in offsets:
                    new.setdefault(key, index)
            values = [values[index] for index in new.values()]
            keys = None if keys is None else [keys[index] for index in new.values()]
        if not self._has_room(len(values)):
            return None
        span = range(0)
        if values:
            data, span, messages = self.encoded(values, keys)
            before = [record for message in messages for record in self.records_before(message, now, options)]
            before += [
                _dedupe(key, message, now + self._window_ns) for key, message in zip(new, messages, strict=False)
            ]
            if before:
                log.keep_clock()
            self.append(before, data, span, durable=self._core.durable)
            log.state.dedupe.written(list(zip(span, new, strict=False)))
        if options.dedupe_keys is None:
            return span
        offsets.update(zip(new, span, strict=True))
        return [offsets[key] for key in hashes]

    def encoded(
        self, values: list[bytes], keys: list[bytes] | None, types: int | list[int] = 0
    ) -> tuple[bytes, range, Sequence[Message]]:
        """Return the messages that the next append to the journal has, their bytes and their offsets."""
        data, span = self._writer.encode_many(values, keys, types)
        return data, span, decode_many(data, 0, len(data), span.start, len(span))[0]

    def append(self, before: list[bytes], data: bytes, span: range, *, durable: bool) -> None:
        """Log records, then append the messages that they announce; the caller has both locks.

        Args:
            before: the records.
            data: the messages.
            span: their offsets.
            durable: whether the records are synced first: a power loss never leaves the messages without them.
        """
        if before:
            self._log.append(*before)
            if durable:
                self._log.force()
        if span:
            self._writer.append_encoded(data, len(span))

    def put_back(self, journal: int, letters: Sequence[DeadLetter], *, alone: bool = False) -> list[int]:
        """Put dead letters back, each once, under the queue's lock; durable when it returns.

        If this process dies in the middle, each letter has left a key, which counts if its message was written. The
        position is recorded only when all of them are on the disk.

        Args:
            journal: the first 8 bytes of the id of the letters' journal.
            letters: in its order.
            alone: put them back before the letters in front of them. Each keeps a key, ``requeue``, until all letters
                up to it are put back.

        Returns:
            The offsets of the new items, without letters that were put back before.
        """
        log, state = self._log, self._log.state
        position = state.redriven.get(journal, 0)
        letters = [letter for letter in letters if letter.letter_offset >= position]
        rest = [letter for letter in letters if not state.dedupe.requeued(journal, letter.letter_offset)]
        if not (rest if alone else letters):
            return []
        keys = self._append_letters(journal, rest)
        known = [state.dedupe.known[key] for key in keys]
        if alone:
            numbers = [requeue_key(journal, letter.letter_offset) for letter in rest]
            marks = [records.deduped(key, at, NEVER, check) for key, (at, _, check) in zip(numbers, known, strict=True)]
        else:
            position = letters[-1].letter_offset + 1
            gone = (letter.letter_offset for letter in letters if letter not in rest)
            marks = [_dedupe(requeue_key(journal, number), None, 0) for number in gone]
        log.append(
            records.BACK(journal, position, len(rest)),
            *self._unblocked(rest),
            *marks,
            *(_dedupe(key, None, 0) for key in keys),
        )
        log.force()
        return [found.offset for found in known]

    def redrive(self, limit: int | None) -> int:
        """Put this queue's dead letters back, oldest first; the position is stored next to them."""
        letters, count = self._core.letters, 0
        place = letters.open_position()
        if place is None:
            return 0
        try:
            with place:
                sync_dead_letters(letters.path, self._core.directory.disk)  # or others may get their offsets
                while most := _LETTERS if limit is None else min(_LETTERS, limit - count):
                    batch, seen = letters.batch(self._log.state, place.value, most)
                    count += len(self._core.end_in_turn(self.put_back, letters.number(), batch))
                    place.commit(seen)
                    if len(batch) < most:
                        break
        except BaseException:
            place.close()  # an exception of a signal handler may have interrupted the exit before it released the lock
            raise
        return count

    def put_one_back(self, journal: int, letter: DeadLetter) -> list[int]:
        """Put one dead letter back, before the letters in front of it; durable when it returns."""
        return self.put_back(journal, [letter], alone=True)

    def remove_letter(self, journal: int, letter: DeadLetter) -> bool:
        """Mark a dead letter as put back, without an item; durable when it returns.

        The last of the records removes the letter. If this process dies before it, the letter can be removed again.

        Returns:
            False if the letter was put back or removed before. A put-back that was interrupted after it wrote the
            item's message is finished.
        """
        log, state, number = self._log, self._log.state, letter.letter_offset
        position = state.redriven.get(journal, 0)
        if number < position or state.dedupe.requeued(journal, number):
            return False
        if self._known(_redrive_key(journal, letter), self._core.clock.boot_ns()) is not None:
            self.put_one_back(journal, letter)
            return False
        self._writer.sync()  # a key is dropped if its message is lost
        self._settle_dead([letter])
        log.append(
            records.BACK(journal, position, 1),
            *self._unblocked([letter]),
            _dedupe(requeue_key(journal, number), self._proof_of(letter.message), NEVER),
        )
        log.force()
        return True

    def _proof_of(self, message: Message) -> Message:
        """Return a message of the journal that a key of this one can name: itself, if it was not lost with power."""
        end = self._log.tail.end_offset()
        try:
            return self._core.others.at(max(min(message.offset, end - 1), 0)) or message
        except OffsetTooSmallError:
            return message

    def _settle_dead(self, letters: Sequence[DeadLetter]) -> None:
        """Record the items of letters as dead whose writer died before it did."""
        there = [letter.message.offset for letter in letters if self._has(letter.message)]
        if there:
            self._log.append(*(records.DEAD(offset) for offset in there))

    def _unblocked(self, letters: Sequence[DeadLetter]) -> list[bytes]:
        """Return the records that free the keys of dead letters, if they keep their keys."""
        order = self._log.state.order
        offsets = [letter.message.offset for letter in letters]
        return [records.BLOCK(at, order.keys[at], 0) for at in offsets if at in order.keys]

    def _append_letters(self, journal: int, letters: Sequence[DeadLetter]) -> list[bytes]:
        """Append the messages of dead letters; return a key for each, which has the message until it is removed."""
        log, now = self._log, self._core.clock.boot_ns()
        self._settle_dead(letters)
        keys = [_redrive_key(journal, letter) for letter in letters]
        known = {key for key in keys if self._known(key, now) is not None}
        new = [(key, letter) for key, letter in zip(keys, letters, strict=True) if key not in known]
        if new:
            log.keep_clock()
            old = [letter.message for _, letter in new]
            data, span, messages = self.encoded(
                [message.value for message in old], [message.key for message in old], [message.type for message in old]
            )
            before: list[bytes] = []
            for (key, letter), put in zip(new, messages, strict=True):
                priority = max(-records.MAX_PRIORITY, min(letter.priority, records.MAX_PRIORITY))
                options = PutOptions(priority=priority, expire_s=letter.expire_s, headers=letter.headers)
                before += (*self.records_before(put, now, options), _dedupe(key, put, NEVER))
            self.append(before, data, span, durable=True)
        self._writer.sync()
        return keys

    def _has(self, message: Message) -> bool:
        """Return whether this message is still in the queue."""
        return self._log.state.has(message.offset) and self._core.others.find(message.offset) == message

    def _has_room(self, count: int) -> bool:
        """Return whether this many more items may wait, without those whose dedupe key is known."""
        if not self._maxsize or not count:
            return True
        if count > self._maxsize:
            error = QueueFullError(f"{count} items in one call never fit a queue with maxsize {self._maxsize}")
            error.never = True
            raise error
        state, end = self._log.state, self._log.tail.end_offset()
        room = self._maxsize - count - state.fresh(end)
        return len(state.waiting) <= room or len(state.waiting) - state.void(end) <= room

    def records_before(self, message: Message, now: int, options: PutOptions) -> list[bytes]:
        """Return the records that must precede a message with these options; none without options."""
        delay_s, priority, expire_s, _, _, headers, keep_s = options
        if not (delay_s or priority or headers) and expire_s is None and keep_s is None:
            return []
        found: list[bytes] = []
        link = message.offset, message.timestamp, records.message_check(message)
        if delay_s or priority:
            ready_at = now + span_ns(delay_s) if delay_s else 0
            found.append(records.INTENT(*link, ready_at, priority))
            order = self._log.state.order
            if order.mode:
                kinds = order.kinds
                key = key_hash(message.key) if kinds is None else kinds.of(message.key, headers or {})
                found += [records.KEY(message.offset, key)] if key else []
        if expire_s is not None:
            found.append(records.EXPIRE(*link, max(now + span_ns(expire_s), 0)))
        if keep_s is not None:
            found.append(records.KEEP(*link, span_ns(keep_s)))
        if headers:
            text = records.packed_headers(headers, *link[1:])
            found += records.in_parts(records.HEADERS, message.offset, text)
        return found

    def _known(self, key: bytes, now: int) -> int | None:
        """Return the offset of a key, if it is within the window and its message was really written."""
        found = self._log.state.dedupe.known.get(key)
        if found is None or found.until_ns <= now:
            return None
        return found.offset if self.is_written(found.offset, found.check) else None

    def is_written(self, offset: int, check: int) -> bool:
        """Return whether the message that a record announced was written."""
        if offset >= self._log.tail.end_offset():
            return False
        try:
            message = self._core.others.at(offset)
        except OffsetTooSmallError:
            return True  # it existed, and retention removed it
        return message is not None and records.message_check(message) == check


class Scheduler:
    """Makes the items of one queue's schedules."""

    def __init__(self, core: QueueCore, putter: Putter) -> None:
        """Make items as the putter puts them."""
        self._core, self._putter = core, putter
        self._retry_at = self._busy = 0

    def _report(self, error: Exception) -> None:
        self._core.problems.append(f"an item of a schedule cannot be made, and is made later: {error}")

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
            core.require_reserve()
            if core.writer.is_free():
                core.end_in_turn(self._make)
                self._retry_at = self._busy = 0
                return
        except LockedError:
            pass
        except (OSError, SejError) as error:
            if not core.life.open or (isinstance(error, OSError) and not of_system(error)):
                raise
            self._report(error)
            self._retry_at = now + _FAILED_NS
            return
        self._busy += 1
        self._retry_at = now + int(backoff(self._busy, *_PAUSES_S) * 1e9)

    def _make(self) -> None:
        log, clock = self._core.log, self._core.clock
        log.keep_clock()  # first: if the clock was set, intervals move with it
        self.prove()
        table, now = log.state.timetable, clock.wall_ns()
        left = _ITEMS
        while over := [number for next_ns, number in table.due.islice(0, left) if next_ns <= now]:
            left -= len(over)
            self._make_each(over, now)

    def _make_each(self, numbers: list[int], now: int) -> None:
        """Make an item of each of these schedules, or pass its time, with one write to each file."""
        core, putter, rows, found = self._core, self._putter, [], []
        table, boot_ns = core.log.state.timetable, core.clock.boot_ns()
        for number in numbers:
            turn, (plan, key, value) = table.turns[number], table.defined(number)
            try:
                at, next_ns = plan.turn(turn.next_ns, now)
            except (ImportError, ValueError) as error:  # another process may have the package, or the zone
                table.put_off(number)
                self._report(error)
                continue
            if at is None:
                found.append(records.TURN(number, next_ns, NEVER, 0, turn.every))
            else:
                options = PutOptions(
                    priority=plan.priority, expire_s=plan.expire_s, headers=plan.headers_at(at), keep_s=plan.keep_s
                )
                rows.append((number, turn.every, next_ns, options, key, value))
        data, span, messages = putter.encoded([row[-1] for row in rows], [row[-2] for row in rows])
        for message, (number, every, next_ns, options, _, _) in zip(messages, rows, strict=True):
            found += putter.records_before(message, boot_ns, options)
            found.append(records.TURN(number, next_ns, message.offset, records.message_check(message), every))
        putter.append(found, data, span, durable=core.durable and bool(rows))
        for row in rows:
            table.proven(row[0])
        if rows and core.durable:
            core.writer.sync()

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


def _redrive_key(journal: int, letter: DeadLetter) -> bytes:
    """Return the key that a dead letter has while it is put back."""
    return hashed(b"redrive %d %d" % (journal, letter.letter_offset))


def _dedupe(key: bytes, message: Message | None, until: int) -> bytes:
    """Return the record of a key's meaning; without a message it means nothing."""
    offset, check = (0, 0) if message is None else (message.offset, records.message_check(message))
    return records.deduped(key, offset, until, check)
