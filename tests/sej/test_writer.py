"""The writer: forms of appending, what each durability makes visible and durable, rotation, encoded copies."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import DecodeError, Message
from sej.codec import IMPLEMENTATION, buffer_reference
from sej.codec.format import MAX_OFFSET
from sej.system.disk import File
from tests.crash.disk import CrashDisk
from tests.sej.hooks import PATIENCE_S, HookedDisk, Worker, until
from tests.sej.support import STAMP, encoded, packed, read_all, sample, segment, values

DURABILITIES: list[Any] = ["buffer", "os", "interval", "disk"]


def test_segments_are_only_appended_to_and_nothing_else_is_in_their_directory() -> None:
    """No call writes over bytes of a segment, so a medium that damages their neighbours has no chance to."""
    disk = CrashDisk()
    for _ in range(2):
        with sej.Writer("/j", segment_bytes=300, disk=disk) as w:
            w.append_many([b"%d" % n for n in range(40)])
            w.append_once("batch", w.offset, [b"once"] * 3)
            w.append(b"last")
        with sej.SharedWriter("/j", segment_bytes=300, disk=disk) as shared:
            shared.append_many([b"%d" % n for n in range(40)])
            shared.append(b"last")
        with sej.Offset("/j", "reader", disk=disk) as o:
            o.commit(3)
    sizes: dict[int, int] = {}
    names = [arguments[1] for verb, arguments in disk.trace if verb == "rename"]
    for verb, arguments in disk.trace:
        if verb == "create" and arguments[0] in ("/j/jnl", "/j/tmp"):
            names.append("/".join(arguments[:2]))
            sizes[arguments[2]] = 0
        elif arguments and arguments[0] in sizes:
            assert verb in ("write", "sync"), (verb, arguments)
            if verb == "write":
                assert arguments[1] == sizes[arguments[0]]
                sizes[arguments[0]] += len(arguments[2])
    assert sum(size > 0 for size in sizes.values()) > 10
    assert all(re.fullmatch(r"/j/jnl/[0-9a-f]{16}\.jnl", name) for name in names if "/jnl/" in name)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_every_form_of_append_gives_consecutive_offsets(durability: Any, tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=300, durability=durability) as w:
        assert w.append(b"value", b"key", type=3, timestamp=4) == 0
        assert w.append(bytearray(b"v"), memoryview(b"k"), 1, sej.NO_TIMESTAMP) == 1
        assert w.append_many([b"a", b"b"], [b"x", b"y"], type=[1, 2], timestamp=[8, 7]) == range(2, 4)
        assert w.append_many((b"%d" % n for n in range(3)), type=9, timestamp=5) == range(4, 7)
        assert w.append_many([]) == range(7, 7)
        assert w.append_messages(sample(2, start=50)) == range(7, 9)
        assert w.append_many([b"p", b"q"], timestamp=6) == range(9, 11)
        assert w.append_once("batch", 1, [b"once"], timestamp=1) == range(11, 12)
        assert w.end.append_encoded(encoded(12, 2, 3, b"k", b"raw")) == range(12, 13)
        assert w.offset == 13
    rows = read_all(tmp_path)
    assert [row.offset for row in rows] == list(range(13))
    assert rows[:4] == [
        Message(0, 4, 3, b"key", b"value"),
        Message(1, sej.NO_TIMESTAMP, 1, b"k", b"v"),
        Message(2, 8, 1, b"x", b"a"),
        Message(3, 7, 2, b"y", b"b"),
    ]
    assert rows[4:7] == [Message(n, 5, 9, b"", b"%d" % (n - 4)) for n in range(4, 7)]
    assert rows[7:9] == [row._replace(offset=row.offset - 43) for row in sample(2, start=50)]
    assert values(rows[9:]) == [b"p", b"q", b"once", b"raw"]
    assert rows[1].time is None and rows[0].time is not None
    assert sej.Journal(tmp_path).verify() == []


def test_a_message_without_a_timestamp_gets_the_time_of_the_append(tmp_path: Path) -> None:
    start = time.time_ns()
    with sej.Writer(tmp_path) as w:
        w.append(b"a")
        w.append_many([b"b", b"c"])
    times = [row.timestamp for row in read_all(tmp_path)]
    assert start <= times[0] <= times[1] <= times[2] <= time.time_ns()


def test_buffered_messages_are_seen_after_flush_close_or_64_kib(tmp_path: Path) -> None:
    file = segment(tmp_path, 0)
    with sej.Writer(tmp_path, durability="buffer") as w:
        w.append(b"v" * 100)
        assert file.stat().st_size == 0
        w.flush()
        assert file.stat().st_size == 126
        w.append(b"v" * (1 << 16))
        assert file.stat().st_size > 1 << 16
        size = file.stat().st_size
        w.append(b"last")
        assert file.stat().st_size == size
    assert file.stat().st_size == size + 30


@pytest.mark.parametrize("durability", ["os", "interval", "disk"])
def test_every_append_is_seen_immediately(durability: Any, tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability=durability) as w, sej.Scanner(tmp_path) as s:
        for n in range(5):
            w.append(b"%d" % n)
            assert values(s.read()) == [b"%d" % n]
        w.append_many([b"x"] * 10)
        assert len(s.read()) == 10


def test_under_disk_every_append_is_durable_and_a_batch_pays_one_sync() -> None:
    disk = CrashDisk()
    with sej.Writer("/j", durability="disk", disk=disk) as w:

        def syncs(call: Callable[[], object]) -> int:
            before = sum(what == "sync" for what, _ in disk.trace)
            call()
            assert w.durable_offset == w.offset
            assert sej.Journal("/j", disk=disk.crash()).end_offset == w.offset
            return sum(what == "sync" for what, _ in disk.trace) - before

        assert syncs(lambda: w.append(b"v")) == 1
        assert syncs(lambda: w.append_many([b"v"] * 1000)) == 1
        assert syncs(lambda: w.append_messages(sample(10))) == 1
        assert syncs(lambda: w.end.append_encoded(encoded(w.offset, 0, 0, b"", b""))) == 1
        assert syncs(w.flush) == 0
        assert syncs(w.sync) == 0


def test_under_interval_a_sync_comes_by_itself() -> None:
    with sej.Writer("/j", durability="interval", sync_interval_s=0.001, disk=CrashDisk()) as w:
        for n in range(3):
            w.append(b"v")
            until(lambda due=n + 1: w.durable_offset == due)  # type: ignore[misc]


@pytest.mark.parametrize(
    "data",
    [
        packed(sample(2))[:-1],
        packed(sample(2)) + b"x",
        packed(sample(2, start=1)),
        packed([*sample(1), *sample(1)]),
        packed(sample(1)) + bytes(26),
        b"garbage of at least twenty-six bytes",
    ],
    ids=["cut", "a byte more", "wrong first offset", "wrong second offset", "zeros", "garbage"],
)
def test_wrong_encoded_messages_are_refused_whole(data: bytes, tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        with pytest.raises(DecodeError):
            w.end.append_encoded(data)
        assert w.offset == 0
        assert w.append(b"first", timestamp=STAMP) == 0
    assert values(read_all(tmp_path)) == [b"first"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_threads_share_a_writer(durability: Any, tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=2000, durability=durability) as w:

        def work(me: int) -> list[tuple[int, bytes]]:
            done = []
            for n in range(30):
                text = b"%d-%d" % (me, n)
                done.append((w.append(text), text))
                done += [(at, text + b"+") for at in w.append_many([text + b"+"] * 3)]
            return done

        workers = [Worker(lambda me=me: work(me)) for me in range(6)]  # type: ignore[misc]
        acknowledged = dict(pair for worker in workers for pair in worker.result())  # type: ignore[attr-defined]
        assert durability != "disk" or w.durable_offset == w.offset
    assert {row.offset: row.value for row in read_all(tmp_path)} == acknowledged
    assert len(acknowledged) == 6 * 30 * 4


@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
def test_closing_under_threads_that_append_keeps_what_was_acknowledged_and_nothing_else(
    durability: Any, tmp_path: Path
) -> None:
    for attempt in range(10):
        path = tmp_path / str(attempt)
        w = sej.Writer(path, durability=durability)

        acknowledged = [-1]

        def appending(w: sej.Writer = w, acknowledged: list[int] = acknowledged) -> None:
            with contextlib.suppress(sej.ClosedError):
                while True:
                    acknowledged.append(w.append(b"v"))

        threads = [Worker(appending) for _ in range(4)]
        until(lambda w=w: w.offset > 200)  # type: ignore[misc]
        w.close()
        for thread in threads:
            thread.result()
        assert sej.Journal(path).end_offset == max(acknowledged) + 1
        assert sej.Journal(path).verify() == []


def test_threads_that_wait_for_the_disk_share_one_sync(tmp_path: Path) -> None:
    syncs: list[int] = []

    def hook(verb: str, *_: object) -> None:
        if verb == "sync" and started:
            syncs.append(w.offset)
            if len(syncs) == 1:
                until(lambda: w.offset == 8)  # the disk is slow: the others come meanwhile

    started = False
    with sej.Writer(tmp_path, durability="disk", disk=HookedDisk(hook)) as w:
        started = True
        workers = [Worker(lambda: w.append(b"v"))]
        until(lambda: bool(syncs))
        workers += [Worker(lambda: w.append(b"v")) for _ in range(7)]
        assert sorted(int(str(worker.result())) for worker in workers) == list(range(8))
        assert w.durable_offset == 8
        assert syncs == [1, 8], "one for the first thread, one for all the others"


def test_a_sync_vouches_for_nothing_that_came_while_it_looked_at_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered: list[int] = []
    late: list[Worker] = []
    synced = threading.Event()

    def hook(verb: str, file: File | None, _: bytes) -> None:
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            covered.append(file.status().size // len(encoded(0, 0, 0, b"", b"v")))
            synced.set()
        if verb == "write" and threading.current_thread() in late:
            assert synced.wait(PATIENCE_S)

    with sej.Writer(tmp_path, disk=HookedDisk(hook)) as w:
        w.append(b"v")
        look = w.end.lock.check

        def looking() -> None:
            look()
            if not late:
                late.append(Worker(lambda: w.append(b"v")))
                until(lambda: w.offset == 2 or IMPLEMENTATION == "python")

        monkeypatch.setattr(w.end.lock, "check", looking)
        w.sync()
        late[0].result()
        assert w.durable_offset <= covered[-1]
    assert covered[-1] == 2


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize(
    ("kind", "segment_bytes"), [(sej.Writer, 1 << 20), (sej.SharedWriter, 1 << 20), (sej.SharedWriter, 1)]
)
def test_a_journal_ends_before_its_offsets_do(
    kind: Any, segment_bytes: int, python: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if python:
        monkeypatch.setattr("sej.writing.appender.Buffer", buffer_reference.Buffer)
    last, refused = MAX_OFFSET - 1, "largest offset.*; continue in another journal"
    sej.Writer(tmp_path, first_offset=last - 1).close()
    with kind(tmp_path, segment_bytes=segment_bytes) as w:
        with pytest.raises(sej.InvalidMessageError, match=refused):
            w.append_many([b"v"] * 3)
        assert w.append_many([b"a", b"b"]) == range(last - 1, last + 1)
        calls: list[Callable[[], object]] = [lambda: w.append(b"c"), lambda: w.append_many([b"c"])]
        if kind is sej.Writer:
            calls.append(lambda: w.append_once("n", 1, [b"c"]))
            calls.append(lambda: w.end.append_encoded(encoded(MAX_OFFSET, 0, 0, b"", b"c")))
        for call in calls:
            with pytest.raises(sej.InvalidMessageError, match=refused):
                call()
        assert w.append_many([]) == range(MAX_OFFSET, MAX_OFFSET)
    with kind(tmp_path) as w, pytest.raises(sej.InvalidMessageError, match=refused):
        w.append(b"c")
    assert [message.offset for message in read_all(tmp_path)] == [last - 1, last]
    assert sej.Journal(tmp_path).end_offset == MAX_OFFSET and sej.Journal(tmp_path).verify() == []
