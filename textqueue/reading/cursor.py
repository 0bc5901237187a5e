"""A reader's place in a queue file, kept while a person edits above and below it.

Both readers here read a window at a time and look at the file again every 50 ms (``textqueue.hot``). Changes by our
own programs move nothing, and the ledger tells them apart from others.

- :func:`walk` goes through the messages once. When lines move under it, it finds its place by the bytes before.
- :class:`Cursor` gives each queued message out once, and ``None`` only when the whole file was seen as it is now. After
  a foreign change it walks from the start again, past what it gave out already; while there is more to give out below,
  that may wait for ``_BACK_S``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator
from typing import Final

from sej.system.disk import File, Status
from textqueue.editing.delivered import Again, name_of
from textqueue.editing.message import Message
from textqueue.editing.source import Source
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.mutex import HELD, holder_of, is_alive
from textqueue.format.parser import chunks
from textqueue.format.windows import FIRST_WINDOW, WINDOW, Token, Window, read_window, scan, token_of
from textqueue.hot import ready
from textqueue.ledger.log import MAY_NOT

__all__ = ["Cursor", "walk"]

_BACK_S: Final = 1.0
_TRIES: Final = 16
_TICK_NS: Final = 20_000_000
"""A change this shortly before or after a look may hide behind the same time of change."""
_ANCHOR_BYTES: Final = 64
_WANTED: Final = CONTROL_OF[MessageStatus.queued]


class _Reader:
    """A position between two chunks, and windows read from there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0
        self.anchor = b""  # the bytes before the position
        self.token: Token | None = None  # the file at the last look
        self.epoch = -1
        self.moved = False  # lines moved: the position means nothing any more
        self.foreign = False  # somebody else changed something, maybe above
        self.cut = False  # the window was left before its end
        self.window = Window(0, b"", False, 0)
        self._size = FIRST_WINDOW

    def load(self) -> Window | None:
        """Read on; None when there is nothing more, or when ``moved``."""
        source = self.source
        found: Window | None = None
        try:
            for _ in range(_TRIES):
                file = source.reading()
                try:
                    status = file.status()
                    epoch = source.file.epoch_of(status)
                    if epoch >= 0 or not source.has_ledger or not status.size:
                        found = self._read(file, status, epoch)
                        if self.moved or token_of(file.status()) == token_of(status):
                            return found
                        continue  # somebody wrote there meanwhile
                finally:
                    file.close()
                # A stale buffer may have taken marks of ours back: they are put right before anything is given out, and
                # nobody else gets at the file between the two.
                try:
                    with source.file.session() as session:
                        found = self._read(session.file, session.status, source.file.epoch_of(session.status))
                        if self.moved or session.still():
                            return found
                except OSError as error:
                    if error.errno not in MAY_NOT:
                        raise
                    return self._unproven()
        except FileNotFoundError:
            return None
        return found

    def _unproven(self) -> Window | None:
        """For those who may only read: the file as it stands there."""
        file = self.source.reading()
        try:
            return self._read(file, file.status(), -1)
        finally:
            file.close()

    def _read(self, file: File, status: Status, epoch: int) -> Window | None:
        token = token_of(status)
        if self.token is not None and token != self.token and (epoch < 0 or epoch != self.epoch):
            self.foreign = True
            if not self._anchored(file):
                self.moved = True
                return None
        self.token, self.epoch = token, epoch
        self.source.file.chain.caught_up(token)
        window = read_window(file, self.position, self._size, settled=self.source.settled)
        self._size = min(self._size * 2, WINDOW)
        if self.anchor and not self.anchor.endswith(b"\n") and window.data[:1] not in (b"\n", b"\r", b""):
            self.moved = True  # the last line had no end when it was given out, and was written on
            return None
        self.window = window
        return window if window.data else None

    def at(self, position: int) -> None:
        """Stand behind what was handled of the window."""
        end = position - self.window.position
        if end:
            self.position = position
            self.anchor = self.window.data[max(end - _ANCHOR_BYTES, 0) : end]

    def stale(self, position: int) -> bool:
        """Whether the file has changed below a position since the window was read; then less is read ahead."""
        status = self.source.file.disk.status(self.source.path)
        if status is not None:
            token = token_of(status)
            if token == self.token:
                return False
            if self.source.only_ours(self.token, token, position):
                self.token = token
                self.source.file.chain.caught_up(token)
                return False
        self._size = FIRST_WINDOW
        self.cut = True
        return True

    def _anchored(self, file: File) -> bool:
        anchor = self.anchor
        return file.read(len(anchor), self.position - len(anchor)) == anchor

    def find_again(self) -> None:
        """In a file whose lines moved, stand behind the nearest place that looks alike, or at the next entry."""
        try:
            file = self.source.reading()
        except FileNotFoundError:
            return
        last = self.anchor[self.anchor.rfind(b"\n", 0, -1) + 1 :]
        alike: list[int] = []
        behind: list[int] = []
        try:
            for window in scan(file):
                position = window.position
                for raw in chunks(window.data):
                    position += len(raw)
                    if raw.endswith(last):
                        alike.append(position)
                    elif position >= self.position and not behind:
                        behind.append(position)
            end = file.status().size
        finally:
            file.close()
        self.position = min(alike or behind or [end], key=lambda position: abs(position - self.position))
        self.moved, self.token, self.anchor = False, None, b""


def walk(source: Source, statuses: Collection[MessageStatus]) -> Iterator[Message]:
    """All messages of some statuses, in order, as they are when they are reached."""
    controls = frozenset(CONTROL_OF[status][0] for status in statuses)
    return itertools.chain.from_iterable(_windows(source, controls))


def _windows(source: Source, controls: Collection[int]) -> Iterator[Iterator[Message]]:
    reader = _Reader(source)
    while True:
        window = reader.load()
        if window is not None:
            reader.cut = False
            yield ready(Message, reader, source, (window.position, window.data, reader.epoch), controls, None)
            if window.at_end and not reader.cut:
                return
        elif reader.moved:
            reader.find_again()
        else:
            return


def _taken(source: Source, raw: bytes, owner: bytes | None) -> bool:
    holder = owner or holder_of(raw)
    return bool(holder) and (is_alive(holder) or source.in_transit(raw))


class Cursor:
    """Gives out the queued messages of one file, each once; not those that somebody else has claimed."""

    def __init__(self, source: Source) -> None:
        """Start before the first message."""
        self._source = source
        self._clean: Token | None = None  # the file when a walk from the start to the end had nothing to give
        self.ready: Iterator[Message] = iter(())  # what is left of the window at hand
        self._reset()

    def next(self) -> Message | None:
        """The next queued message; None when the file holds no other now."""
        found = self._step()
        for _ in range(2):
            if found is not None or self._is_clean():
                break
            self._reset()
            found = self._step()
        return found

    def _step(self) -> Message | None:
        """The next one of this walk; after its end, of what was appended since."""
        for message in self.ready:
            return message
        while (window := self._next_window()) is not None:
            self.ready = self._window(window)
            for message in self.ready:
                return message
        return None

    def _reset(self) -> None:
        """Walk from the start, past what was given out already and is still queued."""
        self._reader = _Reader(self._source)
        self._again = self._source.given.again()
        self._given_back = self._source.given_back()
        self._skipped = False
        self._began_ns = time.time_ns()
        self._first: tuple[Token | None, int] | None = None
        self._foreign_since: float | None = None

    def _is_clean(self) -> bool:
        """Whether nobody changed anything above since this walk began."""
        status = self._source.file.disk.status(self._source.path)
        if status is None:
            return True
        if self._skipped:  # a claim may end, or its owner die, without a change that could be seen
            return False
        token = token_of(status)
        if token == self._clean:
            return True
        now = time.time_ns()
        token_first, epoch = self._first or (None, -1)
        if token == token_first:
            quiet = self._began_ns - status.mtime_ns > _TICK_NS
        else:
            ours = epoch > 0 and self._source.file.epoch_of(status) == epoch
            none_back = self._source.given_back() == self._given_back
            quiet = ours and none_back and now - status.mtime_ns > _TICK_NS
        if quiet:
            self._clean = token
        return quiet

    def _next_window(self) -> Window | None:
        """Read on until there is something queued; None at the end of the file."""
        while True:
            self._source.given.settle()
            window = self._reader.load()
            if self._first is None:
                self._first = self._reader.token, self._reader.epoch
            if self._reader.moved or self._must_go_back():
                self._reset()
            elif window is None:
                break
            elif window.data.startswith(b"-") or b"\n-" in window.data:
                return window
            else:
                self._reader.at(window.position + len(window.data))
        # The whole file was seen: what was given out and not met again is not in the queue any more.
        self._source.given.gone(self._again)
        self._again = Again()
        return None

    def _window(self, window: Window) -> Iterator[Message]:
        """Give out what a window holds, or its beginning when the file changes meanwhile."""
        claims = self._source.claims()
        place = window.position, window.data, self._reader.epoch
        pending = self._source.given.pending
        if self._again or claims or HELD.search(window.data):
            return self._carefully(ready(Message, self._reader, self._source, place, _WANTED, None), claims)
        return ready(Message, self._reader, self._source, place, _WANTED, pending)

    def _carefully(self, messages: Iterator[Message], claims: dict[int, bytes]) -> Iterator[Message]:
        """Leave out what was given out before, and what somebody else holds."""
        again, remember = self._again, self._source.given.pending.append
        for message in messages:
            raw = message._raw
            if again and again.take(name_of(raw)):
                continue
            if _taken(self._source, raw, claims.get(message._position)):
                self._skipped = True
            else:
                remember(raw)
                yield message

    def _must_go_back(self) -> bool:
        if not self._reader.foreign:
            return False
        now = time.monotonic()
        if self._foreign_since is None:
            self._foreign_since = now
        return now - self._foreign_since > _BACK_S
