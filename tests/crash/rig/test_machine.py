"""The machine: its faults reach programs, a power cut takes what it should, and nothing of it stays behind.

What is read and written past the cache meets them too.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sej.system.disk import OS, File
from sej.system.durable import require_stored, write_missing
from tests.crash.rig.machine import FILE_SYSTEMS, Machine
from tests.crash.rig.medium import MARKER, marks
from tests.sej.hooks import until

ROOT = Path(__file__).parent.parent.parent.parent
pytestmark = [pytest.mark.torture, pytest.mark.rig]
on_every_file_system = pytest.mark.parametrize("file_system", FILE_SYSTEMS)


@on_every_file_system
def test_after_a_failed_sync_the_cache_lies_and_the_medium_shows_it(file_system: str, device_program: Path) -> None:
    bad = b"BAD!" * 2048
    with Machine(file_system, device_program) as machine:
        file = os.open(machine.path / "f", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.write(file, b"good" * 1024)
        os.fsync(file)
        machine.mark("good")
        os.write(file, bad)
        machine.control("marker 1 BAD!")
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file)
        os.fsync(file)  # the kernel has reported it once, and calls the page clean
        assert os.pread(file, len(bad), 4096) == bad
        machine.mark("lie")
        os.close(file)
        log = machine.log()
        assert "w" in {record.kind for record in log}
        machine.stop()
        good, lie = marks(log)
        for moment in (good, lie):
            for subset in ("none", "all", "random"):
                with machine.after_cut(log, moment.at, subset, random.Random(1)) as medium:
                    data = (medium / "f").read_bytes()
                    assert data[:4096] == b"good" * 1024
                    assert bad not in data


@on_every_file_system
def test_a_flush_that_fails_is_an_error_and_the_next_one_is_not(file_system: str, device_program: Path) -> None:
    with Machine(file_system, device_program) as machine:
        file = os.open(machine.path / "f", os.O_CREAT | os.O_RDWR)
        os.write(file, b"data")
        machine.control("flush 1 1")
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file)
        os.close(file)
        assert "f" in {record.kind for record in machine.log()}


@on_every_file_system
def test_a_refused_range_is_refused_as_often_as_requested(file_system: str, device_program: Path) -> None:
    with Machine(file_system, device_program) as machine:
        machine.control(f"writes 1 0 {1 << 40}")
        file = os.open(machine.path / "f", os.O_CREAT | os.O_RDWR)
        os.write(file, b"data" * 1024)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file)
        os.close(file)
        assert [record.kind for record in machine.log()].count("w") == 1


DYING = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from tests.crash.rig.machine import Machine
machine = Machine(sys.argv[1], Path(sys.argv[2]))
print(machine.path.parent, flush=True)
sys.stdin.read()
"""


@on_every_file_system
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_test_dies(death: signal.Signals, file_system: str, device_program: Path) -> None:
    command = [sys.executable, "-c", DYING, file_system, str(device_program)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().decode().strip())
    assert str(folder / "fs") in Path("/proc/self/mounts").read_text()
    child.send_signal(death)
    child.communicate()
    until(lambda: not folder.exists())
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert not any(str(folder) in loop for loop in loops)


# --- what is read and written past the cache, on a device that refuses it

GOOD, LOST = b"good" * 1200, MARKER.encode() * 1500


class Failed(NamedTuple):
    """A machine, and a file on it whose second part is in the cache alone."""

    machine: Machine
    file: File


@contextmanager
def failed(file_system: str, program: Path) -> Iterator[Failed]:
    with Machine(file_system, program) as machine:
        writer = OS.open(machine.path / "f", "append")
        writer.write(GOOD)
        writer.sync()
        writer.write(LOST)
        machine.control(f"marker {1 << 40} {MARKER}")
        with pytest.raises(OSError, match="Input/output error"):
            writer.sync()
        writer.close()
        file = OS.open(machine.path / "f", "edit")
        file.sync()  # the kernel has reported it once
        yield Failed(machine, file)
        file.close()


@on_every_file_system
def test_what_the_device_refuses_again_stays_in_the_cache(file_system: str, device_program: Path) -> None:
    with failed(file_system, device_program) as (_, file):
        with pytest.raises(OSError, match="Input/output error"):
            mended(file, len(GOOD), len(GOOD + LOST))
        assert file.read(1 << 20, 0) == GOOD + LOST


@on_every_file_system
@pytest.mark.parametrize("piece_bytes", [700, 5000, 1 << 20])
def test_pieces_that_share_a_block_are_all_mended(file_system: str, piece_bytes: int, device_program: Path) -> None:
    with failed(file_system, device_program) as (machine, file):
        machine.control("ok")
        for at in range(len(GOOD), len(GOOD + LOST), piece_bytes):
            mended(file, at, min(at + piece_bytes, len(GOOD + LOST)))
        file.close()
        machine.unmount()
        machine.mount()
        assert (machine.path / "f").read_bytes() == GOOD + LOST


def mended(file: File, start: int, end: int) -> None:
    """Renew the bytes, as a process that doubts them does."""
    data = file.read(end - start, start)
    if write_missing(file, data, start):
        file.sync()
        require_stored(file, data, start)
