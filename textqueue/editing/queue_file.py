"""One queue file and its edits in place. Each edit is proven before it is written.

An editor writes to the file without taking the queue's lock. So an edit has these steps, under the lock.
:class:`QueueFile` does the first two and the last three, its caller the others:

1. Open the file that is at the path now, and ask the kernel for a file lease. As long as it lasts, a program that opens
   or truncates the file waits. If another program has the file open, the kernel grants none. Then the edit is verified
   by reading it back, and only the few microseconds between proof and write remain unprotected.
2. Compare the file, and the number in it, with the ledger's last line. If they differ, another program has changed the
   file: ``textqueue.editing.reconcile``. If another program has the file open and has changed it a moment ago, it may
   be saving: then nothing is written.
3. Prove that the message has not moved: a line begins at its position, with its bytes. Otherwise search the whole file.
   If the message is not there, raise ``MessageMovedError`` and write nothing.
4. Write one control byte, or a variable in its reserved space. The length of the file does not change. Then write the
   number of the change (``textqueue.format.windows``).
5. If the file has no name any more, an editor has put another file there: begin again with that file. If it has been
   renamed, as to a backup, the edit counts as one from before the save.
6. Append a line with the new state of the file to the ledger. If another program may have written to the file during
   the edit, the line says that the state is not known, and the next session examines the file.

If the ledger has the state of the file, and the message is at its position, steps 1 to 5 are one call into C instead
(:meth:`QueueFile.edit_known`). So a mark takes 21 us of CPU instead of 31. The kernel needs 9 us.
"""

from __future__ import annotations

import bisect
import errno
import threading
import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Self

from sej.errors import ClosedError
from sej.fork import notice_fork, watch_forks
from sej.system.clock import Clock
from sej.system.disk import OS, Disk, File, Status, is_full
from sej.system.locks import end_file_lease, has_file_lease, is_file_leasable, replace_leased, take_file_lease
from sej.system.logs import WARNING, record
from textqueue.editing.proof import BELOW, Change, Making, Place, here
from textqueue.editing.reconcile import Spans, examine, first_state, shifted
from textqueue.errors import Conflict
from textqueue.format.parser import decode, digest, value_of
from textqueue.format.windows import DIGITS, NUMBER, Generation, Token, line_for, scan, strays_in, token_of, unknown
from textqueue.log import Ledger, Line, Record
from textqueue.sidecar import Guard, interrupted, sidecar_path, temporary_file

MOMENT_S: Final = 0.000_3
"""Without a file lease, another program may have written to the file during an edit that took longer than this."""
SAVING_S: Final = 2.0
"""A program that has the file open, and has changed it within this time, may be in the middle of a save."""
_LOOK_S: Final = 0.1
_LOOKS: Final = 8
_HEAD_BYTES: Final = 1 << 16
_MANY: Final = 8
_BLOCK_BYTES: Final = 1 << 12
"""An edit of so many messages writes those of one block together."""


_TURN: Final = 64
"""A repair checks after so many writes whether another process waits for the file."""
_FILE_LEASE_WAIT_S: Final = 0.02
"""How long an edit waits for a program that has the file open."""
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0
"""After a failed wait: how long edits do not wait again. It doubles each time."""
_PAUSE_S: Final = 0.000_2
_BLOCK: Final = 1 << 20
ALL: Final = 0o7777
"""The mode of a new version of a queue file is that of the old one."""
OnRevert = Literal["reapply", "deliver"]


class Options(NamedTuple):
    """The options of a queue, which are those of ``TextQueue``, and the list that gets its conflicts."""

    disk: Disk
    clock: Clock
    settle_s: float
    on_revert: OnRevert
    conflicts: list[Conflict]


class QueueFile:
    """A ``.tq`` file whose edits are proven. In a ``with`` block, which is a session, this process has its lock.

    The file is open for editing in a session. ``start`` is called when the messages of an edit were found, ``log`` when
    they were written.
    """

    file: File
    status: Status

    def __init__(self, path: str, options: Options) -> None:
        self.path, self.disk = path, options.disk
        self._conflicts, self._deliver = options.conflicts, options.on_revert == "deliver"
        self._is_os = self.disk is OS and replace_leased is not None
        self.guard = Guard(path, disk=self.disk, queue=path)
        self.ledger = Ledger(self.guard.log, disk=self.disk, queue=path)
        self.thread = 0  # the one that has the session; 0: none
        self.alone = False  # whether this process has the file lease, so that no other process can open the file
        self.known = False  # whether the ledger has the correct positions for the file
        self.busy = False  # whether another program may be in the middle of a save, so that nothing may be written
        self.closed = False
        self._open = self._leased = self._still = False
        self._began = self._looked = 0.0
        self._backoff_until, self._backoff_s = 0.0, _BACKOFF_FIRST_S
        watch_forks(self)

    def __enter__(self) -> Self:
        """Take the lock, and the file lease if the kernel grants it; bring the ledger in line with the file."""
        thread = threading.get_ident()
        if self.closed or self.thread == thread:
            self.check_open()
        self.guard.__enter__()
        try:
            self.thread = thread
            self.refresh()
            while True:
                self.file = self.disk.open(self.guard.real_path, "edit")
                self._open = True
                if self._begin(self.file):
                    return self
                self._close_file()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError) and error.errno == errno.ELOOP and self.guard.look():
                self.guard.close()  # the path has become a link: another lock is in use
                return self.__enter__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._open:
                end_file_lease(self.file)  # first: a child that another thread forks while it closes would keep it
                self._close_file()
        finally:
            self.thread = 0
            self.guard.__exit__()

    def _close_file(self) -> None:
        if self._open:
            self.file.close()
            self._open = False  # last: a second call finishes an interrupted one

    def edit_known(self, place: Place, making: Making, claim: bytes) -> Place | None:
        """Change a message in one call into C, without a session; None: that call does not know enough for it.

        It is enough for nearly every edit: the ledger has the state of the file, the message is at its position, and no
        other program has the file open.
        """
        position, raw, epoch = place
        if not self._is_os or not raw.endswith(b"\n"):
            return None
        thread = threading.get_ident()
        if self.closed or self.thread == thread:
            self.check_open()
        with self.guard:
            self.thread = thread
            try:
                self.refresh()
                ledger = self.ledger
                if not ledger.epoch or (claim and not ledger.has_claim(position, claim, epoch)):
                    return None
                if ledger.pending_line >= 0 or ledger.is_wasteful() or (change := making(place, raw)) is None:
                    return None
                new, at, was = change.applied(raw), ledger.line_at, ledger.number
                number = was + bool(change.writes)
                parts = [(position - 1, b"\n" + raw, b"\n" + new) if position else (0, raw, new)]
                if at >= 0:
                    parts.append((at, NUMBER % was, NUMBER % number))
                token = replace_leased(self.guard.real_path, ledger.token, parts, BELOW)
                if token is not None:
                    ledger.append([(change.kind, position, digest(new), change.detail)], token, number)
                    return Place(position, new, ledger.epoch)
            finally:
                self.thread = 0
        return None

    def still(self) -> bool:
        """Return whether the file has not changed since the lock was taken. Call it before anything is written."""
        return (self.alone and has_file_lease(self.file)) or (
            self.known and token_of(self.file.status()) == token_of(self.status)
        )

    def start(self) -> None:
        """Begin to write an edit. Without the file lease, each message is proven again before."""
        self._leased = self._still = self.alone
        if not self.alone or not has_file_lease(self.file):
            self.alone = False  # another process waits, or has opened the file while this one was stopped
            self._began, self._still = time.monotonic(), self.still()

    def apply(self, places: Sequence[Place], changes: Sequence[Change | None]) -> list[Place] | None:
        """Write the changes of messages, and return the messages; None: not all changes are in the file."""
        self.start()
        lines: list[Line] = []
        writes: list[tuple[int, bytes]] = []
        done: list[bytes] = []
        whole = True
        for (position, raw, _), change in zip(places, changes, strict=True):
            new, before = raw, len(writes)
            if change is not None:
                new = change.applied(raw)
                for at, data in change.writes:
                    writes.append((position + at, data))
                if not self.alone and not self._write_shared(position, raw, new, writes[before:]):
                    whole = False
                    break
                lines.append((change.kind, position, digest(new), change.detail))
            done.append(new)
        if self.alone and len(writes) >= _MANY:
            self.alone = self._leased = whole = self._write_blocks(writes)
        elif self.alone:
            for at, data in writes:
                self.file.write_at(data, at)
        if (lines and not self.log(lines, wrote=bool(writes), whole=whole)) or not whole:
            return None
        epoch = self.ledger.epoch
        pairs = zip(places, changes, done, strict=True)
        return [one if change is None else Place(one[0], raw, epoch) for one, change, raw in pairs]

    def _write_shared(self, position: int, raw: bytes, new: bytes, writes: Sequence[tuple[int, bytes]]) -> bool:
        """Write into a message that another program may change: it is proven again before, and read back afterwards."""
        if here(self.file, Place(position, raw, -1), epoch=0) != raw:
            return False
        for at, data in writes:
            self.file.write_at(data, at)
        if self.file.read(len(new), position) != new:
            self.report(position, new, "collision", "the file was rewritten while this message was edited")
        return True

    def _write_blocks(self, writes: list[tuple[int, bytes]]) -> bool:
        """Write, near places together; return False if another process has taken the lease away."""
        writes.sort()
        begin = 0
        while begin < len(writes):
            start = writes[begin][0]
            end = bisect.bisect_left(writes, (start + _BLOCK_BYTES,))
            last, tail = writes[end - 1]
            block = bytearray(self.file.read(last + len(tail) - start, start))
            for at, data in writes[begin:end]:
                block[at - start : at - start + len(data)] = data
            if not has_file_lease(self.file):
                return False
            self.file.write_at(block, start)
            begin = end
        return True

    def log(self, lines: Sequence[Line], *, wrote: bool = True, whole: bool = True) -> bool:
        """Write the number of an edit, if it changed the file, and its lines in the ledger. All are logged here.

        A foreign change at this moment must not be taken for a part of the edit. If there was time for one, or if not
        the whole edit was written, the ledger gets no state of the file, so that the next session reconciles. If a file
        lease that another process waits for can still be released, it was valid until now.

        Returns whether the whole edit is in a file that has a name. If not, the caller tries again.
        """
        file, before, ledger = self.file, self.status, self.ledger
        at, number = ledger.line_at, ledger.number
        still = self._still and (self.alone or at < 0 or self._has_number(file))
        if wrote:
            number += 1
            if at >= 0 and self.known and still:
                file.write_at(NUMBER % number, at)
        now = file.status()
        if whole and not now.links:  # an editor has put another file there
            return False
        ours = self.known and whole
        if ours and not self.alone and not (self._leased and end_file_lease(file)):
            ours = still and time.monotonic() - self._began < MOMENT_S
        token = (before.inode, now.size, now.mtime_ns)
        ledger.append(lines, token if ours else unknown(token_of(before)), number)
        return whole

    def _begin(self, file: File) -> bool:
        """Take the file lease, but reconcile without it: no editor waits. False: the file was replaced."""
        ledger = self.ledger
        if ledger.is_wasteful():
            self._compact()
        looks = 0
        begun: Token | None = None  # the state that a new ledger began with
        while True:
            self.alone = alone = take_file_lease(file) or self.wait_for_lease(file)
            self.status = status = file.status()
            token = status.inode, status.size, status.mtime_ns
            new = not ledger.epoch
            same = token == (begun if new else ledger.token)
            self.known = same and (new or ledger.line_at < 0 or self._has_number(file))
            self.busy = False
            if self.known:
                return not (alone and ledger.pending_line >= 0 and self.add_line())
            self.busy = not alone and abs(time.time_ns() - status.mtime_ns) < SAVING_S * 1e9
            if self.busy or looks == _LOOKS:  # another program changes the file all the time
                return True
            looks += 1
            end_file_lease(file)
            if new:
                ledger.start(*first_state(file, token))
                begun = token
            elif self._reconcile(file, alone=alone):
                return False

    def _reconcile(self, file: File, *, alone: bool) -> bool:
        """Bring the ledger in line with a file that another program changed, and the file with the ledger.

        If another program writes to the file at this moment, or waits for it, the rest is left to the next call.
        Returns whether the file was replaced, so that it must be opened again.
        """
        before = token_of(file.status())
        repair = examine(self.ledger, file, before[1], self.path, alone=alone, deliver=self._deliver)
        if (repair.writes or repair.gone or repair.conflicts) and not take_file_lease(file):
            self.wait_for_lease(file)
        if token_of(file.status()) != before:  # another program wrote meanwhile
            end_file_lease(file)
            return False
        alone = has_file_lease(file)
        for count, (position, data) in enumerate(repair.writes):
            if alone and not count % _TURN and not has_file_lease(file):
                end_file_lease(file)
                return False
            file.write_at(data, position)
        token = token_of(file.status())
        if repair.gone:
            after = self.replace(file, token, repair.gone)
            if after is None:
                return False
            token = after
        elif not (end_file_lease(file) or token == before):
            token = unknown(token)  # the other program may have gone on saving meanwhile: the next call looks again
        self.note(sorted(repair.conflicts, key=lambda conflict: conflict.position))
        if repair.sorted_to >= 0 or repair.generation.position >= 0:
            self.ledger.pending_line = repair.sorted_to
        elif alone and self.ledger.pending_line >= 0:
            self.ledger.pending_line = repair.generation.number  # a buffer that is read from now on has seen this
        self.ledger.begin(repair.claims, token, repair.generation, lines=repair.removed)
        return bool(repair.gone)

    def add_line(self) -> bool:
        """Add the line with the number at the top, if this is possible; return whether the file was replaced.

        It is if the file has no other name, which would keep the old content, and no other program has it open. Such a
        program may save it later: the next session adds the line, or finds out that the save is older than the claim.
        """
        ledger, before = self.ledger, token_of(self.status)
        if ledger.line_at >= 0 or self.status.links > 1:
            return False
        if not self.alone:
            if not ledger.lined and ledger.pending_line < 0:
                ledger.pending_line = ledger.number
                ledger.state(before)
            return False
        if token_of(self.file.status()) != before:
            return False
        number = ledger.number
        end_file_lease(self.file)
        mark, line, at = line_for(self.file.read(_HEAD_BYTES, 0), number)
        windows = scan(self.file) if ledger.lined else ()
        strays = [(start, size) for one in windows for start, size, _ in strays_in(one.data, one.position)]
        after = self.replace(self.file, before, strays, (len(mark), mark + line))
        if after is not None:
            grown = after[1] - before[1]
            claims = self.moved_claims(strays, len(line))
            _, size, changed_ns = ledger.foreign if ledger.epoch else before
            foreign = after[0], size + grown, changed_ns
            ledger.begin(claims, after, Generation(at, number), foreign=foreign)
        return after is not None

    def _compact(self) -> None:
        """Shorten the ledger. A full disk does not fail the edit that follows."""
        try:
            self.ledger.compact()
        except OSError as error:
            if not is_full(error):
                raise

    def epoch_of(self, status: Status) -> int:
        """Return the epoch for a file in this state; -1 if another program may have changed it."""
        notice_fork()
        with self.guard.threads:
            self.refresh()
            return self.ledger.epoch if self.ledger.token == token_of(status) and self.ledger.epoch else -1

    def check_open(self) -> None:
        """Check that the queue is open, and that this is not a signal handler in a session: it would wait."""
        if self.closed:
            raise ClosedError("this queue was closed; reopen it", path=self.path)
        if self.thread == threading.get_ident():
            raise interrupted(self.path)

    def close(self) -> None:
        """Close the files. The object cannot be reopened."""
        with self.guard.threads:
            self.closed = True
            self._close_file()
            self.guard.close()
            self.ledger.close()

    def report(self, position: int, raw: bytes, kind: str, action: str) -> None:
        """Add a conflict."""
        self.note([Conflict(self.path, position, decode(value_of(raw)), kind, action)])

    def note(self, conflicts: list[Conflict]) -> None:
        """Add conflicts, and log them."""
        self._conflicts.extend(conflicts)
        for conflict in conflicts:
            record(__name__, WARNING, "%s: position %d: %s: %s", *conflict[:2], *conflict[3:])

    def wait_for_lease(self, file: File) -> bool:
        """Wait for a moment for a file lease that was not granted, unless that failed a moment ago."""
        now = time.monotonic()
        if now < self._backoff_until or not is_file_leasable(file):
            return False
        while time.monotonic() - now < _FILE_LEASE_WAIT_S:
            time.sleep(_PAUSE_S)
            if take_file_lease(file):
                self._backoff_s = _BACKOFF_FIRST_S
                return True
        now = time.monotonic()
        again = now - self._backoff_until < _BACKOFF_MAX_S
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S) if again else _BACKOFF_FIRST_S
        self._backoff_until = now + self._backoff_s
        return False

    # Replacing the file

    def swap(self, file: File, temporary: str, before: Token, *, strict: bool = False) -> bool:
        """Rename a synced file to the queue's name, under a file lease, if no other program has changed the queue file.

        strict: it is refused as well while another program has the file open, and may save it.
        """
        alone = take_file_lease(file) or self.wait_for_lease(file) or has_file_lease(file)
        there = self.disk.status(self.path)
        if there is None or token_of(there) != before or (strict and not alone and is_file_leasable(file)):
            return False
        self.disk.rename(temporary, self.guard.real_path)
        return True

    def write_rest(
        self,
        file: File,
        temporary: str,
        before: Token,
        spans: Spans,
        head: tuple[int, bytes],
        *patch: tuple[int, bytes],
    ) -> Token:
        """Write a copy of the file without some spans, with another head and other bytes; return its state."""
        with temporary_file(self.disk, temporary, file.path, ALL) as new:
            new.write(head[1])
            start = head[0]
            for stop, size in (*spans, (before[1], 0)):
                while start < stop and (data := file.read(min(_BLOCK, stop - start), start)):
                    new.write(data)
                    start += len(data)
                start = stop + size
            for position, data in patch:
                new.write_at(data, position)
            return token_of(new.status())

    def replace(self, file: File, before: Token, spans: Spans, head: tuple[int, bytes] = (0, b"")) -> Token | None:
        """Replace the file by a copy, as :meth:`write_rest` makes it; return its state, or None if it was changed.

        With another head, no other program may have the file open.
        """
        temporary = sidecar_path(self.guard.real_path, ".save")
        after = self.write_rest(file, temporary, before, spans, head)
        return after if self.swap(file, temporary, before, strict=bool(head[1])) else None

    def moved_claims(self, spans: Spans, grown: int = 0) -> list[Record]:
        """Return the claims that remain, at their positions after some spans were removed, and bytes added above."""
        gone = {start for start, _ in spans}
        claims = [one for one in self.ledger.claims.values() if one.position not in gone]
        return [
            one._replace(position=shifted(one.position, spans) + grown) if one.position >= 0 else one for one in claims
        ]

    # Changes by other processes

    def _after_fork(self) -> None:
        """In a forked child, read the ledger again: the parent may have been about to change what was read.

        A copy of the file in a session of another thread would keep the file lease, for which editors wait.
        """
        self._close_file()
        if self.thread != threading.get_ident():
            self.thread = 0
        self.ledger.close()

    def refresh(self) -> None:
        """Apply what other processes wrote into the ledger. The caller holds the lock."""
        now = time.monotonic()
        look = now - self._looked > _LOOK_S
        if look:
            self._looked = now
            if not self.guard.is_open:  # otherwise the names cannot change
                self.guard.look()
        if self.guard.log != self.ledger.path:
            self.ledger.close()
            self.ledger.path = self.guard.log
        self.ledger.refresh(look=look)

    def _has_number(self, file: File) -> bool:
        """Return whether the file has its last number: an old buffer may be saved within one tick of the clock."""
        return file.read(DIGITS, self.ledger.line_at) == NUMBER % self.ledger.number
