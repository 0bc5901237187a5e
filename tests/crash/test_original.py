"""Sharing a journal with the original: whatever it does between two calls of ours, no acknowledged message is lost."""

import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sej
from sej import CorruptionError, LockedError, LockLostError
from sej.cli import main
from sej.system.disk import File
from tests.crash.original import Original, OriginalLockedError, frame
from tests.sej.hooks import ROOT, HookedDisk, script
from tests.sej.support import read_all, segment, values, write

Acknowledged = list[tuple[int, bytes]]
SEGMENT_BYTES = 200
"""Our sessions rotate."""


def journal(path: Path) -> Path:
    """Create a journal with a writer of ours."""
    write(path, [b"first", b"second"])
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


def append_with(w: sej.Writer | sej.SharedWriter, name: str, acknowledged: Acknowledged) -> None:
    with w:
        for at in range(3):
            value = b"%s %d" % (name.encode(), at)
            acknowledged.append((w.append(value), value))
        batch = [b"%s batch %d" % (name.encode(), at) for at in range(3)]
        acknowledged.extend(zip(w.append_many(batch), batch, strict=True))


def exclusive(path: Path, name: str, disk: HookedDisk, acknowledged: Acknowledged) -> None:
    append_with(sej.Writer(path, segment_bytes=SEGMENT_BYTES, disk=disk), name, acknowledged)


def shared(path: Path, name: str, disk: HookedDisk, acknowledged: Acknowledged) -> None:
    w = sej.SharedWriter(path, segment_bytes=SEGMENT_BYTES, lock_timeout=0.0, disk=disk)
    append_with(w, name, acknowledged)


Session = Callable[[Path, str, HookedDisk, Acknowledged], None]


def repaired(path: Path) -> None:
    """Open and close a writer. If it refuses what two writers left, follow its advice."""
    with contextlib.suppress(CorruptionError):
        sej.Writer(path).close()
        return
    sej.Journal(path).repair()
    sej.Writer(path).close()


def check(path: Path, acknowledged: Acknowledged) -> None:
    """Check that the journal is sound and has every acknowledged message once, at its acknowledged offset."""
    repaired(path)
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
    refused = LockedError, LockLostError, CorruptionError, sej.WriterFailedError
    with contextlib.suppress(*refused):
        session(path, "ours", HookedDisk(hook), acknowledged)
    reached = calls >= at
    up_to(closing, "unlink")
    with contextlib.suppress(*refused):  # a second of ours, in the middle
        session(path, "ours again", HookedDisk(lambda *_: None), acknowledged)
    up_to(coming, "unlink")
    check(path, acknowledged)
    return reached


@pytest.mark.parametrize("appending", [False, True], ids=["at its position", "at the end"])
@pytest.mark.parametrize("session", [exclusive, shared])
@pytest.mark.parametrize("stop", ["lock", "seek", "write", "unlink"])
def test_an_original_that_closes_at_any_call_of_ours(
    session: Session, stop: str, appending: bool, tmp_path: Path
) -> None:
    for at in itertools.count(1):
        if not interleave(tmp_path / str(at), session, at, stop, appending=appending):
            break
    assert at > 10


# --- what two writers leave


def overlapped(path: Path, *, over: bool = False) -> Path:
    """Two writers counted on from 5: one after the other, or one over the other's bytes."""
    first = b"".join(frame(n, b"of the one, %d" % n) for n in range(5, 9))
    if over:  # the other ends inside of message 7
        first = b"".join(frame(n, b"of the one, and long, long, %d" % n) for n in range(5, 10))
    second = b"".join(frame(n, b"of the other, and longer, %d" % n) for n in range(5, 8))
    write(path, [b"%d" % n for n in range(5)])
    with segment(path, 0).open("ab") as file:
        file.write(second + first[len(second) :] if over else first + second)
    (path / "jnl.lck").unlink()
    return path


@pytest.mark.parametrize("over", [False, True])
def test_what_two_writers_left_is_refused_until_the_advice_is_followed(tmp_path: Path, over: bool) -> None:
    before = segment(overlapped(tmp_path, over=over), 0).read_bytes()
    with pytest.raises(CorruptionError), sej.SharedWriter(tmp_path) as shared_writer:
        shared_writer.append(b"refused")
    with pytest.raises(CorruptionError) as caught:
        sej.Writer(tmp_path)
    assert segment(tmp_path, 0).read_bytes() == before, "nothing was cut"
    (command,) = re.findall(r"`sej (repair [^`]+)`", str(caught.value))
    assert main([*command.split(), "--yes"]) == 0
    with sej.Writer(tmp_path) as w:
        assert w.append(b"next") == (10 if over else 9)
    found = values(read_all(tmp_path))
    first = b"of the other, and longer, %d" if over else b"of the one, %d"
    assert found[5:8] == [first % n for n in range(5, 8)], "the first writer keeps its offsets"
    assert sej.Journal(tmp_path).verify() == []
    kept = b"".join(copy.read_bytes() for copy in (tmp_path / "kept").iterdir())
    assert over or all(b"of the other, and longer, %d" % n in kept for n in range(5, 8))


def test_messages_of_an_original_in_a_segment_that_is_not_the_last_are_refused(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_many([b"0", b"1"])
        w.end.rotate()
    with segment(tmp_path, 0).open("ab") as file:
        file.write(frame(2, b"late") + frame(3, b"later"))
    (tmp_path / "jnl.lck").unlink()
    with pytest.raises(CorruptionError, match="two writers appended at the same time"):
        sej.Writer(tmp_path)
    repaired(tmp_path)
    assert values(read_all(tmp_path)) == [b"0", b"1", b"late", b"later"]
    assert sej.Journal(tmp_path).verify() == []


# --- real processes

OURS = """
import contextlib, json, random, sys, time
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
    except sej.CorruptionError as error:
        assert "sej repair" in str(error), error
        with contextlib.suppress(sej.LockedError):
            sej.Journal(path).repair()
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
    repaired(path)
    assert sej.Journal(path).verify() == [], f"seed {seed}"
    at = {message.offset: message.value for message in read_all(path)}
    assert [one for one in acknowledged if at.get(one[0]) != one[1]] == [], f"seed {seed}"
    once = [value for value in at.values() if value.startswith(b"ours")]
    assert len(once) == len(set(once)), f"seed {seed}"


@pytest.mark.parametrize("name", ["exclusive", "shared"])
def test_two_of_ours_and_two_originals(name: str, tmp_path: Path) -> None:
    together(tmp_path, 20, 1, appending=True, name=name)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("appending", [False, True], ids=["at its position", "at the end"])
@pytest.mark.parametrize("name", ["exclusive", "shared"])
def test_writers_of_ours_and_originals_for_long(name: str, appending: bool, tmp_path: Path, torture_s: float) -> None:
    """At 2,500 turns a process a round has 10,000 opens; a short budget has one short round."""
    deadline = time.monotonic() + torture_s
    for seed in itertools.count(random.randrange(1 << 30)):
        together(tmp_path / str(seed), min(int(10 * torture_s), 2500), seed, appending=appending, name=name)
        if time.monotonic() > deadline:
            break
