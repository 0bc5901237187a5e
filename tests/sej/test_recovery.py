"""What a writer does with the end of a journal: torn tails of every kind are cut and kept, corruption is loud."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sej
from sej import CorruptionError
from sej.system.disk import OsFile
from tests.crash.disk import CrashDisk
from tests.sej.hooks import LookingDisk
from tests.sej.support import STAMP, by_hand, encoded, packed, read_all, sample, segment, values, write

GOOD = sample(5, size=40)
BASE = packed(GOOD)
FILE = f"/j/jnl/{0:016x}.jnl"
HEAD = encoded(5, STAMP, 0, b"", b"")
LIE = encoded(5, STAMP, 0, b"", b"v" * 9)[:18] + (5000).to_bytes(4, "big") + b"v" * 9 + bytes([0, 0, 0, 35])


def on_disk(data: bytes, first: int = 0) -> CrashDisk:
    """A journal of one segment, in memory."""
    disk = CrashDisk()
    disk.mkdir("/j/jnl")
    file = disk.open(f"/j/jnl/{first:016x}.jnl", "new")
    file.write(data)
    file.close()
    return disk


def assert_torn(tail: bytes, good: bytes = BASE, due: int = 5) -> None:
    disk = on_disk(good + tail)
    assert len(read_all("/j", disk=disk)) == due, "a reader stops before it, without an error"
    problems = sej.Journal("/j", disk=disk).verify()
    assert [(problem.kind, problem.position, problem.offset) for problem in problems] == [("torn tail", len(good), due)]
    with sej.Writer("/j", disk=disk) as w:
        assert w.recovery is not None
        assert w.recovery[:4] == (FILE, len(good), due, len(tail))
        assert w.recovery.reason
        files = disk.files()
        assert files[FILE] == good
        assert files[w.recovery.kept] == tail and w.recovery.kept.startswith("/j/kept/")
        assert w.append(b"next") == due
    with sej.Writer("/j", disk=disk) as w:
        assert w.recovery is None, "reported once"
    assert sej.Journal("/j", disk=disk).verify() == []


def assert_corrupt(tail: bytes, good: bytes = BASE, due: int = 5) -> None:
    disk = on_disk(good + tail)
    before = disk.files()
    for _ in range(2):
        with pytest.raises(CorruptionError) as raised:
            sej.Writer("/j", disk=disk)
        assert (raised.value.path, raised.value.position, raised.value.offset) == (FILE, len(good), due)
    assert disk.files().items() >= before.items(), "nothing was cut"
    assert not any("/kept/" in name for name in disk.files())
    with sej.Scanner("/j", disk=disk) as s:
        for _ in range(due):
            s.read(1)
        with pytest.raises(CorruptionError) as raised:
            s.read(1)
        assert (raised.value.position, raised.value.offset) == (len(good), due)
    problem = sej.Journal("/j", disk=disk).verify()[0]
    assert (problem.kind, problem.position, problem.offset) == ("corruption", len(good), due)


def test_a_tail_cut_at_every_byte_is_cut_and_kept() -> None:
    last = encoded(5, STAMP, 7, b"the last key", b"the last value " * 3)
    for cut in range(1, len(last)):
        assert_torn(last[:cut])


def test_the_only_message_cut_at_every_byte_gives_the_segments_first_offset() -> None:
    last = encoded(9, STAMP, 7, b"key", b"value")
    for cut in range(1, len(last)):
        disk = on_disk(last[:cut], first=9)
        with sej.Writer("/j", disk=disk) as w:
            assert w.recovery is not None and (w.recovery.position, w.recovery.offset) == (0, 9)
            assert w.append(b"v") == 9


def test_zeros_after_the_start_of_a_message_are_torn_at_every_byte() -> None:
    last = encoded(5, STAMP, 7, b"key", b"value")
    for cut in range(1, len(last)):
        assert_torn(last[:cut] + bytes(len(last) - cut))
        assert_torn(last[:cut] + bytes(4096))


def test_a_lost_page_before_a_kept_one_is_corruption() -> None:
    """Such zeros are not at the end, so they are not a torn tail: nothing is cut."""
    data = packed(sample(200, size=40))
    good = next(n for n in range(200) if len(packed(sample(n + 1, size=40))) > 4096)
    whole = len(packed(sample(good, size=40)))
    assert_corrupt(data[whole:4096] + bytes(4096) + data[8192:], data[:whole], good)


def test_zeros_where_a_journal_starts_are_no_message_zero(tmp_path: Path) -> None:
    """26 zero bytes look like a message with offset 0, but for their size."""
    for size in (26, 52, 1000):
        with sej.Writer("/j", disk=on_disk(bytes(size))) as w:
            assert w.recovery is not None and w.offset == 0


TORN = {
    **{f"{size} zeros": bytes(size) for size in (1, 17, 18, 25, 26, 27, 52, 4096, 100_000)},
    "ff": b"\xff" * 40,
    "counting": bytes(range(256)),
    "negative key": HEAD[:17] + b"\xff" + bytes(30),
    "negative value": HEAD[:18] + b"\xff\xff\xff\xff" + bytes(30),
    "2 GiB": HEAD[:18] + (2**31 - 27).to_bytes(4, "big") + bytes(300),
    "too much": HEAD[:18] + (2**31 - 1).to_bytes(4, "big") + bytes(300),
    "size": encoded(5, STAMP, 0, b"k", b"v" * 50)[:-1] + b"\x01",
    "no size": encoded(5, STAMP, 0, b"k", b"v" * 50)[:-4] + bytes(4),
    "foreign torn": encoded(77, STAMP, 0, b"k", b"v" * 50)[:-4],
    "a single message after a length past the end": LIE + packed(sample(1, start=6)),
}


@pytest.mark.parametrize("name", TORN)
def test_garbage_and_lengths_that_lie_are_a_torn_tail(name: str) -> None:
    assert_torn(TORN[name])


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_chain_that_reaches_the_end_is_corruption_even_in_what_looks_like_a_value(count: int) -> None:
    assert_corrupt(LIE + packed(sample(count, start=6)))


@pytest.mark.parametrize("at", [17, -1])
def test_damage_before_one_good_message_is_corruption(at: int) -> None:
    bad = bytearray(encoded(5, STAMP, 0, b"", b"v" * 20))
    bad[at] ^= 0x80
    assert_corrupt(bytes(bad) + packed(sample(1, start=6)))


@pytest.mark.parametrize(("passed", "follower", "corrupt"), [
    (26, 6, True), (26, 7, False), (51, 6, True), (51, 7, False), (52, 7, True), (52, 8, False),
    (25, 6, False), (26, 5, False), (260, 4, False), (260, 15, True), (260, 16, False),
])  # fmt: skip
def test_only_a_message_that_is_reachable_could_belong(passed: int, follower: int, corrupt: bool) -> None:
    """At most one message for each 26 bytes that were passed over, and above the due offset."""
    tail = b"\xff" * passed + encoded(follower, STAMP, 0, b"", b"v")
    (assert_corrupt if corrupt else assert_torn)(tail)


@pytest.mark.parametrize("other", [0, 4, 6, 19, 2**40, 2**63 - 1, 2**63 + 5, 2**64 - 1])
def test_a_well_formed_message_with_another_offset_is_corruption(other: int) -> None:
    message = other.to_bytes(8, "big") + encoded(0, STAMP, 0, b"k", b"v")[8:]
    assert_corrupt(message)
    assert_corrupt(message + packed(sample(2, start=5)))


def test_a_whole_message_inside_a_torn_value_is_part_of_the_value() -> None:
    for inner in (6, 5, 0, 1001, 2**40):
        embedded = encoded(inner, STAMP, 0, b"inner", b"whole")
        outer = encoded(5, STAMP, 0, b"outer", b"x" * 60 + embedded + b"y" * 40)
        for cut in range(len(outer) - 45, len(outer)):
            assert_torn(outer[:cut])


def test_a_chain_inside_a_torn_value_that_does_not_reach_the_end_is_part_of_the_value() -> None:
    outer = encoded(5, STAMP, 0, b"", b"x" * 30 + packed(sample(3, start=6)) + b"y" * 60)
    for left in (1, 20, 50):
        assert_torn(outer[: len(outer) - 4 - left])


@settings(max_examples=60)
@given(tail=st.one_of(st.binary(min_size=1, max_size=80), st.integers(1, 200).map(bytes)))
def test_opening_always_ends_well_or_says_corruption(tail: bytes) -> None:
    disk = on_disk(BASE + tail)
    try:
        with sej.Writer("/j", disk=disk) as w:
            good = disk.files()[FILE]
            assert good.startswith(BASE)
            kept = disk.files()[w.recovery.kept] if w.recovery else b""
            assert good + kept == BASE + tail, "no byte is lost"
    except CorruptionError:
        assert disk.files()[FILE] == BASE + tail


def test_two_tails_torn_at_the_same_place_are_both_kept(tmp_path: Path) -> None:
    path = by_hand(tmp_path, (0, BASE))
    kept = []
    for tail in (b"first", b"second"):
        with open(segment(path, 0), "ab") as file:
            file.write(tail)
        with sej.Writer(path) as w:
            assert w.recovery is not None
            kept.append(Path(w.recovery.kept))
    assert [file.read_bytes() for file in kept] == [b"first", b"second"]


def test_a_torn_tail_of_many_megabytes_is_kept_whole(tmp_path: Path) -> None:
    tail = encoded(5, STAMP, 0, b"", bytes(9 << 20))[:-7]
    with sej.Writer(by_hand(tmp_path, (0, BASE + tail))) as w:
        assert w.recovery is not None and Path(w.recovery.kept).read_bytes() == tail
    assert read_all(tmp_path) == GOOD


def test_opening_costs_the_unindexed_tail_not_the_segment(tmp_path: Path) -> None:
    write(tmp_path, [b"v" * 100] * 300_000, durability="buffer")
    with open(segment(tmp_path, 0), "ab") as file:
        file.write(encoded(300_000, STAMP, 0, b"", b"torn")[:-2])
    disk = LookingDisk()
    with sej.Writer(tmp_path, disk=disk) as w:
        assert w.recovery is not None and w.offset == 300_000
    assert disk.bytes_read < 1 << 18, "the last block, the torn bytes, a few heads: not 38 MB"
    assert values(sej.Journal(tmp_path).tail(1)) == [b"v" * 100]


def test_a_writer_waits_for_the_lock_that_a_killed_one_gives_back_last(tmp_path: Path) -> None:
    write(tmp_path, [b"v"])
    held = OsFile(os.open(tmp_path / "jnl" / f"{0:016x}.jnl", os.O_RDWR), "held")
    assert held.lock()
    asked = threading.Event()

    def give_back(_: float) -> None:
        asked.set()
        held.unlock()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sej.journal.writer_lock.time.sleep", give_back)
        with sej.Writer(tmp_path) as writer:
            assert writer.append(b"w") == 1
    held.close()
    assert asked.is_set()
