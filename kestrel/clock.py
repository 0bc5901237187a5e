"""The clock of both formats: Kestrel counts milliseconds."""

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
