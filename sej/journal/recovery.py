"""The end of a segment: sound, a torn tail, or corruption.

The rules (docs/guarantees) apply at the byte where the next message is expected. A well-formed message with the
expected offset is good; a well-formed one with another offset is corruption; anything else is damage. Damage is a torn
tail unless a possible message follows: well formed, with a higher offset that is reachable (at most one message for
each 26 bytes skipped). If the header is sound and its length exceeds the end of the file, the ordinary torn write, only
a chain counts: at least two such messages, consecutive and reaching the end of the file, because a value may hold whole
messages.

Reads with bounded memory; changes nothing. :func:`keep` copies bytes to ``kept/`` before a writer cuts them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from sej.codec import Candidate, find_candidate, measure, message_size
from sej.codec.format import HEAD_SIZE, INT32, INT32_SIZE, MAX_KEY_SIZE, MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError
from sej.journal.directory import Directory
from sej.system.disk import File

ANY_REACH: Final = 1 << 50
"""Starting there, any offset is reachable."""
_WINDOW_BYTES: Final = 1 << 22
_FIRST_WINDOW_BYTES: Final = 1 << 16
_HEADS_BYTES: Final = HEAD_SIZE + MAX_KEY_SIZE + INT32_SIZE
_TAIL_BYTES: Final = 1 << 10
"""One read of this many bytes usually has the whole last message."""


class Recovery(NamedTuple):
    """What a writer cut when it opened: a torn tail.

    Attributes:
        path: the segment.
        position: the position of the cut, in bytes.
        offset: the offset that was expected there. The next message gets it.
        size: how many bytes were cut.
        kept: the file that holds them.
        reason: what was wrong with them.
    """

    path: str
    position: int
    offset: int
    size: int
    kept: str
    reason: str


class Damage(NamedTuple):
    """Bytes after the good messages that are not a message.

    Attributes:
        position: where they start.
        offset: the offset that is expected there.
        size: bytes up to the end of the file.
        reason: what was found.
        follower: a good message after them: then this is corruption.
        indexed: the offset after the last message in the index, if that is after them: then this is corruption too.
    """

    position: int
    offset: int
    size: int
    reason: str
    follower: Candidate | None
    indexed: int | None = None

    @property
    def torn(self) -> bool:
        """Whether they are a torn tail, if this is the last segment."""
        return self.follower is None and self.indexed is None

    @property
    def resume(self) -> tuple[int, int] | None:
        """The position and expected offset from which on messages may be good again; None: unknown.

        An older message that is there again, or one with an offset that no message has, is a part of the damage.
        """
        if self.follower is None:
            return None
        if self.offset <= self.follower.offset < MAX_OFFSET:
            return self.follower.position, self.follower.offset
        return self.follower.end, self.offset

    @property
    def found(self) -> str:
        """What was found, and what shows that it is corruption."""
        if self.follower is not None:
            return f"{self.reason}; message {self.follower.offset} follows at position {self.follower.position}"
        if self.indexed is not None:
            return f"{self.reason}; the index has messages {self.offset} to {self.indexed - 1} from there on"
        return self.reason

    def error(self, path: str) -> CorruptionError:
        """Return the damage as an error, if it is not a torn tail."""
        journal = os.path.dirname(os.path.dirname(path))
        return CorruptionError(
            f"{self.found}; nothing was cut, see `sej verify {journal}` and `sej repair {journal}`",
            path=path,
            position=self.position,
            offset=self.offset,
        )


def good_end(file: File, position: int, due: int) -> tuple[int, int]:
    """Return where the good messages from position on end: (position, expected offset there)."""
    size = file.size()
    window = _FIRST_WINDOW_BYTES
    while position < size:
        data = file.read(min(window, size - position), position)
        try:
            run = measure(data, 0, len(data), due, len(data))
        except DecodeError:
            break
        if run.messages == 0:
            try:
                claimed = message_size(data, 0, len(data))
            except DecodeError:
                break
            if claimed is None or claimed > size - position or claimed <= window:
                break
            window = claimed  # one message is larger than the window
            continue
        position += run.position
        due += run.messages
        window = min(4 * window, _WINDOW_BYTES)
    return position, due


class _Look(NamedTuple):
    """What is wrong at a position.

    The reason, another message there if there is one, and whether only a chain counts after it.
    """

    reason: str
    instead: Candidate | None = None
    chained: bool = False


def _look(file: File, position: int, due: int, size: int) -> _Look | None:
    if position >= size:
        return None
    head = file.read(min(_HEADS_BYTES, size - position), position)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError as error:
        return _Look(error.reason)
    if claimed is None:
        return _Look(f"{size - position} bytes are too few for a message")
    (offset,) = OFFSET.unpack_from(head)
    if claimed > size - position:
        reason = f"a message of {claimed} bytes begins here, but the file holds {size - position} of them"
        return _Look(reason, chained=offset == due)
    trailer = size_before(file, position + claimed)
    if trailer != claimed:
        return _Look(f"the size field at the message's end must be {claimed}, got {trailer}")
    if offset == due < MAX_OFFSET:
        return None
    if offset >= MAX_OFFSET:
        reason = f"offset {offset} exceeds the largest offset, {MAX_OFFSET - 1}"
    else:
        reason = f"the message must have offset {due}, got {offset}"
    return _Look(reason, Candidate(position, position + claimed, offset))


def frame_end(file: File, position: int) -> int | None:
    """Return where the message that starts at position ends, whatever offset it has; None: it is not whole."""
    size = file.size()
    head = file.read(min(_HEADS_BYTES, max(size - position, 0)), position)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError:
        return None
    if claimed is None or claimed > size - position or size_before(file, position + claimed) != claimed:
        return None
    return position + claimed


def what_is_wrong(file: File, position: int, due: int) -> str | None:
    """Return why no message with the expected offset starts at position; None: one does, or the file ends there."""
    found = _look(file, position, due, file.size())
    return None if found is None else found.reason


def find_damage(file: File, position: int, due: int) -> Damage | None:
    """Decide about the bytes at position, where the caller found no good message with the expected offset.

    None: nothing is wrong. The file ends there, or a writer has completed the message in the meantime.
    """
    size = file.size()
    found = _look(file, position, due, size)
    if found is None:
        return None
    if found.instead is not None:
        # If the message after it has the next expected offset, only this one's offset is damaged.
        after, behind = found.instead.end, found.instead
        if (end := frame_end(file, after)) is not None and _look(file, after, due + 1, size) is None:
            behind = Candidate(after, end, due + 1)
        return Damage(position, due, size - position, found.reason, behind)
    if found.chained:
        chains = _chains(file, position, due, size, position)
        follower = next((start for start, reaches_end in chains if reaches_end), None)
    else:
        follower = next_candidate(file, position + 1, size, due, position)
    if follower is not None and _look(file, position, due, file.size()) is None:
        return None  # a writer has cut a torn tail and appended in the meantime: the follower follows its message
    return Damage(position, due, size - position, found.reason, follower)


def corruption_at(file: File, position: int, due: int) -> CorruptionError | None:
    """Return the error for the end of the last segment's good messages; None: the end of the file, or a torn tail.

    A whole message with another offset is not a torn tail either, even if nothing follows it. A message that a writer
    completes in the meantime is not damaged.
    """
    damage = find_damage(file, position, due)
    if damage is None:
        return None
    if damage.follower is None and (
        frame_end(file, position) is None or _look(file, position, due, file.size()) is None
    ):
        return None
    return damage.error(file.path)


def is_torn(file: File, position: int, due: int) -> bool:
    """Return whether the expected message begins at position and the file lacks its end.

    Then message-like bytes after it are its value.

    False if its length may be damaged: a chain that reaches the end of the file follows it, with any later offsets, or
    a message directly after a size field that confirms a message from position to there.
    """
    size = file.size()
    found = _look(file, position, due, size)
    if found is None or not found.chained:
        return False
    for start, reaches_end in _chains(file, position, due, size, position - ANY_REACH):
        passed = start.position - position
        if reaches_end or (passed >= OVERHEAD_SIZE and size_before(file, start.position) == passed):
            return False
    return True


def next_candidate(file: File, start: int, size: int, due: int, damage: int) -> Candidate | None:
    """Return the first message from start on that could follow the damage."""
    window = _FIRST_WINDOW_BYTES
    while start <= size - OVERHEAD_SIZE:
        data = file.read(min(window, size - start), start)
        window = min(4 * window, _WINDOW_BYTES)
        last = start + len(data) >= size
        found = find_candidate(data, 0, len(data), due, damage - start, size - start)
        if found is None:
            if last:
                return None
            start += len(data) - _HEADS_BYTES
            continue
        whole = Candidate(start + found.position, start + found.end, found.offset)
        if found.end <= len(data) or size_before(file, whole.end) == whole.end - whole.position:
            return whole
        start = whole.position + 1
    return None


def _chains(file: File, position: int, due: int, size: int, damage: int) -> Iterator[tuple[Candidate, bool]]:
    """Yield where consecutive messages start after position, and whether a chain of them reaches the end."""
    start = position + 1
    while (found := next_candidate(file, start, size, due, damage)) is not None:
        start, stop = good_end(file, found.position, found.offset)
        yield found, start == size and stop - found.offset >= 2


def size_before(file: File, position: int) -> int:
    """Return the size field before position: if a message ends there, its own size."""
    size: int = INT32.unpack(file.read(INT32_SIZE, position - INT32_SIZE))[0]
    return size


def last_message_start(file: File, end: int) -> int | None:
    """Return where the message that ends at ``end`` starts; None if there is no sound one: see :func:`last_message`."""
    found = last_message(file, end)
    return None if found is None else found[0]


def last_message(file: File, end: int) -> tuple[int, bytes] | None:
    """Return where the message that ends at ``end`` starts, and its first bytes; None if there is no sound message.

    For reading backwards, the purpose of the trailing size. The header that it leads to is checked.

    Returns:
        The position, and at least the first 18 bytes: offset, timestamp, type and the size of the key.
    """
    tail = file.read(min(_TAIL_BYTES, end), max(end - _TAIL_BYTES, 0))
    if end < OVERHEAD_SIZE or len(tail) < min(_TAIL_BYTES, end):
        return None
    size: int = INT32.unpack(tail[-INT32_SIZE:])[0]
    if not OVERHEAD_SIZE <= size <= end:
        return None
    head = tail[-size:] if size <= len(tail) else file.read(min(_HEADS_BYTES, size), end - size)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError:
        return None
    return (end - size, head) if claimed == size else None


def keep(directory: Directory, file: File, position: int, size: int, name: str) -> str:
    """Copy bytes of a file into ``kept/`` and sync them; return the path of the copy."""
    directory.disk.mkdir(directory.at("kept"))
    number = 0
    while directory.disk.status(path := directory.at("kept", name + (f".{number}" if number else ""))) is not None:
        number += 1
    with directory.disk.open(path, "new") as copy:
        end = position + size
        while position < end:
            data = file.read(min(_WINDOW_BYTES, end - position), position)
            if not data:
                break
            copy.write(data)
            position += len(data)
        copy.sync()
    return os.fspath(path)
