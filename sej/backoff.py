"""The waits between attempts: doubled after each failure, and shortened at random.

Without the second, callers that failed together would return together.
"""

import random


def backoff(failures: int, first_s: float, longest_s: float, rng: random.Random | None = None) -> float:
    """Return the seconds to wait after this many failures in a row: half of the doubled wait, or more."""
    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s) * (rng or random).uniform(0.5, 1.0)
