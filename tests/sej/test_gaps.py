"""Recorded gaps: if any byte of one is changed, a scanner continues or raises an error that names the file."""

from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.gaps import Gap, count_messages, record_gap
from sej.system.disk import OS

pytestmark = pytest.mark.either_codec


def test_gaps_of_two_repairs_that_overlap_are_counted_once(tmp_path: Path) -> None:
    directory = Directory(tmp_path, OS)
    sej.Writer(tmp_path).close()
    for start, stop in ((1, 6), (2, 3), (5, 8), (12, 14)):
        record_gap(directory, Gap(start, stop, "a test"))
    there = {*range(20)} - {*range(1, 8), 12, 13}
    for start in range(20):
        for stop in range(start, 20):
            assert count_messages(directory, start, stop) == len(there & {*range(start, stop)})
