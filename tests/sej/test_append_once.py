"""Batches by name and number: once, whatever is repeated, refused or interrupted."""

import errno
import gc
import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import BatchConflictError, CorruptionError, WriterFailedError
from sej.codec import encode
from sej.system.disk import File
from tests.crash.disk import CrashDisk
from tests.sej.hooks import HookedDisk
from tests.sej.support import STAMP, encoded, flip, read_all, segment, values


@pytest.mark.parametrize("durability", ["buffer", "os", "interval", "disk"])
def test_a_repeat_appends_nothing_and_returns_its_range(durability: Any, tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability=durability) as w:
        w.append(b"before")
        assert w.append_once("p", 17, [b"a", b"b"], [b"k", b""], type=[1, 2]) == range(1, 3)
        assert w.durable_offset == 3, "durable at every durability"
        w.append(b"between")
        assert w.append_once("p", 17, [b"a", b"b"], [b"k", b""], type=[1, 2]) == range(1, 3)
        assert w.append_once("q", 17, [b"a", b"b"]) == range(4, 6), "each name counts for itself"
        assert w.append_once("p", 18, [b"c"]) == range(6, 7)
    with sej.Writer(tmp_path) as w:
        assert w.append_once("p", 17, [b"a", b"b"], [b"k", b""], type=[1, 2]) == range(1, 3)
        assert w.append_once("p", 18, [b"c"]) == range(6, 7)
        assert w.append_once("p", 30, [b"d"]) == range(7, 8), "gaps between numbers are fine"
    assert values(read_all(tmp_path)) == [b"before", b"a", b"b", b"between", b"a", b"b", b"c", b"d"]
    assert not list((tmp_path / "tmp").iterdir())


def test_a_repeat_is_known_by_content_not_by_time(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        assert w.append_once("p", 1, [b"a"], timestamp=5) == range(1)
        assert w.append_once("p", 1, [b"a"], timestamp=6) == range(1)
        assert w.append_once("p", 1, [b"a"]) == range(1)
    assert [row.timestamp for row in read_all(tmp_path)] == [5]


@pytest.mark.parametrize(
    "other",
    [
        {"values": [b"a"]},
        {"values": [b"a", b"b", b"c"]},
        {"values": [b"a", b"x"]},
        {"values": [b"b", b"a"]},
        {"values": [b"ab", b""]},
        {"values": [b"a", b"b"], "keys": [b"k", b""]},
        {"values": [b"a", b"b"], "type": 1},
        {"values": []},
    ],
    ids=str,
)
def test_the_same_number_with_other_messages_is_a_conflict(other: dict[str, Any], tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_once("p", 1, [b"a", b"b"])
        with pytest.raises(BatchConflictError, match="batch 1 of 'p'"):
            w.append_once("p", 1, **other)
        assert w.append(b"the writer goes on") == 2
        assert w.append_once("p", 1, [b"a", b"b"]) == range(2)


def test_a_number_below_the_last_one_is_refused(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_once("p", 5, [b"a"])
        with pytest.raises(BatchConflictError, match="not in the journal; a new batch needs a number above 5"):
            w.append_once("p", 4, [b"b"])
        with pytest.raises(ValueError, match="-1"):
            w.append_once("p", -1, [b"b"])
        assert w.offset == 1


def test_only_so_many_batches_are_remembered_and_the_others_are_refused(tmp_path: Path) -> None:
    disk = CrashDisk()
    with sej.Writer("/j", disk=disk) as w:
        for number in range(300):
            w.append_once("p", number, [b"%d" % number])
        assert w.append_once("p", 299, [b"299"]) == range(299, 300)
        assert w.append_once("p", 44, [b"44"]) == range(44, 45)
        with pytest.raises(BatchConflictError, match="may be in the journal or not; a new"):
            w.append_once("p", 43, [b"43"])
        assert w.offset == 300


def test_an_empty_batch_counts(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"before")
        assert len(w.append_once("p", 1, [])) == 0
        assert len(w.append_once("p", 1, [])) == 0
        with pytest.raises(BatchConflictError):
            w.append_once("p", 1, [b"a"])
        assert w.offset == 1


def test_a_batch_larger_than_a_segment_is_cut_and_whole(tmp_path: Path) -> None:
    rows = [b"%d" % n * 10 for n in range(500)]
    with sej.Writer(tmp_path, segment_bytes=1000) as w:
        assert w.append_once("p", 1, rows) == range(500)
        assert w.append_once("p", 1, rows) == range(500)
    assert values(read_all(tmp_path)) == rows
    assert sej.Journal(tmp_path).verify() == []


def interrupted(path: Path, at: int, name: str = "p") -> bool:
    """A batch whose writer dies at its at-th call to the disk; whether it died at all."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if armed and disk.calls > at:  # everything from here on: a dead process does nothing
            raise OSError(errno.EIO, "dead")

    armed = False
    disk = HookedDisk(hook)
    w = sej.Writer(path, disk=disk)
    w.append_many([b"before", b"it"], timestamp=STAMP)
    disk.calls, armed = 0, True
    died = False
    try:
        w.append_once(name, 7, [b"a", b"b", b"c"], timestamp=STAMP)
    except WriterFailedError:
        died = True
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # the index is not written either
        w.close()
    return died


def test_the_next_writer_finishes_a_promised_batch(tmp_path: Path) -> None:
    outcomes = set[int]()
    for at in range(100):
        path = tmp_path / str(at)
        died = interrupted(path, at)
        promised = (path / "txn" / "p.intent").exists()
        with sej.Writer(path) as w:
            found = values(read_all(path))[2:]
            assert found == [b"a", b"b", b"c"] or (died and not promised and not found), at
            outcomes.add(len(found))
            assert w.append_once("p", 7, [b"a", b"b", b"c"]) == range(2, 5)
            assert w.append(b"after") == 5
        assert not (path / "txn" / "p.intent").exists()
        assert values(read_all(path)) == [b"before", b"it", b"a", b"b", b"c", b"after"]
        if not died:
            break
    assert outcomes == {0, 3} and at > 8


def pending(path: Path, name: str = "p") -> Path:
    """Return a journal with an intent whose messages are not in the journal yet."""
    at = 0
    while True:
        here = path / f"pending-{at}"
        assert interrupted(here, at, name)
        if (here / "txn" / f"{name}.intent").exists():
            assert (here / "jnl" / f"{0:016x}.jnl").stat().st_size == 26 * 2 + 8
            return here
        at += 1


@pytest.mark.parametrize("name", ["repair", "x.rows", "rows.removed", "repair.0000000000000000"])
def test_a_promised_batch_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = pending(tmp_path, name)
    with sej.Writer(path) as w:
        assert values(read_all(path))[2:] == [b"a", b"b", b"c"]
        assert w.append_once(name, 7, [b"a", b"b", b"c"]) == range(2, 5)


def test_a_new_segment_removes_no_file_that_another_process_uses(tmp_path: Path) -> None:
    sej.Writer(tmp_path).close()
    (tmp_path / "tmp").mkdir(exist_ok=True)
    used = {"repair.ofs", "repair.queue"}  # of a reader and of a queue with the name "repair"
    for name in (*used, "repair.0000000000000000", "batch.rows"):
        (tmp_path / "tmp" / name).touch()
    with sej.Writer(tmp_path, segment_bytes=1) as w:
        w.append(b"the first segment ends")
    assert {file.name for file in (tmp_path / "tmp").iterdir()} == used


def test_offsets_once_seen_never_change_when_foreign_messages_came_between(tmp_path: Path) -> None:
    path = pending(tmp_path)
    with open(segment(path, 0), "ab") as file:  # an original writer knows no intents
        file.write(encoded(2, STAMP, 0, b"", b"a") + encoded(3, STAMP, 0, b"", b"foreign"))
    with sej.Writer(path) as w:
        assert w.offset == 6
        assert w.append_once("p", 7, [b"a", b"b", b"c"]) == range(2, 6)
        assert w.append_once("p", 7, [b"a", b"b", b"c"]) == range(2, 6)
    assert values(read_all(path)) == [b"before", b"it", b"a", b"foreign", b"b", b"c"]


def test_a_torn_batch_is_finished_after_the_tear(tmp_path: Path) -> None:
    path = pending(tmp_path)
    with open(segment(path, 0), "ab") as file:
        file.write(encoded(2, STAMP, 0, b"", b"a") + encoded(3, STAMP, 0, b"", b"b")[:-3])
    with sej.Writer(path) as w:
        assert w.recovery is not None and w.recovery.offset == 3
        assert w.offset == 5
    assert values(read_all(path)) == [b"before", b"it", b"a", b"b", b"c"]


@pytest.mark.parametrize("damage", ["staged rows gone", "staged rows changed", "intent changed"])
def test_a_promise_that_cannot_be_kept_is_loud_and_appends_nothing(damage: str, tmp_path: Path) -> None:
    path = pending(tmp_path)
    (staged,) = (path / "tmp").glob("*.rows")
    intent = path / "txn" / "p.intent"
    if damage == "staged rows gone":
        staged.unlink()
    else:
        file = staged if damage == "staged rows changed" else intent
        flip(file, -4)
    before = segment(path, 0).read_bytes()
    for _ in range(2):
        with pytest.raises(CorruptionError) as raised:
            sej.Writer(path)
        assert raised.value.path in (str(staged), str(intent))
    gc.collect()  # a writer that could not open leaves no warning, no thread, no lock
    assert segment(path, 0).read_bytes() == before
    intent.unlink()
    with sej.Writer(path) as w:
        assert w.append(b"given up") == 2


def test_what_is_kept_has_a_checksum(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_once("p", 1, [b"a"])
    done = tmp_path / "txn" / "p.done"
    assert json.loads(done.read_bytes().partition(b" ")[2])["batches"]
    done.write_bytes(done.read_bytes().replace(b"1", b"2", 1))
    with sej.Writer(tmp_path) as w:
        with pytest.raises(CorruptionError) as raised:
            w.append_once("p", 1, [b"a"])
        assert raised.value.path == str(done)
        assert w.offset == 1


ROWS = [b"%03d" % n for n in range(100)]


def failed(path: Path, wrong: Callable[[str, bytes], bool]) -> None:
    """Leave a batch whose writer failed at a write of these bytes to a file."""

    def strike(verb: str, file: File | None, data: bytes) -> None:
        if wrong("" if file is None else file.path, data):
            raise OSError(errno.EIO, "no more")

    w = sej.Writer(path, segment_bytes=300, disk=HookedDisk(strike))
    w.append_many([b"old"] * 10)
    with pytest.raises(WriterFailedError):
        w.append_once("p", 1, ROWS)
    w.close()


@pytest.mark.parametrize("keep_bytes", [1, 400, 1000, 2000])
def test_what_retention_took_of_a_batch_is_not_appended_again(keep_bytes: int, tmp_path: Path) -> None:
    failed(tmp_path, lambda _, data: b'"batches"' in data)  # it is appended, but its record is not written
    sej.Journal(tmp_path).clean(max_bytes=keep_bytes)
    left = read_all(tmp_path)
    assert values(left) == ROWS[-len(left) :] and len(left) < 100
    with sej.Writer(tmp_path) as w:
        assert w.append_once("p", 1, ROWS) == range(10, 110)
    assert read_all(tmp_path) == left


def test_a_batch_is_appended_if_other_messages_follow_what_retention_deleted(tmp_path: Path) -> None:
    failed(tmp_path, lambda path, data: path.endswith(".jnl") and b"000" in data)  # nothing of it is appended
    for first in (10, 20):
        foreign = (encoded(first + n, STAMP, 0, b"", b"foreign") for n in range(10))
        segment(tmp_path, first).write_bytes(b"".join(foreign))
    sej.Journal(tmp_path).clean(max_bytes=1)
    with sej.Writer(tmp_path) as w:
        assert w.append_once("p", 1, ROWS) == range(30, 130)
    assert values(read_all(tmp_path)) == [b"foreign"] * 10 + ROWS


def test_an_open_shared_writer_completes_a_promised_batch_first(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as w:
        w.append(b"first")
        failed(tmp_path, lambda path, data: path.endswith(".jnl") and b"000" in data)  # nothing of it is appended
        assert w.append(b"last") == 111
    assert values(read_all(tmp_path)) == [b"first", *[b"old"] * 10, *ROWS, b"last"]


# --- batches that are encoded already


def rows(first: int, count: int) -> bytes:
    return b"".join(encode(first + i, i, 0, b"k", b"v%d" % i) for i in range(count))


def test_encoded_batch_is_appended_once(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.append(b"before")
        assert writer.end.append_once_encoded("job", 3, [rows(1, 2), rows(3, 1)]) == range(1, 4)
        assert writer.end.append_once_encoded("job", 3, [b"never looked at"]) == range(1, 4)
        assert (writer.end.last_batch("job"), writer.end.last_batch("other"), writer.offset) == (3, None, 4)
        assert writer.end.append_once_encoded("job", 4, []) == range(4, 4)
    assert values(read_all(tmp_path)) == [b"before", b"v0", b"v1", b"v0"]


def test_wrong_offsets_are_refused_before_anything_is_appended(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        with pytest.raises(sej.DecodeError):
            writer.end.append_once_encoded("job", 0, [rows(0, 2), rows(7, 1)])
        assert writer.offset == 0
        assert writer.end.append_once_encoded("job", 0, [rows(0, 2)]) == range(2)


def test_rotate_starts_a_segment_unless_it_is_empty(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.end.rotate()
        writer.append(b"a")
        writer.end.rotate()
        writer.end.rotate()
        writer.append(b"b")
    assert [segment.first_offset for segment in sej.Journal(tmp_path).segments] == [0, 1]


# --- appends on a condition: the next offset, and the fencing token


WRITERS: list[Callable[..., Any]] = [sej.Writer, sej.SharedWriter]


@pytest.mark.parametrize("open_writer", WRITERS)
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_an_append_expects_an_offset(open_writer: Callable[..., Any], durability: str, tmp_path: Path) -> None:
    with open_writer(tmp_path, durability=durability) as w:
        assert w.append(b"a", b"k", 3, 4, expect_offset=0) == 0
        assert w.append_many([b"b", b"c"], expect_offset=1) == range(1, 3)
        for expected in (0, 2, 4, sej.message.MAX_OFFSET):
            for append in (w.append, lambda value, **when: w.append_many([value, value], **when)):
                with pytest.raises(sej.ConflictError) as caught:
                    append(b"x", expect_offset=expected)
                assert (caught.value.path, caught.value.expected, caught.value.found) == (str(tmp_path), expected, 3)
        with pytest.raises(sej.ConflictError):
            w.append_many([], expect_offset=2)
        assert w.append(b"d", expect_offset=3) == 3
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d"]


def test_of_threads_that_expect_one_offset_one_appends(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        for offset in range(50):
            found: list[int] = []

            def try_it(me: int, offset: int = offset, found: list[int] = found) -> None:
                try:
                    found.append(w.append(b"%d" % me, expect_offset=offset))
                except sej.ConflictError as error:
                    found.append(error.found)

            threads = [threading.Thread(target=try_it, args=(me,)) for me in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == [offset, offset + 1, offset + 1] and w.offset == offset + 1


def test_an_expected_offset_is_that_of_other_processes(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one, sej.SharedWriter(tmp_path) as other:
        one.append(b"a")
        other.append_many([b"b"] * 3)
        with pytest.raises(sej.ConflictError, match="expected 1 to be the next offset, but it is 4"):
            one.append(b"x", expect_offset=1)
        assert one.append(b"c", expect_offset=4) == 4


def test_a_higher_token_ends_the_lower_one(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, token=7) as old, sej.SharedWriter(tmp_path) as free:
        old.append(b"a")
        with sej.SharedWriter(tmp_path, token="next") as new:
            assert (old.token, new.token, free.token) == (7, 8, None)
            for append in (old.append, lambda value: old.append_many([value])):
                with pytest.raises(sej.ConflictError) as caught:
                    append(b"x")
                assert (caught.value.path, caught.value.expected, caught.value.found) == (str(tmp_path), 7, 8)
            new.append(b"b")
        with sej.SharedWriter(tmp_path, token=8) as again:  # the same leader, restarted
            again.append(b"c")
        with pytest.raises(sej.ConflictError):
            sej.SharedWriter(tmp_path, token=7)
        free.append(b"d")
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d"]


def test_a_token_whose_file_was_removed_or_put_back_is_refused(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, token=1):
        before = (tmp_path / "token").read_bytes()
    with sej.SharedWriter(tmp_path, token=2) as w:
        (tmp_path / "token").unlink()
        with pytest.raises(sej.CorruptionError, match="at least 2, got None"):
            w.append(b"x")
        (tmp_path / "token").write_bytes(before)
        with pytest.raises(sej.CorruptionError, match="at least 2, got 1"):
            w.append(b"x")
        (tmp_path / "token").write_bytes(before[:-3])
        with pytest.raises(sej.CorruptionError, match="is not a fencing token"):
            w.append(b"x")
    assert read_all(tmp_path) == []


def test_a_token_survives_a_power_failure_once_the_writer_is_open() -> None:
    disk = CrashDisk()
    sej.SharedWriter("/j", token=3, disk=disk).close()
    with sej.SharedWriter("/j", token="next", disk=disk) as w:
        assert w.token == 4
        for state in disk._states():
            with pytest.raises(sej.ConflictError):
                sej.SharedWriter("/j", token=3, disk=state)


def test_an_opening_with_a_token_waits_for_an_exclusive_writer(tmp_path: Path) -> None:
    with sej.Writer(tmp_path), pytest.raises(sej.LockedError):
        sej.SharedWriter(tmp_path, token=1, lock_timeout=0.0)
    assert not (tmp_path / "token").exists()


def test_a_repeat_is_durable_when_it_returns(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        for _ in range(2):
            writer.append_once("b", 1, [b"x"])
            assert writer.durable_offset == writer.offset
            writer.append(b"after")
