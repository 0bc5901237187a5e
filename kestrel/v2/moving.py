"""Move a Kestrel 2 queue into a SEJ journal, and back. ``transfer`` describes the mapping of the fields and the plan.

An export only reads the queue's directory. An import becomes part of the journal whole, by one rename. Both are
verified: what was written is counted and its checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Literal

from kestrel.files import Place, wall_clock_ms
from kestrel.reading import Pinned
from kestrel.tail import end
from kestrel.transfer import Expired, Fields, Import, Moved, WriterLike, export_to
from kestrel.v2.backlog import Backlog
from kestrel.v2.contents import MEMORY_BYTES, Contents, Sizes, require
from kestrel.v2.format import addx
from kestrel.v2.journal import DIALECT, Dialect, reading
from kestrel.v2.replay import load
from kestrel.v2.storage import pinned_pieces, refuse_others
from sej.checks import one_of
from sej.message import Message
from sej.system.disk import OS, Disk, File


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    open_transactions: Literal["first", "leave"] = "first",
    expired: Expired = "mark",
    read_back: Callable[[int], Iterable[Message]] | None = None,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Append what a queue holds to a SEJ journal. The queue is not changed: its directory is only read.

    An original may run on the same files. If it changes the queue meanwhile, the export fails.
    If it is called again after it has finished, and the queue is the same, it appends nothing and returns the same: the
    file ``<name>.exported`` in the SEJ journal is its plan and its record.

    Args:
        directory: where the queue's files are.
        name: the queue.
        writer: a ``sej.Writer``.
        open_transactions: ``"first"``: reserved items come first, the lowest xid at the head, as opening the queue
            would have them; ``"leave"``: they are left out.
        expired: ``"mark"``: an item that has expired gets the key ``expired=<ms>`` instead of ``expiry=<ms>``;
            ``"leave"``: it is left out.
        read_back: called with an offset, gives the messages from there on, as a ``sej.Scanner`` does: what was
            written is read again and compared. Without it, the export does not notice that another program appended to
            the journal between a call that was cut short and this one: such messages are taken for items.
        dialect: what opcode 8 means.
        disk: the seam of the queue's files.
        now_ms: the clock, for items that have no add time, and for what has expired.

    Returns:
        What was moved, in all calls together.

    Raises:
        MoveError: the queue or the SEJ journal changed since an export that was cut short, what was read back is
            something else, or the same queue was exported with other options.
        MissingError: the directory has no such queue.
        BusyError: another process has the queue open, or a program changed it while it was read.
        DamageError: the files are those of a Kestrel 3 queue.
    """
    place = Place.of(directory, name, disk, now_ms)
    one_of(("first", "leave"))("open_transactions", open_transactions)
    DIALECT("dialect", dialect)
    with place.opening():
        require(place)
        with closing(Pinned(place, exclude=True)) as snapshot:
            pieces = pinned_pieces(snapshot, dialect)
            backlog = Backlog(pieces, MEMORY_BYTES)
            refuse_others(pieces)
            snapshot.damage, _ = load(pieces, backlog)
            first = [backlog.open[xid] for xid in sorted(backlog.open)] if open_transactions == "first" else []
            waiting = (row for part in (first, backlog.rows()) for row in part)
            return export_to(
                writer,
                snapshot,
                ((data, add_time, expiry or None) for _, data, add_time, expiry, _ in waiting),
                [open_transactions, [[os.path.basename(piece.path), piece.size] for piece in pieces.all]],
                expired=expired,
                read_back=read_back,
                grace_ms=1,
            )


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[Message],
    *,
    keys: Literal["refuse", "drop"] = "refuse",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Add messages to a queue that no process has open, after its items: all of them or none.

    If it is called again with the same messages after it has finished, and the queue has not changed since, it adds
    nothing and returns the same: the file ``kept/<name>.imported`` records it. To add them twice, remove that file.

    Args:
        directory: where the queue's files are; made if missing.
        name: the queue.
        messages: a ``sej.Scanner`` or the like. After a call that was cut short: the same ones again.
        keys: what to do with keys and types, for which Kestrel has no place.
        disk: the seam.
        now_ms: the clock, for messages without a timestamp.

    Returns:
        What was moved.

    Raises:
        MoveError: a message has a key or type, what was written reads as something else, or the record of an import
            cannot be read.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 3 queue.
    """
    place = Place.of(directory, name, disk, now_ms)
    moving = Import(place, messages, keys)
    with place.opening():
        contents = Contents(place, Sizes(MEMORY_BYTES))
        try:
            staged = moving.stage(_Form(), now_ms())
            storage, decided = contents.storage, moving.plan.load()
            mine = [staged.count, staged.messages]
            # The queue has not changed since an import if the newest file that has anything is the imported one.
            newest = [[os.path.basename(piece.path), piece.size] for piece in storage.pieces if piece.size][-1:]
            if staged.count and (decided is None or [decided["messages"], decided["file"]] != [mine, newest]):
                target = storage.after_current()
                moving.plan.store({"messages": mine, "file": [[os.path.basename(target.path), staged.size]]})
                storage.adopt(staged.path, target)
            else:
                disk.unlink(staged.path)
            return Moved(staged.count, staged.checksum, None, contents.damage)
        finally:
            end(contents)


class _Form:
    """A staged item is an ADDX."""

    head = b""

    def encode(self, item: Fields) -> bytes:
        return addx(item.data, item.add_time, item.expiry)

    def decode(self, file: File) -> Iterator[Fields]:
        for operation in reading(file, "2.4").records():
            yield Fields(operation.data or b"", operation.add_time or 0, operation.expiry or 0)
