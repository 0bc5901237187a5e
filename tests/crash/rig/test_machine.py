"""The machine: its faults reach programs, a power cut takes what it should, and nothing of it stays behind."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.rig.machine import FILE_SYSTEMS, Machine
from tests.crash.rig.medium import marks
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
from pathlib import Path
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
