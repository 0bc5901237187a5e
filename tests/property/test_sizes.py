"""Messages larger than any window among short ones, whatever has become of the index and of the last write."""

from contextlib import ExitStack
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sej
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.queue.journal_queue import JournalQueue
from sej.writing.shared_writer import SharedWriter
from tests.crash.disk import CrashDisk
from tests.examples import examples
from tests.sej.support import encoded, packed, read_all
from tests.sej.windows import BLOCK_BYTES, INDEX_BYTES, NEAR, READ_BYTES, small_windows

ROOT = "/j"
OVERHEAD: Final = 26
near = st.builds(lambda size, by: max(size + by, 0), st.sampled_from(NEAR), st.integers(-2 * OVERHEAD, OVERHEAD))
sizes = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40),
    near,
    st.integers(BLOCK_BYTES, 3 * READ_BYTES),
    st.sampled_from([READ_BYTES, 2 * READ_BYTES + 1, INDEX_BYTES]),
)
shares = st.integers(0, 1000)
kinds = st.integers(0, 4)


class SizesMachine(RuleBasedStateMachine):
    """``rows`` is what was appended, every message in the order of offsets; retention took those before ``first``."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = ExitStack()
        self.windows.enter_context(small_windows())
        self.disk = CrashDisk()
        self.rows: list[sej.Message] = []
        self.first = 0
        self.w: Any = None
        self.done: set[int] = set()
        self.number = 0
        self.older: dict[str, bytes] = {}
        self.kept: int | None = None
        self.batches: dict[int, tuple[range, list[sej.Message]]] = {}
        self.followers: list[sej.Scanner] = []
        self.tail: Tail | None = None

    @initialize(segment_bytes=st.sampled_from([1, 3000, 20_000, 1 << 30]), kind=kinds)
    def start(self, segment_bytes: int, kind: int) -> None:
        self.segment_bytes = segment_bytes
        self.reopen(kind)
        self.followers = [sej.Scanner(ROOT, disk=self.disk, verify=verify) for verify in (False, True)]
        self.tail = Tail(Directory(ROOT, self.disk))

    def row(self, size: int) -> sej.Message:
        offset = len(self.rows)
        message = sej.Message(offset, 10 * offset, offset % 3, b"k" * (offset % 5), bytes([offset % 7]) * size)
        self.rows.append(message)
        return message

    # --- appending

    @rule(kind=kinds)
    def reopen(self, kind: int) -> None:
        self.close()
        options: dict[str, Any] = {"segment_bytes": self.segment_bytes, "disk": self.disk}
        if kind == 3:
            self.w = SharedWriter(ROOT, **options)
        elif kind == 4:
            self.w = JournalQueue(ROOT, "q", **options)
        else:
            durability: Any = ("buffer", "os", "disk")[kind]
            self.w = sej.Writer(ROOT, durability=durability, **options)
        if isinstance(self.w, sej.Writer):
            assert self.w.recovery is None and self.w.offset == len(self.rows)

    def close(self) -> None:
        if self.w is not None:
            self.w.close()

    @rule(size=sizes)
    def append(self, size: int) -> None:
        _, timestamp, type, key, value = self.row(size)
        if isinstance(self.w, JournalQueue):
            offset = self.w.put(value, key)
            (there,) = sej.Journal(ROOT, disk=self.disk).tail(1)
            self.rows[-1] = self.rows[-1]._replace(type=0, timestamp=there.timestamp)  # the clock's
        else:
            offset = self.w.append(value, key, type, timestamp)
        assert offset == len(self.rows) - 1

    @precondition(lambda self: not isinstance(self.w, JournalQueue))
    @rule(each=st.lists(sizes, min_size=1, max_size=5))
    def append_many(self, each: list[int]) -> None:
        rows = [self.row(size) for size in each]
        span = self.w.append_many(*columns(rows))
        assert span == range(rows[0].offset, len(self.rows))

    @precondition(lambda self: isinstance(self.w, sej.Writer))
    @rule(
        each=st.lists(sizes, min_size=1, max_size=5),
        how=st.sampled_from(["once", "encoded", "once_encoded"]),
    )
    def append_batch(self, each: list[int], how: str) -> None:
        rows = [self.row(size) for size in each]
        self.number += 1
        if how == "once":
            span = self.w.append_once("p", self.number, *columns(rows))
            self.batches[self.number] = span, rows
        elif how == "encoded":
            span = self.w.end.append_encoded(packed(rows))
        else:
            span = self.w.end.append_once_encoded("p", self.number, [packed(rows[:2]), packed(rows[2:])])
        assert span == range(rows[0].offset, len(self.rows))

    @precondition(lambda self: isinstance(self.w, sej.Writer))
    @rule()
    def rotate(self) -> None:
        self.w.end.rotate()

    @precondition(lambda self: self.batches and isinstance(self.w, sej.Writer))
    @rule(data=st.data())
    def repeat_a_batch(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.batches)))
        span, rows = self.batches[number]
        assert self.w.append_once("p", number, *columns(rows)) == span

    @precondition(lambda self: isinstance(self.w, sej.Writer))
    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        self.w.sync() if sync else self.w.flush()
        assert not sync or self.w.durable_offset == len(self.rows)

    @precondition(lambda self: isinstance(self.w, JournalQueue))
    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for item in self.w.get_many(count, timeout=0):
            assert item.message == self.rows[item.message.offset] and item.message.offset not in self.done
            self.done.add(item.message.offset)
            item.done()

    @rule(size=sizes, share=shares, kind=kinds, how=st.sampled_from(["cut", "zeros", "noise"]))
    def die(self, size: int, share: int, kind: int, how: str) -> None:
        """Whoever appended ends in the middle of a write; what comes next cuts it."""
        self.close()
        self.w = None
        offset = len(self.rows)
        torn = encoded(offset, 1, 0, b"key", b"v" * size)
        torn = torn[: 1 + share * (len(torn) - 2) // 1000]
        torn = {"cut": torn, "zeros": bytes(len(torn)), "noise": b"\xff" * len(torn)}[how]
        last = sej.Journal(ROOT, disk=self.disk).segments
        if not last:
            self.reopen(kind)
            return
        file = self.disk.open(last[-1].path, "append")
        file.write(torn)
        file.close()
        self.check(share)
        assert [problem.kind for problem in sej.Journal(ROOT, disk=self.disk).verify()] == ["torn tail"]
        if share % 2:
            self.damage_index(share, share, "missing")
        with sej.Writer(ROOT, disk=self.disk, segment_bytes=self.segment_bytes) as w:
            assert w.recovery is not None and w.recovery.size == len(torn) and w.offset == offset
        self.reopen(kind)

    @precondition(lambda self: isinstance(self.w, sej.Writer | SharedWriter))
    @rule(which=st.integers(0, 30), kind=kinds)
    def lose_power(self, which: int, kind: int) -> None:
        durable = 0
        if (w := self.w) is not None:
            durable = w.durable_offset
            life = w.life if isinstance(w, SharedWriter) else w.end.life
            life.fail(OSError("the power is gone"))
            w.close()
        self.w = None
        self.disk = [state for _, state in zip(range(which + 1), self.disk._states(), strict=False)][-1]
        with sej.Writer(ROOT, segment_bytes=self.segment_bytes, disk=self.disk) as found:
            end = found.offset
        assert durable <= end <= len(self.rows)
        del self.rows[end:]
        assert all(span.stop <= end for span, _ in self.batches.values()), "a batch is durable when it returns"
        assert sej.read_offset(ROOT, "r", disk=self.disk) == self.kept
        self.done.clear()
        for at, follower in enumerate(self.followers):
            offset = max(min(follower.offset, end), self.first)
            follower.close()
            self.followers[at] = sej.Scanner(ROOT, offset, disk=self.disk, verify=at == 1)
        self.tail = Tail(Directory(ROOT, self.disk))
        self.reopen(kind)

    # --- what becomes of the index

    @rule(which=shares, share=shares, how=st.sampled_from(["missing", "cut", "flipped", "older", "kept"]))
    def damage_index(self, which: int, share: int, how: str) -> None:
        files = {path: data for path, data in self.disk.files().items() if path.endswith(".idx")}
        if not files:
            return
        path, data = sorted(files.items())[which * (len(files) - 1) // 1000]
        if how == "kept":
            self.older[path] = data
            return
        if how == "missing":
            self.disk.unlink(path)
            return
        changed = bytearray(self.older.get(path, b"") if how == "older" else data)
        if how == "cut":
            del changed[share * len(changed) // 1000 :]
        elif how == "flipped" and changed:
            changed[share * (len(changed) - 1) // 1000] ^= 1
        file = self.disk.open(path, "edit")
        file.truncate(0)
        file.write_at(changed, 0)
        file.close()

    @rule(max_bytes=st.sampled_from([5000, 100_000]))
    def clean(self, max_bytes: int) -> None:
        if isinstance(self.w, JournalQueue):
            journal = sej.Journal(ROOT, disk=self.disk)
            journal.clean(max_bytes=max_bytes)
            self.first = journal.first_offset
            for at, follower in enumerate(self.followers):
                follower.close()
                self.followers[at] = sej.Scanner(ROOT, max(follower.offset, self.first), disk=self.disk, verify=at == 1)

    @rule(kind=kinds)
    def reindex(self, kind: int) -> None:
        self.close()
        sej.Journal(ROOT, disk=self.disk).reindex()
        self.w = None
        self.reopen(kind)

    # --- reading

    def end(self) -> int:
        return sej.Journal(ROOT, disk=self.disk).end_offset

    @rule()
    def follow(self) -> None:
        end = self.end()
        for follower in self.followers:
            at = follower.offset
            assert list(follower) == self.rows[at:end]

    @rule(which=st.integers(0, 1), count=st.integers(1, 5))
    def read(self, which: int, count: int) -> None:
        at = self.followers[which].offset
        found = self.followers[which].read(count)
        assert found == self.rows[at : at + len(found)]
        assert len(found) <= count and (found or self.end() <= at)

    @rule(which=st.integers(0, 1), share=shares, by_time=st.booleans())
    def seek(self, which: int, share: int, by_time: bool) -> None:
        follower, at = self.followers[which], self.first + share * (len(self.rows) - self.first) // 1000
        if by_time:
            wanted = share * 10 * len(self.rows) // 1000
            follower.seek_time(wanted)
            at = next((row.offset for row in self.rows[self.first :] if row.timestamp >= wanted), len(self.rows))
            at = min(at, self.end())
        else:
            follower.seek(at)
        assert follower.offset == at

    @rule(share=shares, back=st.booleans())
    def keep_an_offset(self, share: int, back: bool) -> None:
        offset = self.first + share * (self.end() - self.first) // 1000
        with sej.Offset(ROOT, "r", disk=self.disk) as o:
            assert o.value == (self.first if self.kept is None else self.kept)
            if back:
                o.reset(offset)
            else:
                o.commit(offset)
            if back or offset >= o.value:
                self.kept = offset
            assert o.value == (self.first if self.kept is None else self.kept)

    @invariant()
    def what_was_appended_has_its_offset(self) -> None:
        if isinstance(self.w, sej.Writer):
            assert self.w.durable_offset <= self.w.offset == len(self.rows)
            assert self.w.durability != "disk" or self.w.durable_offset == self.w.offset

    @rule(share=shares)
    def check(self, share: int) -> None:
        journal = sej.Journal(ROOT, disk=self.disk)
        end = journal.end_offset
        if self.w is not None and not (isinstance(self.w, sej.Writer) and self.w.durability == "buffer"):
            assert end == len(self.rows)
        assert self.tail is not None
        assert self.tail.end_offset() == end
        at = self.first + share * (end - self.first) // 1000
        for verify in (False, True):
            assert read_all(ROOT, disk=self.disk, verify=verify) == self.rows[self.first : end]
            assert read_all(ROOT, offset=at, disk=self.disk, verify=verify) == self.rows[at:end]
        assert journal.tail(3) == self.rows[max(end - 3, self.first) : end]
        assert list(journal.reversed()) == self.rows[self.first : end][::-1]
        if at < end:
            wanted = self.rows[at].timestamp
            due = next(row.offset for row in self.rows[self.first :] if row.timestamp >= wanted)
            assert journal.find_time(wanted) == due
        for limit, chunk_bytes in ((1, BLOCK_BYTES), (BLOCK_BYTES, 256), (READ_BYTES, READ_BYTES)):
            cursor = Cursor(Directory(ROOT, self.disk), at, chunk_bytes=chunk_bytes)
            data = b""
            while (found := cursor.read_encoded(limit))[1]:
                data += found[0]
            assert data == packed(self.rows[at:end])
            cursor.close()
            cursor = Cursor(Directory(ROOT, self.disk), at, chunk_bytes=chunk_bytes, verify=True)
            data = b""
            while (more := cursor.read_columns(3)) is not None:
                data += more.value_data
            assert data == b"".join(row.value for row in self.rows[at:end])
            cursor.close()

    @rule()
    def verify(self) -> None:
        assert sej.Journal(ROOT, disk=self.disk).verify() == []

    def teardown(self) -> None:
        try:
            if self.w is not None:
                self.close()
                self.w = None
                assert sej.Journal(ROOT, disk=self.disk).verify() == []
                self.check(500)
                assert self.end() == len(self.rows)
                for follower in self.followers:
                    follower.close()
        finally:
            self.windows.close()


def columns(rows: list[sej.Message]) -> tuple[list[bytes], list[bytes], list[int], list[int]]:
    """Values, keys, types and times."""
    return [r.value for r in rows], [r.key for r in rows], [r.type for r in rows], [r.timestamp for r in rows]


SizesMachine.TestCase.settings = settings(max_examples=examples(64), stateful_step_count=40)
test_messages_of_any_size = SizesMachine.TestCase


@pytest.mark.torture
@pytest.mark.timeout(3600)
class TestLongHistories(SizesMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=500 if settings().max_examples > 100 else 1, stateful_step_count=200)


DAMAGE = st.tuples(st.sampled_from(["flipped", "cut out", "noise"]), st.integers(0, 10**6), st.integers(1, 5000))


@given(
    st.lists(sizes, min_size=1, max_size=12),
    st.sampled_from([1, 5000, 1 << 30]),
    st.lists(DAMAGE, min_size=1, max_size=3),
    st.booleans(),
)
def test_a_repair_loses_no_whole_message_of_any_size(
    each: list[int], segment_bytes: int, damage: list[tuple[str, int, int]], shared: bool
) -> None:
    with small_windows():
        disk = CrashDisk()
        rows = [sej.Message(n, n, 0, b"k" * (n % 4), bytes([n % 5 + 200]) * size) for n, size in enumerate(each)]
        kind: Any = SharedWriter if shared else sej.Writer
        with kind(ROOT, disk=disk, segment_bytes=segment_bytes) as w:
            for row in rows:
                w.append(row.value, row.key, row.type, row.timestamp)
        journal = sej.Journal(ROOT, disk=disk)
        segments = journal.segments
        for what, share, size in damage:
            file = disk.open(segments[share % len(segments)].path, "edit")
            data = bytearray(file.read(file.size(), 0))
            at = share * max(len(data) - 1, 0) // 10**6
            if what == "flipped":
                data[at : at + 1] = bytes(byte ^ 255 for byte in data[at : at + 1])
            elif what == "cut out":
                del data[at : at + size]
            else:
                data[at:at] = b"\x99" * size
            file.truncate(0)
            file.write_at(data, 0)
            file.close()
        left = [disk.files()[segment.path] for segment in segments]
        journal.repair()
        sej.Writer(ROOT, disk=disk).close()  # it cuts what is torn
        assert journal.verify() == []
        found = {message.offset for message in read_all(ROOT, disk=disk, verify=True)}
        kept = b"".join(data for path, data in disk.files().items() if "/kept/" in path)
        for row in rows:
            whole = any(packed([row]) in data for data in left)
            assert row.offset in found or not whole or packed([row]) in kept
