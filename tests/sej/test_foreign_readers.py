"""Readers of the original may have names that ours may not: their offsets are read and moved, and retention waits."""

import os
import struct
from pathlib import Path

import pytest

import sej
from tests.sej.support import write

NAMES = ["a b", "host:1", "é", "-x", "a" * 240, "a\nb", "\udcff"]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write(tmp_path / "j", [b"%d" % number for number in range(20)], segment_bytes=100)
    (tmp_path / "j" / "ofs").mkdir(exist_ok=True)
    for name in NAMES:
        (tmp_path / "j" / "ofs" / f"{name}.ofs").write_bytes(struct.pack(">Q", 7))
    return tmp_path / "j"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_there_is_read_and_moved(journal: Path, name: str) -> None:
    with sej.Offset(journal, name) as kept:
        assert kept.value == 7
        kept.commit(9)
    assert sej.Journal(journal).offsets()[name] == 9
    assert (journal / "ofs" / f"{name}.ofs").read_bytes() == struct.pack(">Q", 9)


def test_retention_waits_for_them(journal: Path) -> None:
    sej.Journal(journal).clean(max_bytes=1)
    assert sej.Journal(journal).first_offset <= 7
    assert sej.Journal(journal).first_offset > 0


@pytest.mark.parametrize("name", ["new one", "host:2", "../ofs/a b", "/etc/passwd", "..", "", "a\0b", "b" * 300])
def test_a_new_reader_takes_no_such_name(journal: Path, name: str) -> None:
    before = sorted(os.listdir(journal / "ofs"))
    with pytest.raises(sej.InvalidNameError, match="a reader's name"):
        sej.Offset(journal, name)
    assert sorted(os.listdir(journal / "ofs")) == before
