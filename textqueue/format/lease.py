"""The lease of a claim: when another worker may take the message of a process that is alive. No I/O.

In the ledger, a claim names its process. If it has a lease, the deadline follows on two clocks::

    pid@host/start+BOOT.BOOT_NS.WALL_NS

==========  =========================================================================================================
BOOT        the CRC32 of the id of the machine's current start, in hexadecimal; of 16 zeros if the system hides the id
BOOT_NS     the deadline on the boot-time clock. This clock cannot be set, continues while the machine sleeps, and is
            the same for every process of the machine. A restart of the machine resets it
WALL_NS     the deadline on the wall clock, in nanoseconds since 1970. It survives a restart and is the same on every
            host, but it can be set
==========  =========================================================================================================

As long as the machine that wrote the claim runs, the boot-time clock decides. Elsewhere the wall clock does: on another
host, and after a restart if a new process happens to have the pid and the start time of the old one.

**Fencing.** A later claim of the same message, also by the same process, has another deadline. So this text identifies
one claim, and the worker that lost it cannot end the claim of its successor.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final

from sej.system.clock import Clock, is_hidden, span_ns

_LEASE: Final = re.compile(rb"\+([0-9a-f]{8})\.(\d{1,20})\.(\d{1,20})")


def claimant(owner: bytes) -> bytes:
    """Return the owner of a claim without the lease: what is written into the mutex."""
    at = owner.rfind(b"+")
    return owner[:at] if at > owner.rfind(b"/") else owner


class Leases:
    """Writes and reads deadlines. Tests move its clock."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock."""
        self._clock = clock
        self._boot = b""

    def leased(self, owner: bytes, lease_s: float | None) -> bytes:
        """Return the owner of a claim with a lease that begins now; None: the claim has no deadline."""
        if lease_s is None or lease_s == float("inf"):
            return owner
        span = span_ns(lease_s)
        return b"%s+%s.%d.%d" % (owner, self._start(), self._clock.boot_ns() + span, self._clock.wall_ns() + span)

    def is_over(self, owner: bytes) -> bool:
        """Return whether the deadline of a claim has passed. A claim without a lease has none."""
        lease = _LEASE.fullmatch(owner, len(claimant(owner)))
        if lease is None:
            return False
        if lease[1] == self._start():
            return self._clock.boot_ns() >= int(lease[2])
        return self._clock.wall_ns() >= int(lease[3])

    def over(self, leased: Mapping[int, bytes]) -> set[int]:
        """Return the positions of the claims whose deadline has passed.

        Args:
            leased: the owners of the claims that have a lease, by position.
        """
        return {position for position, owner in leased.items() if self.is_over(owner)}

    def _start(self) -> bytes:
        if not self._boot:
            boot_id = self._clock.boot_id()
            self._boot = b"%08x" % zlib.crc32(bytes(16) if is_hidden(boot_id) else boot_id)
        return self._boot
