"""The clocks, as a parameter: tests move a clock instead of sleeping.

Deadlines and delays use the boot-time clock, which cannot be set and which continues while the machine sleeps. The wall
clock is used only to carry delays over a reboot.

In a time namespace of Linux (``unshare -T``, some containers) the boot-time clock is shifted, though the boot id is the
machine's. The shift is taken off again, so that processes of all namespaces agree on a time.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Final, Protocol

LONGEST_NS: Final = 2**62
"""146 years: no clock plus this exceeds 63 bits."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def span_ns(seconds: float) -> int:
    """Return seconds in nanoseconds; at most 146 years, for infinity too.

    Example:
        >>> span_ns(1.5), span_ns(float("inf")) == span_ns(1e30)
        (1500000000, True)
    """
    return int(max(min(seconds * 1e9, LONGEST_NS), -LONGEST_NS))


class Clock(Protocol):
    """The clocks of queues, for deadlines and delays."""

    def boot_ns(self) -> int:
        """Return nanoseconds since the machine started; the same for every process."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch, UTC."""

    def boot_id(self) -> bytes:
        """Return 16 bytes that differ after each start of the machine."""


class SystemClock:
    """The machine's clocks."""

    def boot_ns(self) -> int:
        """Return nanoseconds since the machine started."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - _shift_ns()

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return time.time_ns()

    def boot_id(self) -> bytes:
        """Return Linux's boot id; random bytes if the system hides it, so that each call looks like a restart."""
        try:
            with open(_BOOT_ID, "rb") as file:
                return bytes.fromhex(file.read().decode("ascii").strip().replace("-", ""))
        except (OSError, ValueError):
            return os.urandom(16)


@cache
def _shift_ns() -> int:
    """Return how far the boot-time clock of this process's time namespace is ahead of the machine's."""
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:  # a system without time namespaces
        return 0
    return sum(int(row[1]) * 10**9 + int(row[2]) for row in rows if row[0] == "boottime")


SYSTEM: Final = SystemClock()
