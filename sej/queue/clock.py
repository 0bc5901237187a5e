"""The clocks of a queue, as a parameter: tests move one, nobody sleeps.

Deadlines and delays are kept on the boot-time clock, which no one sets and which goes on while the machine sleeps. The
wall clock is asked only to carry delays over a reboot.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

__all__ = ["SYSTEM", "Clock", "SystemClock", "span_ns"]

_LONGEST_NS: Final = 2**62
"""146 years: no clock that is so far ahead leaves 63 bits."""
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def span_ns(seconds: float) -> int:
    """So many seconds in nanoseconds; what is longer than 146 years, infinity too, is 146 years.

    Example:
        >>> span_ns(1.5), span_ns(float("inf")) == span_ns(1e30)
        (1500000000, True)
    """
    return int(max(min(seconds * 1e9, _LONGEST_NS), -_LONGEST_NS))


class Clock(Protocol):
    """What a queue asks."""

    def boot_ns(self) -> int:
        """Nanoseconds since the machine started; the same for every process."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, UTC."""

    def boot_id(self) -> bytes:
        """16 bytes that are another value after each start of the machine."""


class SystemClock:
    """The machine's."""

    def boot_ns(self) -> int:
        """Nanoseconds since the machine started."""
        return time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return time.time_ns()

    def boot_id(self) -> bytes:
        """Linux says it; elsewhere one value, so that leases after a reboot wait for their deadlines."""
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                return bytes.fromhex(file.read().decode("ascii").strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)


SYSTEM: Final = SystemClock()
