"""What is read and written past the cache, on a device that refuses it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sej.system.disk import OS, File
from sej.system.durable import require_stored, write_missing
from tests.crash.rig.machine import FILE_SYSTEMS, Machine
from tests.crash.rig.values import MARKER

pytestmark = [pytest.mark.torture, pytest.mark.rig]
on_every_file_system = pytest.mark.parametrize("file_system", FILE_SYSTEMS)
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
