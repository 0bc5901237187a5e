"""A week of 20 edges: killed, offline, with full disks; ``python -m benchmarks simulation`` runs 2,000."""

from pathlib import Path

import pytest

from benchmarks.growth import exponent
from benchmarks.simulation import MESSAGES, WAKES, simulate


@pytest.mark.either_codec
def test_a_hub_has_every_message_of_its_edges_once(tmp_path: Path) -> None:
    found = simulate(tmp_path, 20, kills=4, hub_kills=2)
    assert found["messages"] == 20 * WAKES * MESSAGES
    assert (found["missing"], found["wrong"]) == (0, 0)
    assert (found["killed"], found["hub killed"]) == (4, 2)
    assert found["disk full"] and found["offline"]


def test_the_exponent_of_a_growth_is_that_of_its_larger_half() -> None:
    square = {10**n: 1.0 + 1e-6 * 10 ** (2 * n) for n in range(7)}
    assert 1.9 < exponent(square) < 2.1
    assert exponent(dict.fromkeys(square, 3.0)) == pytest.approx(0.0)
