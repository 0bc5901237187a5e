"""Readers that keep their position in a queue file while a user edits above and below it.

A reader reads one window at a time and checks the file for changes every 50 ms (``_ready``). A change by a
program that uses this library moves no message. The ledger tells such changes from foreign ones, which may move lines.

- :func:`walk` iterates over the messages once. If lines move, it finds its position by the bytes before it.
- :class:`Cursor` delivers each queued message once. It returns None only after it has seen the whole current file.
  After a foreign change it starts again from the top, and skips the messages that it has delivered. As long as there
  are more messages below, it may start again only after ``_RESTART_S``.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from sej.system.disk import File, Status
from textqueue.editing.message import Message
from textqueue.editing.tq_file import TqFile, hash_of, take
from textqueue.format.mutex import HELD, claimant, holder_of, is_alive, is_here
from textqueue.format.parser import CONTROL_OF, MessageStatus, chunks
from textqueue.format.windows import (
    FIRST_WINDOW,
    WINDOW,
    Token,
    Window,
    is_generation,
    read_window,
    require_resolved,
    scan_chunks,
    token_of,
)
from textqueue.log import READ_ONLY_ERRORS

_RESTART_S: Final = 1.0
_MAX_ATTEMPTS: Final = 16
_TICK_NS: Final = 20_000_000
"""Two changes within this time may have the same modification time."""
_ANCHOR_BYTES: Final = 64
_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_UNMARKED: Final = bytes.maketrans(b"=!#", b"---")
"""Makes a text equal to the same text with other marks."""
_WANTED: Final = CONTROL_OF[MessageStatus.queued]
_FRESH_S: Final = 0.05
"""How long messages of a window are delivered before the file is checked again."""
_FEW_BYTES: Final = 2048
"""In a window of so many bytes the file is checked after each message: so in a short file, always."""


class _Reader:
    """A position between two chunks, from which windows are read."""

    def __init__(self, source: TqFile, *, checks: bool = False) -> None:
        """Start at the beginning of a file.

        checks: whether this is for a worker: it compares all bytes before the position, whatever their marks, if the
        anchor differs, refuses a file with a conflict, and holds back the last message until it is complete.
        """
        self.source = source
        self.position = 0
        self.anchor = b""  # the bytes before the position
        self._checks = checks
        self._begin = 0  # where the first window began: after a byte order mark
        self._check = 0  # the CRC32 of the bytes from there to the position, without their marks
        self.token: Token | None = None  # the file at the last look
        self.epoch = -1
        self.moved = False  # lines moved: the position is outdated
        self.foreign = False  # another program changed the file, maybe above the position
        self.cut = False  # the reader left the window before its end
        self.window = Window(0, b"", False)
        self.soon = False  # whether a part was read so soon after a change that a later one may have the same time
        self._size = FIRST_WINDOW

    def load(self) -> Window | None:
        """Read the next window; None at the end of the file, or if ``moved``."""
        source = self.source
        found: Window | None = None
        try:
            for _ in range(_MAX_ATTEMPTS):
                with source.reading() as file:
                    status = file.status()
                    epoch = source.file.epoch_of(status)
                    if epoch >= 0 or not source.has_ledger or not status.size:
                        found = self._read(file, status, epoch)
                        if self.moved or token_of(file.status()) == token_of(status):
                            return found
                        continue  # another program wrote to the file meanwhile
                # An editor may have saved an old buffer and reverted marks. The session repairs them. Its lock keeps
                # other workers from changing the file before the window is read.
                try:
                    with source.file as session:
                        if session.busy and self._checks:  # another program may be in the middle of a save
                            source.growing = True
                            return None
                        found = self._read(session.file, session.status, source.file.epoch_of(session.status))
                        if self.moved or session.still():
                            return found
                except OSError as error:
                    if error.errno not in READ_ONLY_ERRORS:
                        raise
                    with source.reading() as file:  # as it is, for users who may not write to it
                        return self._read(file, file.status(), -1)
        except FileNotFoundError:
            return None
        return found

    def _read(self, file: File, status: Status, epoch: int) -> Window | None:
        token = token_of(status)
        if self.token is not None and token != self.token and (epoch < 0 or epoch != self.epoch):
            self.foreign = True
            if not self._anchored(file) and not self._only_marks(file):
                self.moved = True
                return None
        self.token, self.epoch = token, epoch
        self.soon = self.soon or time.time_ns() - status.mtime_ns <= _TICK_NS
        settled = self.source.settled if self._checks else self.source.settled_line
        window = read_window(file, self.position, self._size, settled=settled)
        if self._checks:
            require_resolved(file, window)
        self._size = min(self._size * 2, WINDOW)
        if self.anchor and not self.anchor.endswith(b"\n") and window.data[:1] not in (b"\n", b"\r", b""):
            self.moved = True  # the last line had no newline when it was delivered, and has grown since
            return None
        self.window = window
        return window if window.data else None

    def at(self, position: int) -> None:
        """Move to a position in the window: everything before it was handled."""
        end = position - self.window.position
        if end:
            if self._checks:
                self._begin = self._begin if self.position else self.window.position
                handled = self.window.data[max(self.position - self.window.position, 0) : end]
                self._check = zlib.crc32(handled.translate(_UNMARKED), self._check)
            self.position = position
            self.anchor = self.window.data[max(end - _ANCHOR_BYTES, 0) : end]

    def stale(self) -> bool:
        """Return whether the file has changed since the window was read. Then read less next."""
        status = self.source.file.disk.status(self.source.path)
        if status is not None and token_of(status) == self.token:
            return False
        self._size = FIRST_WINDOW
        self.cut = True
        return True

    def _anchored(self, file: File) -> bool:
        anchor = self.anchor
        return file.read(len(anchor), self.position - len(anchor)) == anchor

    def _only_marks(self, file: File) -> bool:
        """Return whether only marks have changed before the position, such as those of another worker."""
        check, position = 0, self._begin
        while self._checks and position < self.position:
            data = file.read(min(WINDOW, self.position - position), position)
            if not data:
                return False
            check = zlib.crc32(data.translate(_UNMARKED), check)
            position += len(data)
        return self._checks and check == self._check

    def find_again(self) -> None:
        """After lines moved, find the position again: the nearest place after the same line, or else the next entry."""
        last = self.anchor[self.anchor.rfind(b"\n", 0, -1) + 1 :]
        alike: list[int] = []
        behind: list[int] = []
        try:
            with self.source.reading() as file:
                for at, raw in scan_chunks(file):
                    position = at + len(raw)
                    if raw.endswith(last):
                        alike.append(position)
                    elif position >= self.position and not behind:
                        behind.append(position)
                end = file.size()
        except FileNotFoundError:
            return
        self.position = min(alike or behind or [end], key=lambda position: abs(position - self.position))
        self.moved, self.token, self.anchor = False, None, b""


def _ready(
    reader: _Reader, window: Window, controls: Collection[int], remember: list[bytes] | None
) -> Iterator[Message]:
    """Yield messages of a window with some control bytes, or only the first ones if the file changes meanwhile.

    At the end the reader is moved. remember: a list that gets the bytes of each message before it is yielded.
    """
    source, epoch, position, clock = reader.source, reader.epoch, window.position, time.monotonic
    fresh_until, small = clock() + _FRESH_S, len(window.data) <= _FEW_BYTES
    for raw in chunks(window.data):
        if raw[0] in controls and not (raw[0] == _COMMENT and is_generation(raw)):
            if remember is not None:
                remember.append(raw)
            yield Message(source, raw, position, epoch)
            if small or clock() > fresh_until:
                if reader.stale():
                    reader.at(position + len(raw))
                    return
                fresh_until = clock() + _FRESH_S
        position += len(raw)
    reader.at(position)


def walk(source: TqFile, statuses: Collection[MessageStatus]) -> Iterator[Message]:
    """Return the messages of some statuses, in order. Each is read when the iterator reaches it."""
    controls = frozenset(CONTROL_OF[status][0] for status in statuses)
    windows = (_ready(reader, window, controls, None) for reader, window in _loaded(source))
    return itertools.chain.from_iterable(windows)


def _loaded(source: TqFile) -> Iterator[tuple[_Reader, Window]]:
    """Yield the windows of a file. The caller moves the reader."""
    reader = _Reader(source)
    while True:
        window = reader.load()
        if window is not None:
            reader.cut = False
            yield reader, window
            if window.at_end and not reader.cut:
                return
        elif reader.moved:
            reader.find_again()
        else:
            return


def pieces(source: TqFile) -> Iterator[tuple[int, bytes, int]]:
    """Yield the whole entries of a file, many at a time: their position, their bytes, and the epoch."""
    for reader, window in _loaded(source):
        reader.at(window.position + len(window.data))
        yield window.position, window.data, reader.epoch


def _taken(source: TqFile, message: Message, owner: bytes | None) -> bool:
    if owner is not None and source.leases.is_over(owner):
        return False
    holder = holder_of(message.raw) if owner is None else claimant(owner)
    if not holder:
        return False
    copied = owner is None and is_here(message.raw) and source.was_copied(message.position, message.raw)
    return (is_alive(holder) and not copied) or source.in_transit(message.raw)


class Cursor:
    """Delivers the queued messages of one file, each once, without those that another process has claimed."""

    def __init__(self, source: TqFile) -> None:
        self._source = source
        self._clean: Token | None = None  # the file when a pass from start to end found nothing
        self.ready: Iterator[Message] = iter(())  # the rest of the current window
        self._reset()

    def next(self) -> Message | None:
        """Return the next queued message, or None if the file has no other now."""
        found = self._step()
        for _ in range(2):
            if found is not None or self._is_clean():
                break
            self._reset()
            found = self._step()
        return found

    def _step(self) -> Message | None:
        """Return the next message of this pass; after its end, the next message that was appended."""
        for message in self.ready:
            return message
        while (window := self._next_window()) is not None:
            self.ready = self._window(window)
            for message in self.ready:
                return message
        return None

    def _reset(self) -> None:
        """Start a new pass, which skips the messages that were delivered and are still queued."""
        self._reader = _Reader(self._source, checks=True)
        self._skips = self._source.delivered.skips()
        self._given_back = self._source.given_back()
        self._skipped = False
        self._taken: list[int] = []
        self._first: tuple[Token | None, int] | None = None
        self._foreign_since = 0.0

    def _is_clean(self) -> bool:
        """Return whether the file has not been changed above the position since this pass began."""
        status = self._source.file.disk.status(self._source.path)
        if status is None:
            return True
        if self._skipped:  # a claim may end, or its owner may die, without a visible change of the file
            return False
        token = token_of(status)
        if token == self._clean:
            return True
        token_first, epoch = self._first or (None, -1)
        if token == token_first:
            return not self._reader.soon
        ours = epoch > 0 and self._source.file.epoch_of(status) == epoch
        none_back = self._source.given_back() == self._given_back
        quiet = ours and none_back and time.time_ns() - status.mtime_ns > _TICK_NS
        if quiet:
            self._clean = token
        return quiet

    def _next_window(self) -> Window | None:
        """Read until a window has a queued message; None at the end of the file."""
        while True:
            self._source.delivered.settle()
            window = self._reader.load()
            if self._first is None:
                self._first = self._reader.token, self._reader.epoch
            if self._reader.moved or self._must_restart():
                self._reset()
            elif window is None:
                break
            elif window.data.startswith(b"-") or b"\n-" in window.data:
                return window
            else:
                self._reader.at(window.position + len(window.data))
        for name in self._taken:
            take(self._skips, name)
        self._taken.clear()
        # The whole file was read: a message that was delivered and not seen again has left the queue.
        self._source.delivered.gone(self._skips.elements())
        self._skips = Counter()
        return None

    def _window(self, window: Window) -> Iterator[Message]:
        """Yield the messages of a window, or only the first ones if the file changes meanwhile."""
        claims = self._source.claims()
        if self._skips or claims or HELD.search(window.data):
            return self._filtered(_ready(self._reader, window, _WANTED, None), claims)
        return _ready(self._reader, window, _WANTED, self._source.delivered.pending)

    def _filtered(self, messages: Iterator[Message], claims: dict[int, bytes]) -> Iterator[Message]:
        """Leave out messages that were delivered before, and messages that another process has claimed."""
        skips, remember = self._skips, self._source.delivered.pending.append
        for message in messages:
            raw = message.raw
            if _taken(self._source, message, claims.get(message.position)):
                self._skipped = True
                if skips:  # perhaps it was delivered, but an equal message comes first
                    self._taken.append(hash_of(raw))
            elif not skips or not take(skips, hash_of(raw)):
                remember(raw)
                yield message

    def _must_restart(self) -> bool:
        if not self._reader.foreign:
            return False
        now = time.monotonic()
        self._foreign_since = self._foreign_since or now
        return now - self._foreign_since > _RESTART_S
