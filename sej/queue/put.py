"""Put items into a queue on a journal: plain appends, and items that need a record in the log first.

A plain put is one append by the shared writer and does not touch the queue's log. A put with a delay, a priority, an
expiry, a dedupe key or a bound takes the queue's lock, then the journal's: the intent is logged with the offset,
timestamp and checksum that the message will have, then the message is appended. A crash between the two leaves an
intent that matches no message, which is void.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sej.codec import decode_many
from sej.errors import OffsetTooSmallError, QueueFullError
from sej.message import Message
from sej.queue.core import QueueCore
from sej.queue.interface.values import PLAIN, PutOptions
from sej.queue.log import format as records
from sej.queue.log.ready_queue import NEVER, key_hash
from sej.queue.log.state import hashed, requeue_key
from sej.reading.dead_letters import DeadLetter, sync_dead_letters
from sej.system.clock import span_ns
from sej.system.watch import Watch

_BATCH: Final = 256
"""So many dead letters are put back in one turn."""


class _Batch(NamedTuple):
    """The messages of one put.

    Attributes:
        values: without those whose dedupe key is known.
        keys: their keys, or None.
        hashes: of all dedupe keys, in the order of the call; None: there are none.
        new: the hashes of values.
        known: by the other hashes: the offset of the first put.
    """

    values: list[bytes]
    keys: list[bytes] | None
    hashes: list[bytes] | None
    new: list[bytes]
    known: dict[bytes, int]


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
        if found and self._writer.durability == "disk":
            self._writer.settle(max(found) + 1)
        return found

    def _put_now(self, values: list[bytes], keys: list[bytes] | None, options: PutOptions) -> Sequence[int] | None:
        batch = self._batch(values, keys, options.dedupe_keys)
        count = len(batch.values)
        return self._put(batch, options) if self._has_room(count) else None

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
                while most := _BATCH if limit is None else min(_BATCH, limit - count):
                    batch, seen = letters.batch(place.value, most)
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
        return [] if order is None else [records.BLOCK(at, order.keys[at], 0) for at in offsets if at in order.keys]

    def _append_letters(self, journal: int, letters: Sequence[DeadLetter]) -> list[bytes]:
        """Append the messages of dead letters; return a key for each, which has the message until it is removed."""
        log, now = self._log, self._core.clock.boot_ns()
        self._settle_dead(letters)
        keys = [_redrive_key(journal, letter) for letter in letters]
        known = {key for key in keys if self._known(key, now) is not None}
        new = [(key, letter) for key, letter in zip(keys, letters, strict=True) if key not in known]
        if new:
            log.keep_clock()
            writer = self._writer
            old = [letter.message for _, letter in new]
            values, types = [message.value for message in old], [message.type for message in old]
            data, span = writer.encode_many(values, [message.key for message in old], types)
            messages, _ = decode_many(data, 0, len(data), span.start, len(span))
            before: list[bytes] = []
            for (key, letter), put in zip(new, messages, strict=True):
                priority = max(-records.MAX_PRIORITY, min(letter.priority, records.MAX_PRIORITY))
                before += self.records_before(put, now, 0.0, priority, letter.expire_s, letter.headers)
                before.append(_dedupe(key, put, NEVER))
            log.append(*before)
            log.force()
            writer.append_encoded(data, len(span))
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

    def _batch(self, values: list[bytes], keys: list[bytes] | None, dedupe_keys: Sequence[bytes] | None) -> _Batch:
        """Return which of them must be written."""
        if dedupe_keys is None:
            return _Batch(values, keys, None, [], {})
        now = self._core.clock.boot_ns()
        hashes = [hashed(key) for key in dedupe_keys]
        known = {key: offset for key in hashes if (offset := self._known(key, now)) is not None}
        new: dict[bytes, int] = {}
        for index, key in enumerate(hashes):
            if key not in known:
                new.setdefault(key, index)
        picked = None if keys is None else [keys[index] for index in new.values()]
        return _Batch([values[index] for index in new.values()], picked, hashes, list(new), known)

    def _put(self, batch: _Batch, options: PutOptions) -> Sequence[int]:
        delay_s, priority, expire_s, _, _, headers, keep_s = options
        now = self._core.clock.boot_ns()
        span: range = range(0)
        if batch.values:
            writer = self._writer
            data, span = writer.encode_many(batch.values, batch.keys)
            messages, _ = decode_many(data, 0, len(data), span.start, len(span))
            before: list[bytes] = []
            for message in messages:
                before += self.records_before(message, now, delay_s, int(priority), expire_s, headers, keep_s)
            for key, message in zip(batch.new, messages, strict=False):
                before.append(_dedupe(key, message, now + self._window_ns))
            if before:
                self._log.keep_clock()
                self._log.append(*before)
                if writer.durability == "disk":  # otherwise a power loss could leave the message without them
                    self._log.force()
            writer.append_encoded(data, len(span))
            self._log.state.dedupe.written(list(zip(span, batch.new, strict=False)))
        if batch.hashes is None:
            return span
        offsets = batch.known | dict(zip(batch.new, span, strict=True))
        return [offsets[key] for key in batch.hashes]

    def records_before(
        self,
        message: Message,
        now: int,
        delay_s: float,
        priority: int,
        expire_s: float | None,
        headers: Mapping[str, str] | None,
        keep_s: float | None = None,
    ) -> list[bytes]:
        """Return the records that must precede a message with these options; none without options."""
        if not (delay_s or priority or headers) and expire_s is None and keep_s is None:
            return []
        found = []
        check = records.message_check(message)
        if delay_s or priority:
            ready_at = now + span_ns(delay_s) if delay_s else 0
            found.append(records.INTENT(message.offset, message.timestamp, check, ready_at, priority))
            order = self._log.state.order
            if order is not None:
                kinds = order.kinds
                key = key_hash(message.key) if kinds is None else kinds.of(message.key, headers or {})
                found += [records.KEY(message.offset, key)] if key else []
        if expire_s is not None:
            found.append(records.EXPIRE(message.offset, message.timestamp, check, max(now + span_ns(expire_s), 0)))
        if keep_s is not None:
            found.append(records.KEEP(message.offset, message.timestamp, check, span_ns(keep_s)))
        if headers:
            text = records.packed_headers(headers, message.timestamp, check)
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


def _redrive_key(journal: int, letter: DeadLetter) -> bytes:
    """Return the key that a dead letter has while it is put back."""
    return hashed(b"redrive %d %d" % (journal, letter.letter_offset))


def _dedupe(key: bytes, message: Message | None, until: int) -> bytes:
    """Return the record of a key's meaning; without a message it means nothing."""
    offset, check = (0, 0) if message is None else (message.offset, records.message_check(message))
    return records.deduped(key, offset, until, check)
