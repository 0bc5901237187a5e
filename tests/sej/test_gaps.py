"""Recorded gaps: if any byte of one is changed, a scanner continues or raises an error that names the file."""

from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.gaps import Gap, count_messages, record_gap
from sej.system.disk import OS
from tests.crash.sidecars import limited

pytestmark = pytest.mark.either_codec


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    with sej.Writer(tmp_path, segment_bytes=900) as w:
        w.append_many([b"v%d" % n * 10 for n in range(60)])
    segment = sorted((tmp_path / "jnl").iterdir())[0]
    with segment.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 100)
    sej.Journal(tmp_path).repair()
    return tmp_path


def read(path: Path) -> tuple[int, list[tuple[int, int]]]:
    with sej.Scanner(path, timeout=0) as scanner:
        count = sum(1 for _ in scanner)
        return count, [gap[:2] for gap in scanner.gaps]


def test_every_flipped_bit_of_a_gap_is_noticed(journal: Path) -> None:
    (file,) = (journal / "gaps").iterdir()
    sound = file.read_bytes()
    assert read(journal)[1]
    for at in range(len(sound) - 1):  # but for the newline at its end
        for bit in range(8):
            file.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
            with limited(), pytest.raises(sej.CorruptionError, match="not a readable gap"):
                read(journal)


def test_gaps_of_two_repairs_that_overlap_are_counted_once(tmp_path: Path) -> None:
    directory = Directory(tmp_path, OS)
    sej.Writer(tmp_path).close()
    for start, stop in ((1, 6), (2, 3), (5, 8), (12, 14)):
        record_gap(directory, Gap(start, stop, "a test"))
    there = {*range(20)} - {*range(1, 8), 12, 13}
    for start in range(20):
        for stop in range(start, 20):
            assert count_messages(directory, start, stop) == len(there & {*range(start, stop)})
