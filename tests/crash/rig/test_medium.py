"""The log of the device, what a power cut makes of it, and the judges of the rig; needs no device."""

import random
import struct
from pathlib import Path

import pytest

from tests.crash.rig.machine import FILE_SYSTEMS, missing
from tests.crash.rig.medium import BLOCK_BYTES, Mark, Record, develop, kept, marks, read_log, value
from tests.crash.rig.systems import judge_journals
from tests.sej.support import write

DICE = random.Random(1)


def entry(kind: str, position: int = 0, data: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("=IIQ", ord(kind), len(data) if size is None else size, position) + data


def test_a_log_is_read_up_to_its_last_whole_record() -> None:
    whole = entry("W", 512, b"data") + entry("w", 1024, size=99) + entry("F") + entry("M", 0, b"{}")
    expected = [Record("W", 512, b"data"), Record("w", 1024, b""), Record("F", 0, b""), Record("M", 0, b"{}")]
    assert list(read_log(whole)) == expected
    for cut in range(1, 18):
        assert list(read_log(whole[:-cut])) == expected[:-1]


def test_marks_have_their_place_in_the_log() -> None:
    log = list(read_log(entry("F") + entry("M", 0, b'{"word": "put", "number": 7}')))
    assert [(mark.at, mark.word, mark.about) for mark in marks(log)] == [(1, "put", {"number": 7})]


def test_a_power_cut_keeps_what_was_flushed_and_any_of_the_rest() -> None:
    log = [Record("W", 0, b"a"), Record("F", 0, b""), Record("w", 0, b""), Record("W", 1, b"b"), Record("W", 2, b"c")]
    assert list(kept(log, 5, "none", DICE)) == [(0, b"a")]
    assert list(kept(log, 4, "all", DICE)) == [(0, b"a"), (1, b"b")]
    assert list(kept(log, 1, "none", DICE)) == [], "no flush yet"
    seen = {tuple(kept(log, 5, "random", DICE)) for _ in range(100)}
    assert len(seen) == 4 and all(left[0] == (0, b"a") for left in seen)


def test_a_large_write_may_be_kept_in_part() -> None:
    log = [Record("W", 0, b"x" * 2 * BLOCK_BYTES)]
    assert {len(list(kept(log, 1, "random", DICE))) for _ in range(50)} == {0, 1, 2}


def test_the_image_of_the_medium_is_the_base_with_what_was_kept(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(b"base" + bytes(200_000) + b"end")
    log = [Record("W", 2, b"XY"), Record("F", 0, b""), Record("W", 0, b"no")]
    develop(base, log, 3, "none", DICE, tmp_path / "cut")
    assert (tmp_path / "cut").read_bytes() == b"baXY" + bytes(200_000) + b"end"
    assert base.read_bytes()[:4] == b"base"


def test_what_a_machine_lacks_has_a_name() -> None:
    for name in FILE_SYSTEMS:
        lacking = missing(name)
        assert lacking is None or lacking.strip()


def durable(*numbers: int) -> Mark:
    return Mark(0, "durable", {"where": "", "rows": [[number, number] for number in numbers]})


def cut_within(data: bytes) -> bytes:
    return data[:100] + bytes(len(data) - 200) + data[-100:]


def test_a_part_of_a_poison_is_a_loss_only_if_it_was_acknowledged(tmp_path: Path) -> None:
    write(tmp_path, [value(0), cut_within(value(1, poison=True)), value(2)])
    judge_journals(tmp_path, [durable(0)])
    judge_journals(tmp_path, [durable(0, 2)])
    with pytest.raises(AssertionError, match="durable and not there: 1"):
        judge_journals(tmp_path, [durable(0, 1)])


def test_a_part_of_any_other_value_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, [value(0), cut_within(value(2))])
    with pytest.raises(AssertionError, match="value 2 has wrong bytes"):
        judge_journals(tmp_path, [durable(0)])
