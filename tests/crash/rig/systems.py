"""What is tested on the rig, each in the same few verbs, and what a medium must hold of it.

A system acts on one directory and says what was acknowledged, in marks:

===========  ========================================================================================================
``durable``  ``where``, ``rows``: in that journal these offsets have these numbers, and no loss of power takes them
``kept``     ``offset``: the reader's kept offset is at least this
``handled``  ``number``: the handler had this offset
``put``      ``number``: this value is delivered until it is taken
``taking``   ``number``: from now on it may be gone
``taken``    ``number``: it is not delivered again
===========  ========================================================================================================

:meth:`judge` compares these with a medium. It raises :class:`AssertionError`, and nothing else.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import hub
import kestrel
import sej
import shard
import textqueue
from kestrel import segmented
from sej import codec
from tests.crash.rig.medium import POISON_BYTES, Mark, number_of, value
from tests.sej.hooks import until

FAILURES: Final = (OSError, sej.SejError)
"""What a system may raise on a disk that fails; ``sej.SejError`` is the base of every package's errors."""


FOUND: Final = 99_999_999
"""The number of a message that no test counts."""


class Say(Protocol):
    """Writes a mark."""

    def __call__(self, word: str, **about: Any) -> None: ...


class System(ABC):
    """One object in one directory.

    Attributes:
        opened: what :meth:`open` has opened.
        weak: open it so that nothing is synced by itself; nothing that it does is acknowledged then.
        small: files are as short as a few messages.
    """

    opened: Any

    def __init__(self, path: Path, say: Say, *, small: bool) -> None:
        self.path = path
        self.say = say
        self.small = small
        self.weak = False

    @property
    def segment_bytes(self) -> int:
        """How long a segment or a journal file may become."""
        return 20_000 if self.small else 1 << 24

    @abstractmethod
    def open(self) -> None:
        """Open it, and say what it reports as durable."""

    @abstractmethod
    def act(self, number: int, *, poison: bool = False) -> None:
        """Write value ``number``, and say what was acknowledged."""

    @abstractmethod
    def again(self) -> None:
        """Do what a program does next with the same object after an error."""

    def found(self) -> None:
        """Say that what the opening found is durable, once it is; for those that promise it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""
        self.opened.close()

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        """Compare the reports with what a medium has at path."""
        judge_journals(path, marks)


# Journals


def messages_in(path: Path) -> Iterator[sej.Message]:
    """Every message up to the first damage."""
    with suppress(sej.CorruptionError, sej.JournalNotFoundError), sej.Scanner(path, timeout=0.0) as scanner:
        yield from scanner


def rows_of(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and number of every message up to the first damage."""
    return ((message.offset, number_of(message.value)) for message in messages_in(path))


def rows_left(path: Path) -> Iterator[tuple[int, int]]:
    """As :func:`rows_of`, on a medium that lost power."""
    return ((message.offset, number) for message in messages_in(path) for number in _left(message.value))


def judge_journals(path: Path, marks: Iterable[Mark]) -> None:
    """Check that every message that was reported as durable is there, at its offset."""
    wanted: dict[str, dict[int, int]] = {}
    for mark in marks:
        if mark.word == "durable":
            journal = wanted.setdefault(mark.about["where"], {})
            for offset, number in mark.about["rows"]:
                known = journal.setdefault(offset, number)
                assert known == number, f"offset {offset} was {known} and is {number}"
    for where, journal in wanted.items():
        found = dict(rows_left(path / where))
        lost = {offset: number for offset, number in journal.items() if found.get(offset) != number}
        assert not lost, f"{where or 'the journal'} has {len(found)} messages; durable and not there: {_few(lost)}"


def _left(data: bytes) -> Iterator[int]:
    """The number of a value in a journal; none if it is a poison and a part of it is not there.

    A loss of power while blocks are written again may keep the first and the last of them. A poison alone is so long
    that a block between these is nothing but value, which no frame covers. If it was acknowledged, it is missed.
    """
    if len(data) == POISON_BYTES:
        yield from _whole(data)
    else:
        yield number_of(data)


def _few(things: Iterable[object]) -> str:
    some = [str(thing) for thing in itertools.islice(things, 9)]
    return ", ".join(some[:8]) + (", ..." if len(some) > 8 else "")


def _options(system: System) -> Any:
    """Of a writer that syncs at every append, or within an hour."""
    durability = {"durability": "interval", "sync_interval_s": 3600.0} if system.weak else {"durability": "disk"}
    return {"segment_bytes": system.segment_bytes, **durability}


class _Journal(System):
    """A journal that one writer of ours has."""

    def make(self) -> sej.Writer | sej.SharedWriter:
        return sej.Writer(self.path, **_options(self))

    def open(self) -> None:
        self.opened = self.make()
        self.say_durable()

    def say_durable(self) -> None:
        durable = self.opened.durable_offset
        rows = [row for row in rows_of(self.path) if row[0] < durable]
        self.say("durable", where="", rows=rows)

    def found(self) -> None:
        """The next one who opens a journal and appends syncs what a killed process left."""
        rows = list(rows_of(self.path))
        self.opened.append(value(FOUND))
        until(lambda: self.opened.durable_offset >= len(rows))
        self.say("durable", where="", rows=rows)

    def tell(self, span: range, numbers: Iterable[int]) -> None:
        self.say("durable", where="", rows=list(zip(span, numbers, strict=True)))

    def act(self, number: int, *, poison: bool = False) -> None:
        offset = self.opened.append(value(number, poison=poison))
        if not self.weak:
            self.tell(range(offset, offset + 1), [number])

    def again(self) -> None:
        self.opened.sync()
        self.say_durable()


class Writer(_Journal):
    """``sej.Writer``."""


class SharedWriter(_Journal):
    """``sej.SharedWriter``."""

    def make(self) -> sej.SharedWriter:
        return sej.SharedWriter(self.path, **_options(self))


class AppendOnce(_Journal):
    """``Writer.append_once``; in batches of three."""

    def make(self) -> sej.Writer:
        return sej.Writer(self.path, segment_bytes=self.segment_bytes)

    def act(self, number: int, *, poison: bool = False) -> None:
        if self.weak:
            self.opened.append(value(number * 3, poison=poison))
            return
        self._last = number, poison
        self._put(number, poison)

    def _put(self, number: int, poison: bool) -> None:
        numbers = range(number * 3, number * 3 + 3)
        span = self.opened.append_once("p", number, [value(n, poison=poison) for n in numbers])
        self.tell(span, numbers)

    def again(self) -> None:
        self._put(*self._last)

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        judge_journals(path, marks)
        if any(mark.word == "weak" for mark in marks):
            return
        with suppress(sej.CorruptionError), sej.Writer(path):  # rolls forward what was promised
            pass
        judge_batches(path)


def judge_batches(path: Path) -> None:
    """Of each three messages all are there, one after the other, or none."""
    numbers = [number for _, number in rows_of(path)]
    for at in range(0, len(numbers), 3):
        first = numbers[at]
        assert first % 3 == 0 and numbers[at : at + 3] == [first, first + 1, first + 2], f"a part of a batch at {at}"


class ShardWriter(System):
    """``shard.Writer``, over two shards."""

    def open(self) -> None:
        self.tree = shard.Path(self.path, "orders", 1)
        self.opened = shard.Writer(self.tree, **_options(self))

    def act(self, number: int, *, poison: bool = False) -> None:
        index, offset = self.opened.append(value(number, poison=poison), b"%d" % (number // 2))
        if not self.weak:
            self.say("durable", where=Path(self.tree.dir(index)).name, rows=[(offset, number)])

    def again(self) -> None:
        self.opened.sync()


class HubStore(System):
    """``hub.Store``; what it was sent again is acknowledged like what is new."""

    def open(self) -> None:
        self.opened = hub.Store(self.path, min_free_bytes=0, segment_bytes=self.segment_bytes)
        self.say_end()
        self._last: list[sej.Message] = []

    def say_end(self) -> None:
        end = self.opened.end_offset("c", "x")
        found = self.opened.get("c", "x", 0, 10_000) if end else []
        self._told([message for message in found if message.offset < end])

    def _told(self, messages: Iterable[sej.Message]) -> None:
        rows = [(message.offset, number_of(message.value)) for message in messages]
        self.say("durable", where="c.x", rows=rows)

    def act(self, number: int, *, poison: bool = False) -> None:
        data = value(number, poison=poison)
        self._last = [sej.Message(self.opened.end_offset("c", "x"), number, 0, b"", data)]
        if self.weak:
            offset = self._last[0].offset
            self.opened.put_encoded("c", "x", codec.encode(offset, number, 0, b"", data), sync=False)
        else:
            self._put()

    def _put(self) -> None:
        self.opened.put("c", "x", self._last)
        self._told(self._last)

    def again(self) -> None:
        self._put()
        self.say_end()


# Readers that keep a place


def judge_kept(path: Path, marks: Sequence[Mark]) -> None:
    """The kept offset is the one that was acknowledged or a later one, and the journal reaches up to it."""
    judge_journals(path, marks)
    said = max((mark.about["offset"] for mark in marks if mark.word == "kept"), default=0)
    kept = (sej.read_offset(path, "r") if (path / "ofs").exists() else None) or 0
    assert kept >= said, f"offset {said} was kept, the medium has {kept}"
    there = {offset for offset, _ in rows_left(path)}
    gone = [offset for offset in range(kept) if offset not in there]
    assert not gone, f"offset {kept} is kept, and of the messages before it these are not there: {_few(gone)}"


class _Reader(System):
    """A reader behind a writer that syncs nothing."""

    def open(self) -> None:
        self.opened = sej.Writer(self.path, segment_bytes=self.segment_bytes)

    def say_kept(self, offset: int) -> None:
        self.say("durable", where="", rows=[row for row in rows_of(self.path) if row[0] < offset])
        self.say("kept", offset=offset)

    def act(self, number: int, *, poison: bool = False) -> None:
        self.last = self.opened.append(value(number, poison=poison)) + 1
        if not self.weak:
            self.again()

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        judge_kept(path, marks)


class Offset(_Reader):
    """``sej.Offset.commit``."""

    def open(self) -> None:
        super().open()
        self.offset = sej.Offset(self.path, "r")
        self.say_kept(self.offset.value)

    def again(self) -> None:
        self.offset.commit(self.last)
        self.say_kept(self.last)

    def close(self) -> None:
        try:
            self.offset.close()
        finally:
            super().close()


class Consumer(_Reader):
    """``sej.Consumer``."""

    def open(self) -> None:
        super().open()
        self.say_kept(sej.read_offset(self.path, "r") or 0)

    def again(self) -> None:
        consumer = sej.Consumer(self.path, "r", timeout=0.0)
        consumer.run(lambda message: self.say("handled", number=message.offset))
        self.say_kept(sej.read_offset(self.path, "r") or 0)

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        super().judge(path, marks)
        handled = {mark.about["number"] for mark in marks if mark.word == "handled"}
        kept = (sej.read_offset(path, "r") if (path / "ofs").exists() else None) or 0
        assert set(range(kept)) <= handled, "a message was passed that no handler had"


# Queues


def judge_queue(found: Iterable[int], marks: Sequence[Mark]) -> None:
    """What was put and not taken is delivered; what was taken is not."""
    there = list(found)
    numbers = {
        word: {mark.about["number"] for mark in marks if mark.word == word} for word in ("put", "taking", "taken")
    }
    lost = numbers["put"] - numbers["taking"] - set(there)
    assert not lost, f"put and not delivered: {_few(sorted(lost))}; {len(there)} are"
    back = numbers["taken"] & set(there)
    assert not back, f"taken and delivered again: {_few(sorted(back))}"
    twice = {number for number in there if there.count(number) > 1}
    assert not twice, f"delivered twice: {_few(sorted(twice))}"


def _whole(data: bytes) -> Iterator[int]:
    """The number of a value; none if a part of it is not there, which formats without checksums cannot tell.

    What was put is compared by its number, so a part of it is a loss. A part of a message that was never acknowledged
    is not a loss.
    """
    with suppress(AssertionError):
        yield number_of(data)


class _Queue(System):
    """A queue: after every third put an item is taken, if there is one."""

    numbers: Callable[[bytes], Iterator[int]] = staticmethod(_whole)
    """The numbers in what a medium has in the place of a value."""

    def act(self, number: int, *, poison: bool = False) -> None:
        self.opened.put(value(number, poison=poison))
        if self.weak:
            return
        self.say("put", number=number)
        if number % 3 == 0:
            self.take(number % 2 == 0)

    def again(self) -> None:
        self.take(True)

    @abstractmethod
    def take(self, even: bool) -> None:
        """Take the next item in one of two ways."""

    @contextmanager
    def taking(self, data: bytes) -> Iterator[None]:
        """What is done in the block ends the item with this value."""
        self.say("taking", number=number_of(data))
        yield
        self.say("taken", number=number_of(data))

    @classmethod
    @abstractmethod
    def left(cls, path: Path) -> Iterator[bytes]:
        """Take everything."""

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        found: list[int] = []
        with suppress(sej.SejError):  # after damage nothing is delivered
            for data in cls.left(path):
                found += cls.numbers(data)
        judge_queue(found, marks)


class WorkQueue(_Queue):
    """``sej.open_queue``: put, done and retry."""

    numbers = staticmethod(_left)

    def open(self) -> None:
        self.opened = sej.open_queue(self.path, "w", max_attempts=10_000, **_options(self))

    def found(self) -> None:
        """The next one who opens a queue and puts syncs what a killed process left."""
        numbers = [number for _, number in rows_of(self.path)]
        self.opened.put(value(FOUND))
        for number in numbers:
            self.say("put", number=number)

    def take(self, even: bool) -> None:
        item = self.opened.get(timeout=0.0)
        if item is not None and not even:
            item.retry(delay_s=0.0)
        elif item is not None:
            with self.taking(item.value):
                item.done()

    @classmethod
    def left(cls, path: Path) -> Iterator[bytes]:
        with sej.open_queue(path, "w") as queue:
            while (item := queue.get(timeout=0.0)) is not None:
                yield item.value


class Kestrel(_Queue):
    """``kestrel.Queue(sync="always")``: put, get, and reserve with confirm."""

    def open(self) -> None:
        self.opened = kestrel.Queue(
            self.path,
            "q",
            sync="never" if self.weak else "always",
            journal_bytes=self.segment_bytes,
            max_journal_bytes=4 * self.segment_bytes,
        )

    def take(self, even: bool) -> None:
        item = self.opened.peek()
        if item is None:
            return
        with self.taking(item.data):
            if even:
                taken = self.opened.reserve()
                assert taken is not None and taken[1] == item and self.opened.confirm(taken[0])
            else:
                assert self.opened.get() == item

    @classmethod
    def left(cls, path: Path) -> Iterator[bytes]:
        with kestrel.Queue(path, "q") as queue:
            while (item := queue.get()) is not None:
                yield item.data


class Segmented(_Queue):
    """``kestrel.segmented.Queue(sync="always")``: put, and get with commit."""

    def open(self) -> None:
        self.opened = segmented.Queue(
            self.path, "q", sync="never" if self.weak else "always", journal_bytes=self.segment_bytes
        )
        self.reader = self.opened.reader()

    def take(self, even: bool) -> None:
        item = self.reader.get()
        if item is not None:
            with self.taking(item.data):
                self.reader.commit(item)

    @classmethod
    def left(cls, path: Path) -> Iterator[bytes]:
        with segmented.Queue(path, "q") as queue:
            reader = queue.reader()
            while (item := reader.get()) is not None:
                yield item.data


class TextQueue(System):
    """``textqueue.TextQueue.sync``: what was appended and marked before it."""

    def open(self) -> None:
        self.path.mkdir(exist_ok=True)
        self.opened = textqueue.TextQueue(self.path / "q.tq", settle_s=0.0)
        self._put: list[int] = []
        self._marked: list[int] = []

    def act(self, number: int, *, poison: bool = False) -> None:
        self.opened.append(value(number, poison=poison))
        self._put.append(number)
        if self.weak:
            return
        if number % 3 == 0 and (message := self.opened.get_next()) is not None:
            self.say("taking", number=number_of(message.value.encode()))
            message.mark_as_cleared()
            self._marked.append(number_of(message.value.encode()))
        self._sync()

    def _sync(self) -> None:
        self.opened.sync()
        for number in self._put:
            self.say("put", number=number)
        for number in self._marked:
            self.say("taken", number=number)
        self._put, self._marked = [], []

    def again(self) -> None:
        self._sync()

    @classmethod
    def judge(cls, path: Path, marks: Sequence[Mark]) -> None:
        with textqueue.TextQueue(path / "q.tq", settle_s=0.0) as queue:
            found: list[int] = []
            for message in queue.messages():
                found += _whole(message.value.encode())
        judge_queue(found, marks)


SYSTEMS: Final[dict[str, type[System]]] = {
    "writer": Writer,
    "shared-writer": SharedWriter,
    "append-once": AppendOnce,
    "shard-writer": ShardWriter,
    "hub-store": HubStore,
    "offset": Offset,
    "consumer": Consumer,
    "work-queue": WorkQueue,
    "kestrel": Kestrel,
    "libkestrel": Segmented,
    "textqueue": TextQueue,
}
