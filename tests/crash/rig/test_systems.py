"""The judges of the rig."""

from pathlib import Path

import pytest

from tests.crash.rig.medium import Mark
from tests.crash.rig.systems import judge_journals
from tests.crash.rig.values import value
from tests.sej.support import write


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
