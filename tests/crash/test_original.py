"""Sharing a journal with the original: whatever it does between two calls of ours, no acknowledged message is lost."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sej
from sej import CorruptionError, LockedError, LockLostError
from sej.journal.directory import Directory
from sej.journal.medium import kept_position
from sej.journal.retention import readers_lock
from sej.system.disk import OS, File
from sej.writing.overlap import has_surplus
from tests.crash.original import Original, OriginalLockedError, frame
from tests.sej.hooks import ROOT, HookedDisk, script
from tests.sej.support import by_hand, read_all, segment, values

Acknowledged = list[tuple[int, bytes]]
SEGMENT_BYTES = 200
"""Our sessions rotate."""


def journal(path: Path) -> Path:
    """Create a journal with a writer of ours."""
    with sej.Writer(path) as w:
        w.append_many([b"first", b"second"])
    return path


def up_to(steps: Iterator[str], last: str) -> None:
    """Run an original up to one of its calls. If it is refused the lock, it does nothing more."""
    with contextlib.suppress(OriginalLockedError):
        for step in steps:
            if step == last:
                return


def closed_not_unlinked(path: Path) -> Iterator[str]:
    """Run an original that stops before its last call, the removal of the lock file."""
    steps = Original(path).turn([b"of the one that closes"])
    up_to(steps, "close lock")
    os.utime(path / "jnl.lck", (1, 1))  # long ago, so that no writer waits for the removal
    return steps


def exclusive(path: Path, name: str, disk: HookedDisk, acknowledged: Acknowledged) -> None:
    with sej.Writer(path, segment_bytes=SEGMENT_BYTES, disk=disk) as w:
        for at in range(3):
            value = b"%s %d" % (name.encode(), at)
            acknowledged.append((w.append(value), value))
        batch = [b"%s batch %d" % (name.encode(), at) for at in range(3)]
        acknowledged.extend(zip(w.append_many(batch), batch, strict=True))


def shared(path: Path, name: str, disk: HookedDisk, acknowledged: Acknowledged) -> None:
    with sej.SharedWriter(path, segment_bytes=SEGMENT_BYTES, lock_timeout=0.0, disk=disk) as w:
        for at in range(3):
            value = b"%s %d" % (name.encode(), at)
            acknowledged.append((w.append(value), value))
        batch = [b"%s batch %d" % (name.encode(), at) for at in range(3)]
        acknowledged.extend(zip(w.append_many(batch), batch, strict=True))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: these tests open hundreds of journals, and none is about syncs."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


Session = Callable[[Path, str, HookedDisk, Acknowledged], None]


def check(path: Path, acknowledged: Acknowledged) -> None:
    """Check that the journal is sound and has every acknowledged message once, at its acknowledged offset."""
    with sej.Writer(path):
        pass
    assert sej.Journal(path).verify() == []
    found = [(message.offset, message.value) for message in read_all(path)]
    assert [one for one in acknowledged if found.count(one) != 1] == []
    ours = [value for _, value in found if value.startswith(b"ours")]
    assert len(ours) == len(set(ours))


def interleave(path: Path, session: Session, at: int, stop: str, *, appending: bool) -> bool:
    """Let one original unlink before the at-th call of our session. The next one runs up to stop, and ends after it.

    Returns:
        Whether our session came to this call.
    """
    closing = closed_not_unlinked(journal(path))
    coming = Original(path, appending=appending).turn([b"of the next, %d" % n for n in range(3)])
    calls = 0

    def hook(verb: str, file: File | None, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            up_to(closing, "unlink")
            up_to(coming, stop)

    acknowledged: Acknowledged = []
    with contextlib.suppress(LockedError, LockLostError, sej.WriterFailedError):
        session(path, "ours", HookedDisk(hook), acknowledged)
    reached = calls >= at
    up_to(closing, "unlink")
    with contextlib.suppress(LockedError, LockLostError, sej.WriterFailedError):  # a second of ours, in the middle
        session(path, "ours again", HookedDisk(lambda *_: None), acknowledged)
    up_to(coming, "unlink")
    check(path, acknowledged)
    return reached


@pytest.mark.parametrize("appending", [False, True], ids=["at its position", "at the end"])
@pytest.mark.parametrize("session", [exclusive, shared])
@pytest.mark.parametrize("stop", ["lock", "seek", "write", "unlink"])
def test_an_original_that_closes_at_any_call_of_ours(
    session: Session, stop: str, appending: bool, memory: Path
) -> None:
    for at in itertools.count(1):
        if not interleave(memory / str(at), session, at, stop, appending=appending):
            break
    assert at > 10


# --- mending


def overlapped(path: Path, *, over: bool = False) -> Path:
    """Two writers counted on from 5: one after the other, or one over the other's bytes."""
    first = b"".join(frame(n, b"of the one, %d" % n) for n in range(5, 9))
    if over:  # the other ends inside of message 7
        first = b"".join(frame(n, b"of the one, and long, long, %d" % n) for n in range(5, 10))
    second = b"".join(frame(n, b"of the other, and longer, %d" % n) for n in range(5, 8))
    with sej.Writer(path) as w:
        w.append_many([b"%d" % n for n in range(5)])
    with segment(path, 0).open("ab") as file:
        file.write(second + first[len(second) :] if over else first + second)
    (path / "jnl.lck").unlink()
    return path


def test_messages_of_two_writers_are_all_there_after_the_next_opening(tmp_path: Path) -> None:
    overlapped(tmp_path)
    with pytest.raises(CorruptionError):
        read_all(tmp_path)
    before = segment(tmp_path, 0).read_bytes()
    with sej.Writer(tmp_path) as w:
        assert w.offset == 12
        assert w.recovery is not None
        assert (w.recovery.path, w.recovery.offset) == (str(segment(tmp_path, 0)), 9)
        assert "2 writers appended at the same time: 3 messages" in w.recovery.reason
        assert Path(w.recovery.kept).read_bytes() == before[w.recovery.position :]
    found = read_all(tmp_path)
    assert values(found[5:9]) == [b"of the one, %d" % n for n in range(5, 9)], "who was first keeps the offsets"
    assert values(found[9:]) == [b"of the other, and longer, %d" % n for n in range(5, 8)]
    assert sej.Journal(tmp_path).verify() == []
    assert os.listdir(tmp_path / "txn") == [] == os.listdir(tmp_path / "tmp")
    with sej.Writer(tmp_path) as w:
        assert w.recovery is None, "reported once"
    doctor = subprocess.run([sys.executable, "-m", "sej", "doctor", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert "two writers" in doctor.stdout and doctor.returncode == 1
    (kept,) = (tmp_path / "kept").iterdir()
    kept.unlink()
    assert (
        subprocess.run([sys.executable, "-m", "sej", "doctor", tmp_path], cwd=ROOT, capture_output=True).returncode == 0
    )


def test_the_end_of_a_message_that_another_writer_wrote_over_is_cut(tmp_path: Path) -> None:
    overlapped(tmp_path, over=True)
    with sej.Writer(tmp_path) as w:
        assert w.recovery is not None and ".overlap." in w.recovery.kept
    found = values(read_all(tmp_path))[5:]
    there = [b"of the other, and longer, %d" % n for n in range(5, 8)]
    assert found == there + [b"of the one, and long, long, %d" % n for n in range(8, 10)]
    assert sej.Journal(tmp_path).verify() == []


def test_messages_that_an_original_appends_to_a_segment_that_is_not_the_last_are_moved(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_many([b"0", b"1"])
        w.tail.rotate()
        w.append_many([b"2", b"3"])
    with segment(tmp_path, 0).open("ab") as file:
        file.write(frame(2, b"late") + frame(3, b"later") + frame(4, b"last"))
    (tmp_path / "jnl.lck").unlink()
    with sej.Writer(tmp_path) as w:
        assert w.offset == 7 and w.recovery is not None
    assert values(read_all(tmp_path)) == [b"0", b"1", b"2", b"3", b"late", b"later", b"last"]
    assert sej.Journal(tmp_path).verify() == []


class Killed(BaseException):
    """What stops a process at a call."""


def opened_until(path: Path, at: int) -> bool:
    """Open and close a writer that is killed at its at-th call; return whether it ended before."""
    calls = itertools.count(1)

    def hook(*_: object) -> None:
        if next(calls) >= at:
            raise Killed

    writer = None
    try:
        writer = sej.Writer(path, disk=HookedDisk(hook))
        writer.close()
    except Killed:
        if writer is not None:
            writer.tail.abandon()  # what the kernel does with the descriptors of a process that dies
        return False
    return True


def test_a_mending_that_is_stopped_at_any_call_is_finished_by_the_next_opening(memory: Path) -> None:
    for at in itertools.count(1):
        path = overlapped(memory / str(at))
        done = opened_until(path, at)
        with sej.Writer(path):
            pass
        found = values(read_all(path))
        assert found[:9] == [b"%d" % n for n in range(5)] + [b"of the one, %d" % n for n in range(5, 9)], at
        assert found[9:] == [b"of the other, and longer, %d" % n for n in range(5, 8)], at
        assert sej.Journal(path).verify() == []
        if done:
            break
    assert at > 10


def reopened(path: Path) -> str:
    """Open and close a writer; return the text of the error."""
    try:
        sej.Writer(path).close()
    except sej.SejError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("more", [False, True])
def test_a_mending_that_was_stopped_is_finished_without_its_copy(memory: Path, more: bool) -> None:
    """A person has removed what `sej doctor` reports in ``kept/``, and an original may have appended meanwhile."""
    refused = 0
    for at in itertools.count(1):
        path = overlapped(memory / str(at))
        done = opened_until(path, at)
        copies = {copy: copy.read_bytes() for copy in (path / "kept").glob("*") if not done}
        for copy in copies:
            copy.unlink()
        if more and not done and any((path / "txn").glob("overlap~*")):
            with segment(path, 0).open("ab") as file:
                file.write(frame(8, b"of the other, and longer, 8"))
        refusal = reopened(path)
        if refusal:
            assert more
            assert "Restore the file" in refusal
            refused += 1
            for copy, data in copies.items():
                copy.write_bytes(data)
            assert not reopened(path)
        found = values(read_all(path))
        assert set(found) >= {b"of the one, %d" % n for n in range(5, 9)}
        assert set(found) >= {b"of the other, and longer, %d" % n for n in range(5, 8)}
        assert sej.Journal(path).verify() == []
        if done:
            break
        if not more:
            assert len(found) == len(set(found)) == 12
    assert refused > 0 or not more


def test_the_kept_position_never_covers_what_follows_the_cut(memory: Path) -> None:
    for at in itertools.count(1):
        path = overlapped(memory / str(at))
        one = Directory(path, OS)
        with contextlib.closing(OS.open(segment(path, 0), "edit")) as file:
            kept_position(one).store(file, 0, file.size(), 8)  # a process of ours synced all of it
        done = opened_until(path, at)
        with contextlib.closing(OS.open(segment(path, 0), "edit")) as file:
            size = file.size()
            file.write_at(bytes(4096), size)  # what another program appends is not on the medium
            known = kept_position(one).load(file, 0)
        assert known is not None and known.position <= size, at
        if done:
            break
    assert at > 10


def test_changed_bits_are_never_mended(memory: Path) -> None:
    """Beside an original, too: of every bit but those of the last message's offset."""
    data = b"".join(frame(n, b"the value of %d" % n) for n in range(6))
    size = len(data) // 6
    last_offset = range(5 * size * 8, (5 * size + 8) * 8)
    path = by_hand(memory, (0, b""))
    with sej.Writer(path):
        pass
    file = segment(path, 0)
    for bit in set(range(4 * size * 8, 6 * size * 8)) - set(last_offset):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        (path / "jnl.lck").write_bytes(b"")
        os.utime(path / "jnl.lck", (1, 1))
        try:
            with sej.Writer(path) as w:
                assert w.recovery is None or ".torn." in w.recovery.kept, bit
        except CorruptionError:
            assert file.read_bytes() == changed
        for left in (path / "idx").glob("*"):
            left.unlink()


# --- real processes

OURS = """
import json, random, sys, time
import sej
path, name, turns, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
shared = sej.SharedWriter(path) if name.startswith("shared") else None
w = None
done = 0
acknowledged = []
while done < turns:
    try:
        w = shared or sej.Writer(path)
        done += 1
        for at in range(rng.randrange(1, 4)):
            value = f"ours {name} {done} {at}"
            acknowledged.append((w.append(value.encode()), value))
        if not shared:
            w.close()
    except sej.LockedError:
        time.sleep(0.0005)
    except sej.LockLostError:
        if w and not shared:
            w.close()
if shared:
    shared.close()
print(json.dumps(acknowledged))
"""


def together(path: Path, turns: int, seed: int, *, appending: bool, name: str) -> None:
    """Two of ours and two originals; every process opens so many times.

    Two originals that write at their positions destroy each other's bytes without any of ours: then there is one.
    """
    journal(path)
    mode = "append" if appending else "write"
    originals = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.original", path, f"original-{n}", str(turns), str(seed + n), mode],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        for n in range(1 + appending)
    ]
    ours = [script(OURS, path, f"{name}-{n}", turns, seed + n) for n in range(2)]
    acknowledged: Acknowledged = []
    for child in ours:
        found, _ = child.communicate()
        assert child.returncode == 0, f"seed {seed}"
        acknowledged.extend((offset, value.encode()) for offset, value in json.loads(found))
    for original in originals:
        assert original.wait() == 0
    with sej.Writer(path):
        pass
    assert sej.Journal(path).verify() == [], f"seed {seed}"
    at = {message.offset: message.value for message in read_all(path)}
    assert [one for one in acknowledged if at.get(one[0]) != one[1]] == [], f"seed {seed}"
    once = [value for value in at.values() if value.startswith(b"ours")]
    assert len(once) == len(set(once)), f"seed {seed}"


@pytest.mark.parametrize("name", ["exclusive", "shared"])
def test_two_of_ours_and_two_originals(name: str, memory: Path) -> None:
    together(memory, 20, 1, appending=True, name=name)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("appending", [False, True], ids=["at its position", "at the end"])
@pytest.mark.parametrize("name", ["exclusive", "shared"])
def test_writers_of_ours_and_originals_for_long(name: str, appending: bool, memory: Path, torture_s: float) -> None:
    """At 2,500 turns a process a round has 10,000 opens; a short budget has one short round."""
    deadline = time.monotonic() + torture_s
    for seed in itertools.count(random.randrange(1 << 30)):
        together(memory / str(seed), min(int(10 * torture_s), 2500), seed, appending=appending, name=name)
        if time.monotonic() > deadline:
            break


def test_what_two_writers_left_is_looked_for_while_no_merge_is_at_work(tmp_path: Path) -> None:
    """A segment that was just joined has the messages of its successors too: it would be cut."""
    with sej.Writer(tmp_path) as writer:
        writer.append(b"v")
    (tmp_path / "jnl.lck").unlink()  # as an original leaves it
    done = threading.Event()

    def look() -> None:
        assert not has_surplus(Directory(tmp_path, OS))
        with sej.Writer(tmp_path) as late:
            late.append(b"w")
        done.set()

    thread = threading.Thread(target=look)
    with readers_lock(Directory(tmp_path, OS)):
        thread.start()
        assert not done.wait(0.2)
    thread.join(30)
    assert done.is_set()
