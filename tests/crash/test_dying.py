"""The disk at which random histories die: the bytes that it leaves behind are those of a process that was killed."""

import os
import random
from pathlib import Path

import pytest

from tests.crash.dying import dying

CERTAIN = 1000.0


def left_by(path: Path, content: bytes, seed: int, position: int | None) -> bytes:
    """What a file holds after a process died while it wrote ten bytes: to a position, or to the end if it is empty."""
    path.write_bytes(content)
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            file = dying(random.Random(seed), CERTAIN).open(path, "edit")
            file.write(b"b" * 10) if position is None else file.write_at(b"b" * 10, position)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    return path.read_bytes()


def test_an_append_may_leave_its_beginning(tmp_path: Path) -> None:
    left = {left_by(tmp_path / "file", b"", seed, None) for seed in range(20)}
    assert len(left) > 2
    assert left <= {b"b" * count for count in range(10)}


@pytest.mark.parametrize("position", [0, 90])
def test_a_write_in_place_leaves_nothing_elsewhere(tmp_path: Path, position: int) -> None:
    content = b"a" * 100
    assert {left_by(tmp_path / "file", content, seed, position) for seed in range(20)} == {content}
