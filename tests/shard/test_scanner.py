"""The sharded scanner: everything once, fairly, or by time; following what grows and appears."""

import os
import random
import threading
from functools import partial
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej
import shard
from sej import codec
from sej.journal.directory import Directory
from sej.journal.retention import clean
from sej.system.disk import OS
from tests.sej.hooks import MeanwhileDisk, Worker
from tests.sej.support import commit, overwrite, write
from tests.sej.windows import BLOCK_BYTES, READ_BYTES, shrunk, small_windows


@pytest.fixture
def path(tmp_path: FilePath) -> shard.Path:
    return shard.Path(tmp_path / "root", "orders", 2)


def fill(path: shard.Path, index: int, values: list[bytes], timestamp: int | list[int] | None = None) -> None:
    write(path.dir(index), values, timestamp=timestamp, segment_bytes=4096)


def test_every_message_once_in_order_within_its_shard(path: shard.Path) -> None:
    keys = [b"key %d" % number for number in range(3000)]
    with shard.Writer(path, segment_bytes=10_000) as writer:
        spans = writer.append_many(keys, keys)
    found: dict[int, list[sej.Message]] = {index: [] for index in spans}
    with shard.Scanner(path) as scanner:
        for index, message in scanner:
            assert path.index(message.key) == index
            found[index].append(message)
        assert scanner.offsets == {index: span.stop for index, span in sorted(spans.items())}
        assert list(scanner) == []
    for index, messages in found.items():
        assert [message.offset for message in messages] == list(spans[index])


@given(st.lists(st.lists(st.integers(-5, 5), max_size=30), min_size=1, max_size=4), st.integers(1, 7))
def test_by_time_equals_a_merge(tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], limit: int) -> None:
    import heapq

    path = shard.Path(tmp_path_factory.mktemp("merge"), "m", 2)
    rows = []
    for index, stamps in enumerate(shards):
        fill(path, index, [b""] * len(stamps), stamps)
        rows.append([(index, offset, stamp) for offset, stamp in enumerate(stamps)])
    expected = list(heapq.merge(*rows, key=lambda row: (row[2], row[0])))
    with shard.Scanner(path, by="time") as scanner:
        scanner._limit = limit
        found = []
        while batch := scanner.read(limit):
            found += [(index, message.offset, message.timestamp) for index, message in batch]
    assert found == expected


def test_chosen_shards_and_offsets(path: shard.Path) -> None:
    for index in range(4):
        fill(path, index, [b"%d" % number for number in range(10)])
    with shard.Scanner(path, [1, 3], {1: 8, 3: sej.LAST}) as scanner:
        assert [(index, message.offset) for index, message in scanner] == [(1, 8), (1, 9)]
    with shard.Scanner(path, offset=sej.LAST) as scanner:
        assert list(scanner) == []
    with pytest.raises(ValueError, match=r"index must be 0 to 3, the shards of orders\.2, got 4"):
        shard.Scanner(path, [4])
    with pytest.raises(sej.JournalNotFoundError):
        shard.Scanner(shard.Path(FilePath(path.root) / "missing", "p", 1))


@pytest.mark.parametrize("by", ["turn", "time"])
def test_following_notices_appends_and_new_shards(path: shard.Path, by: str) -> None:
    FilePath(path.root).mkdir()
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)
    got: list[tuple[int, bytes]] = []

    def follow() -> None:
        with shard.Scanner(path, timeout=None, by=by) as scanner:  # type: ignore[arg-type]
            asked.release()
            for index, message in scanner:
                got.append((index, message.value))
                answered.release()
                if message.value == b"stop":
                    return

    following = Worker(follow)
    assert asked.acquire(timeout=60)
    with shard.Writer(path) as writer:
        expected = []
        for number in range(12):
            key, value = b"key %d" % number, b"%d" % number if number < 11 else b"stop"
            expected.append((writer.append(value, key)[0], value))
            assert answered.acquire(timeout=60)
    following.result()
    assert got == expected


def test_a_timeout_ends_a_wait_and_close_does_too(path: shard.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    fill(path, 0, [b"a"])
    with shard.Scanner(path, timeout=0.05) as scanner:
        assert [message.value for _, message in scanner] == [b"a"]
        fill(path, 1, [b"b"])
        assert [message.value for _, message in scanner] == [b"b"]
        assert scanner.read(timeout=0.01) == []
        wait = scanner._sources.wait

        def noted(timeout: float | None) -> tuple[list[int], bool]:
            begun.set()
            return wait(timeout)

        monkeypatch.setattr(scanner._sources, "wait", noted)
        waiting = Worker(lambda: scanner.read(timeout=None))
        assert begun.wait(60)  # a read that begins after the close raises
        scanner.close()
        assert waiting.result() == []
        with pytest.raises(sej.ClosedError):
            scanner.read()


@pytest.mark.parametrize("by", ["turn", "time"])
def test_a_thousand_shards_with_few_files_and_one_inotify(tmp_path: FilePath, by: str) -> None:
    path = shard.Path(tmp_path, "many", 10)
    for index in range(path.count):  # by hand: a writer syncs each one
        segment = FilePath(path.dir(index), "jnl", "0000000000000000.jnl")
        segment.parent.mkdir(parents=True)
        segment.write_bytes(b"".join(codec.encode(offset, offset, 0, b"", b"x") for offset in range(5)))
    inotify = ["anon_inode:inotify"]
    with shard.Scanner(path, timeout=0.01, by=by, max_open=16) as scanner:  # type: ignore[arg-type]
        count = 0
        most = 0
        before = len(os.listdir("/proc/self/fd"))
        for _ in scanner:
            count += 1
            if count % 500 == 0:
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
        links = [link for fd in os.listdir("/proc/self/fd") if (link := _link(fd)) in inotify]
    assert count == 5 * 1024
    assert most <= 20
    assert len(links) == 1


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the listing's own
        return ""


def test_damage_names_the_shard_or_is_skipped(path: shard.Path) -> None:
    for index in range(4):
        fill(path, index, [b"value %d" % number for number in range(50)])
    segment = min(FilePath(path.dir(2), "jnl").iterdir())
    overwrite(segment, 330 + 17, b"\xff")  # the size of the key
    with shard.Scanner(path) as scanner, pytest.raises(sej.CorruptionError, match=r"orders\.2\.002"):
        list(scanner)
    with shard.Scanner(path, on_corruption="skip") as scanner:
        assert len(list(scanner)) == 199
        assert list(scanner.gaps) == [2]
        assert scanner.gaps[2][0].missing == 1


def count_into(found: list[int], scanner: shard.Scanner) -> None:
    for index, _ in scanner:
        found[index] += 1


@pytest.mark.parametrize("by", ["turn", "time"])
def test_messages_before_damage_are_returned(path: shard.Path, by: str) -> None:
    for index in range(4):
        fill(path, index, [b"value"] * 50, list(range(index, 200 + index, 4)))
    segment = min(FilePath(path.dir(2), "jnl").iterdir())
    data = bytearray(segment.read_bytes())
    data[30 * (len(data) // 50) + 17] = 0xFF
    segment.write_bytes(data)
    found = [0] * 4
    with shard.Scanner(path, by=by) as scanner:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(sej.CorruptionError, match=r"orders\.2\.002"):
                count_into(found, scanner)
    assert found == [50, 50, 30, 50]


@pytest.mark.parametrize("by", ["turn", "time"])
def test_a_shard_that_is_never_empty_does_not_delay_the_others(path: shard.Path, by: str) -> None:
    """What comes into another shard, or a new one, is seen though there was never anything to wait for."""
    with (
        shard.Writer(path, route=lambda message: message.type) as writer,
        shard.Scanner(path, timeout=None, by=by) as scanner,  # type: ignore[arg-type]
    ):
        writer.append_many([b"x"] * 4, type=[0, 1, 0, 1])
        waiting = {1, 3}
        for number, (index, message) in enumerate(scanner):
            writer.append_many([b"x"] * 2)
            if number == 100:
                writer.append_many([b"late"] * 2, type=[1, 3], timestamp=0)
            if message.value == b"late":
                waiting.discard(index)
            if not waiting or number > 60_000:
                break
    assert not waiting


# --- shard.lag: messages, bytes and seconds behind, shard by shard


SECOND = 1_000_000_000


def test_every_shard_has_its_row(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 2)
    for index in (0, 1, 3):
        with sej.Writer(path.dir(index), segment_bytes=100) as writer:
            writer.append_many([b"12345678"] * 10, timestamp=[number * SECOND for number in range(10)])
    commit(path.dir(0), "mailer", 7)
    commit(path.dir(1), "mailer", 10)
    rows = shard.lag(path, "mailer", now_ns=lambda: 20 * SECOND)
    assert [(row.index, row.offset, row.end_offset, row.messages, row.bytes, row.seconds) for row in rows] == [
        (0, 7, 10, 3, 3 * 34, 13.0),
        (1, 10, 10, 0, 0, 0.0),
        (2, 0, 0, 0, 0, 0.0),
        (3, 0, 10, 10, 340, 20.0),
    ]
    assert sum(row.messages for row in shard.lag(path, "unknown")) == 30


def test_messages_without_a_time_have_no_age(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 0)
    with sej.Writer(path.dir(0)) as writer:
        writer.append(b"x", timestamp=sej.NO_TIMESTAMP)
    assert [(row.messages, row.seconds) for row in shard.lag(path, "r")] == [(1, 0.0)]


def test_a_place_beyond_the_end_is_an_error(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 0)
    sej.Writer(path.dir(0)).close()
    FilePath(path.dir(0), "ofs", "r.ofs").write_bytes((9).to_bytes(8, "big"))
    with pytest.raises(sej.OffsetBeyondEndError, match="is at offset 9"):
        shard.lag(path, "r")
    with pytest.raises(sej.InvalidNameError):
        shard.lag(path, "../r")


def test_retention_in_the_meantime_is_no_error(tmp_path: FilePath) -> None:
    k, found = 1, set()
    while True:
        path = shard.Path(tmp_path / str(k), "orders", 0)
        write(path.dir(0), [b"12345678"] * 10, segment_bytes=100)
        directory = Directory(path.dir(0), OS)
        disk = MeanwhileDisk(k, partial(clean, directory, sej.Retention(max_bytes=1), wait=False))
        (row,) = shard.lag(path, "mailer", disk=disk)
        found.add(row.messages)
        if disk.calls < k:
            break
        k += 1
    assert found == {10, 1}


# --- Messages larger than every read window among short ones, in a sharded journal


WINDOWS = {
    "shard.scanner": ["_WHOLE", "_HELD", "_HELD_BYTES", "_LEAST_BYTES", "CHUNK_BYTES"],
    "shard.resharding": ["_BATCH"],
}
LEAST = 200
"""No window is smaller than the head of a message."""
Row = tuple[bytes, bytes]


def read(path: shard.Path, by: str, max_open: int) -> dict[bytes, list[bytes]]:
    """The values of each key, in the order in which they came."""
    found: dict[bytes, list[bytes]] = {}
    with shard.Scanner(path, by=by, max_open=max_open) as s:  # type: ignore[arg-type]
        for _, message in s:
            found.setdefault(message.key, []).append(message.value)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_every_shard_holds_its_messages_of_any_size(seed: int, tmp_path: FilePath) -> None:
    dice = random.Random(seed)
    rows: list[Row] = []
    expected: dict[bytes, list[bytes]] = {}
    path = shard.Path(tmp_path, "o", 2)
    with small_windows(), shrunk(WINDOWS, least=LEAST):
        with shard.Writer(path, segment_bytes=dice.choice([3000, 1 << 30])) as w:
            for _ in range(dice.randrange(2, 8)):
                rows = []
                for _ in range(dice.randrange(1, 20)):
                    large = dice.choice(
                        [200, BLOCK_BYTES - 30, BLOCK_BYTES, READ_BYTES, dice.randrange(20 * READ_BYTES)]
                    )
                    key = b"k%d" % dice.randrange(20)
                    rows.append((key, b"v" * (large if dice.random() < 0.3 else dice.randrange(30))))
                    expected.setdefault(key, []).append(rows[-1][1])
                if dice.random() < 0.5:
                    w.append_many([value for _, value in rows], [key for key, _ in rows])
                else:
                    for key, value in rows:
                        w.append(value, key)
        for by in ("turn", "time"):
            assert read(path, by, dice.choice([1, 8])) == expected
        shard.reshard(path, shard.Path(tmp_path, "n", 3))
        assert read(shard.Path(tmp_path, "n", 3), "turn", 8) == expected
