"""One edit of one message, in a session of its own: the reference for ``_single_c``.

Workers that share a file need its lock for each claim and for the end of each claim. So the locked part is one call,
which does nothing but read, prove, write and log. Its caller has found the message before, and prepared its new bytes
and its ledger line. Meanwhile other workers may have written to the ledger: the call reads these lines itself.

Under the lock, the call has the steps of ``textqueue.editing.queue_file``:

1. Read the lines of the ledger that the caller does not know. Only claims, marks and other edits of single messages
   are understood. They tell the state of the file, and which messages were changed.
2. Open the file with a lease. It must be in that state, and the last edit must be in it.
3. Choose the first message that was not changed, and prove that it has not moved.
4. Write its bytes, compare the path again, and append the ledger line. If that fails, as on a full disk, write the old
   bytes again.

In every other case nothing is written, and the caller makes its edit in an ordinary session.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.locks import lease, leased
from textqueue.format.grammar import CHUNK, STATUS_OF
from textqueue.format.kinds import APPENDED, CLAIMS, GIVEN_BACK, IN_MUTEX, MARKS, SET, UNSEEN
from textqueue.format.lease import claimant
from textqueue.format.mutex import holder_of
from textqueue.format.parser import digest, essence
from textqueue.format.windows import Token, token_of
from textqueue.hot.reference import BLANKS, DIGITS, DONE, NOT_DONE, ends

BUSY: Final = 3
"""The result if another process has the lock."""
NEAR_BYTES: Final = 4096
"""A message must be smaller than this."""
LINES_BYTES: Final = 4096
MOST_LINES: Final = 32
"""The most that is read of the ledger under the lock."""

TAKEN: Final = 1
CHANGED: Final = 2
BACK: Final = 3
"""What the lines of other processes mean for a message: claimed or marked; changed otherwise; back in the queue."""
MEANINGS: Final = {bytes([kind]): TAKEN for kind in CLAIMS | MARKS} | {
    bytes([APPENDED]): CHANGED,
    bytes([SET]): CHANGED,
    bytes([GIVEN_BACK]): BACK,
}
_MARKS: Final = frozenset(bytes([kind]) for kind in MARKS)

Choice = tuple[int, bytes, bytes, bytes, bytes]
"""A message that may be edited: position, bytes, new bytes, start of the ledger line to the digest, and owner."""


class Last(NamedTuple):
    """The last edit in the ledger. The last field: the bytes of its message, if the caller has written them."""

    kind: int
    position: int
    digest: bytes
    owner: bytes
    raw: bytes = b""


class Single:
    """Edits in one queue file. The caller has the lock between the threads of this process.

    Attributes:
        token: after ``DONE``: the state of the file before the edit, and after it.
        chosen: the number of the message in the choices.
        line_bytes: the size of the ledger line; 0: lines of others are before it.
    """

    def __init__(self, disk: Disk, lock: File, log: File, path: str, real_path: str) -> None:
        """Take the open lock file and ledger, the path of the file, and its path without a symbolic link."""
        self._disk = disk
        self._lock = lock
        self._log = log
        self._path = path
        self._real_path = real_path
        self.token: tuple[Token, Token] = (0, 0, 0), (0, 0, 0)
        self.chosen = self.line_bytes = 0

    def edit(self, seen: int, token: Token, last: Last, choices: Sequence[Choice], *, ordered: bool) -> int:
        """Edit the first of some messages that no other process has changed.

        Args:
            seen: the position in the ledger up to which the caller knows it.
            token: the state of the file there.
            last: the last edit there.
            choices: the messages, in the order of the file.
            ordered: whether the edit is refused if a message before the chosen one was put back into the queue.

        Returns:
            ``DONE``; ``BUSY`` or ``NOT_DONE``: nothing was written, or only into a file that was replaced.

        Raises:
            OSError: a read or write failed. The message is as it was, if it can be written again.
        """
        file: File | None = None
        try:
            if not self._lock.lock():
                return BUSY
            size = self._log.size()
            lines = self._log.read(size - seen, seen) if 0 < size - seen <= LINES_BYTES else b""
            found = known(lines, token, last) if lines else (token, last, {})
            if found is None or len(lines) != size - seen:
                return NOT_DONE
            token, last, changed = found
            file = self._opened()
            if file is None or token_of(file.status()) != token or not _is_in(file, last):
                return NOT_DONE
            number = _first(file, choices, changed, ordered=ordered)
            if number < 0 or not leased(file):
                return NOT_DONE
            return self._write(file, choices[number], number, token, fresh=not lines)
        finally:
            try:
                if file is not None:
                    file.close()
            finally:
                self._lock.unlock()

    def _opened(self) -> File | None:
        """Open the file with a lease; None: another process has it open, or it is gone."""
        try:
            file = self._disk.open(self._real_path, "edit")
        except FileNotFoundError:
            return None
        if lease(file):
            return file
        file.close()
        return None

    def _write(self, file: File, choice: Choice, number: int, token: Token, *, fresh: bool) -> int:
        position, raw, new, head, owner = choice
        differ = [at for at, (one, other) in enumerate(zip(raw, new, strict=True)) if one != other]
        start, end = (differ[0], differ[-1] + 1) if differ else (0, 0)
        if differ:
            file.write_at(new[start:end], position + start)
        there = self._disk.status(self._path)
        if there is None or there.identity != file.status().identity:
            return NOT_DONE
        now = token_of(there)
        text = b"%s %d %d %d %s" % (head, *now, owner)
        line = b"%s %08x\n" % (text, zlib.crc32(text))
        try:
            self._log.write(line)
        except OSError:
            with suppress(OSError):  # without its line, a claim would last as long as this process
                file.write_at(raw[start:end], position + start)
            raise
        self.token = token, now
        self.chosen = number
        self.line_bytes = len(line) if fresh else 0
        return DONE


def known(lines: bytes, token: Token, last: Last) -> tuple[Token, Last, dict[int, int]] | None:
    """Return the state and the edit of the last line, and what the lines mean for the message at each position.

    Returns:
        None if a line is torn, damaged, or not about one message. The meanings are ``TAKEN``, ``CHANGED`` and ``BACK``.
    """
    changed: dict[int, int] = {}
    *texts, rest = lines.split(b"\n")
    if rest or len(texts) > MOST_LINES:
        return None
    for line in texts:
        text, _, crc = line.rpartition(b" ")
        if b"%08x" % zlib.crc32(text) != crc or text.count(b" ") != BLANKS or text[:1] not in MEANINGS:
            return None
        kind, digits, name, inode, size, mtime_ns, owner = text.split(b" ")
        if not digits.isdigit() or len(digits) > DIGITS:
            return None
        position = int(digits)
        changed[position] = max(MEANINGS[kind], changed.get(position, 0))
        token = abs(int(inode)), int(size), int(mtime_ns)  # as textqueue.format.windows.state_of
        if kind[0] not in UNSEEN or position == last.position:  # as textqueue.ledger.log.Ledger.last
            last = Last(kind[0], position, name, owner)
    return token, last, changed


def holds(data: bytes, last: Last) -> bool:
    """As ``textqueue.editing.queue_file``: return whether an edit is still in the file.

    Args:
        data: the bytes of the file at its position.
        last: the edit.
    """
    match = CHUNK.match(data)
    if match is None or data[0] not in STATUS_OF or match.end() == NEAR_BYTES:
        return False
    raw = match.group()
    if digest(essence(raw)) != last.digest:
        return False
    if last.kind in MARKS:
        return raw[0] in MARKS
    if last.kind == GIVEN_BACK:
        return raw[0] == GIVEN_BACK
    return last.kind != IN_MUTEX or claimant(last.owner) == holder_of(raw)


def _is_in(file: File, last: Last) -> bool:
    data = file.read(NEAR_BYTES, last.position)
    return bool(last.raw and data.startswith(last.raw)) or holds(data, last)


def _first(file: File, choices: Sequence[Choice], changed: dict[int, int], *, ordered: bool) -> int:
    """Return the number of the first message that was not changed, and has not moved; -1: none, or it is not clear."""
    back = min((at for at, meaning in changed.items() if meaning == BACK), default=-1) if ordered else -1
    for number, (position, raw, _, _, _) in enumerate(choices):
        if 0 <= back <= position or changed.get(position, TAKEN) != TAKEN or len(raw) + 2 > NEAR_BYTES:
            return -1
        if position in changed:
            continue
        before = min(position, 1)
        data = file.read(before + len(raw) + 1, position - before)
        now = data[before : before + len(raw)]
        if (before and data[:1] != b"\n") or now[1:] != raw[1:] or not ends(raw, data[before + len(raw) :]):
            return -1
        if now == raw:
            return number
        if now[:1] not in _MARKS:
            return -1
    return -1
