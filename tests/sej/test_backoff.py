"""The waits between attempts."""

import random

import pytest

from sej.durations import backoff


@pytest.mark.parametrize("rng", [None, random.Random(1)])
def test_waits_double_up_to_the_longest_with_jitter(rng: random.Random | None) -> None:
    waits = [backoff(failures, 1.0, 16.0, rng) for failures in range(1, 2000)]
    limits = [min(16.0, 2.0 ** min(failures, 60)) for failures in range(1999)]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    assert len(set(waits)) > 1900
