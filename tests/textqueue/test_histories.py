"""Random histories of workers and of an editor that saves in steps: each message is done once."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.textqueue.histories import fault, history, steady


@pytest.fixture(autouse=True)
def without_limits() -> Iterator[None]:
    with steady():
        yield


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_short_set_of_histories(tmp_path: Path, first: int) -> None:
    for seed in range(first, 24, 4):
        assert fault(history(seed), tmp_path) == "", f"python -m tests.textqueue.histories {seed}"


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_random_histories(tmp_path: Path, torture_s: float) -> None:
    end = time.monotonic() + torture_s
    for seed in itertools.count(int(os.environ.get("SEJ_SEED", time.time_ns() % 2**32))):
        assert fault(history(seed), tmp_path) == "", f"python -m tests.textqueue.histories {seed}"
        if time.monotonic() >= end:
            break
