"""Claims in the ``mutex`` variable of a message: which process works on it. No I/O.

A claim is written as ``mutex=pid@host/start``. Start is when that process started
(``sej.system.locks.process_start``), because the system reuses pids. In a container, the number of its PID namespace
follows the host name after ``#``: pids of another namespace cannot be checked, like those of another host. If the
variable has less than ``ROOM`` bytes, or the claim does not fit, it is written into the ledger instead.

Any other text in the variable was written by a user, and claims the message as well, unless it can be a part of a claim
of this host (:func:`is_here`) and the ledger has no claim of the message.

**The lease** of a claim says when another worker may take the message of a process that is alive. In the ledger, a
claim names its process. If it has a lease, the deadline follows on two clocks::

    pid@host/start+BOOT.BOOT_NS.WALL_NS

==========  =========================================================================================================
BOOT        the CRC32 of the id of the machine's current start, in hexadecimal; a random number if the system has none
BOOT_NS     the deadline on the boot-time clock. This clock cannot be set, continues while the machine sleeps, and is
            the same for every process of the machine. A restart of the machine resets it
WALL_NS     the deadline on the wall clock, in nanoseconds since 1970. It survives a restart and is the same on every
            host, but it can be set
==========  =========================================================================================================

As long as the machine that wrote the claim runs, the boot-time clock decides. Elsewhere the wall clock does: on
another host, and after a restart if a new process happens to have the pid and the start time of the old one.

**Fencing.** A later claim of the same message, also by the same process, has another deadline. So this text identifies
one claim, and the worker that lost it cannot end the claim of its successor.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, NamedTuple

from sej.system.clock import Clock, span_ns
from sej.system.locks import host_name, is_running, process_host, process_start
from textqueue.format.parser import MUTEX, decode, name_of, variables_of

ROOM: Final = 24
_DIGITS: Final = 20
_NUMBERS: Final = len("4194304@/") + 10
"""The largest pid, and a start time after years: what is after it in a mutex was added by a person."""
_OWNER: Final = re.compile(rb"(\d{1,%d})@([^/\s]+)/(\d{1,%d})" % (_DIGITS, _DIGITS))

HELD: Final = re.compile(rb"\n\\[ \t]*[mM][uU][tT][eE][xX][ \t]*=[ \t]*[^\s]")
"""Finds a mutex variable that has a value."""


class MutexRoom(NamedTuple):
    """The value of ``mutex=``: its position in the message's bytes, and its bytes with the padding."""

    position: int
    data: bytes

    @property
    def holder(self) -> bytes:
        """The claim in the variable; empty if the variable is blank."""
        return self.data.strip()

    def fits(self, owner: bytes) -> bool:
        """Return whether a claim fits."""
        return len(owner) <= len(self.data)

    def filled(self, owner: bytes) -> bytes:
        """Return the bytes to write: the owner, padded with blanks."""
        return owner.ljust(len(self.data))


def mutex_of(raw: bytes) -> MutexRoom | None:
    """Return the value of a message's ``mutex`` variable, upper or lower case, or None if it has no such variable."""
    if b"\\" not in raw:
        return None
    for position, data in variables_of(raw):
        name = name_of(data)
        if name is not None and name.lower() == MUTEX:
            start = data.find(b"=") + 1
            return MutexRoom(position + start, data[start:]) if start else MutexRoom(position + len(data), b"")
    return None


def holder_of(raw: bytes) -> bytes:
    """Return the claim in a message's mutex; empty if the mutex is blank or missing."""
    mutex = mutex_of(raw)
    return b"" if mutex is None else mutex.holder


def is_claim(holder: bytes) -> bool:
    """Return whether a program wrote this claim, and not a user."""
    return _OWNER.fullmatch(holder) is not None


def owner_text(owner: str | None = None) -> bytes:
    """Return the text of a claim of another process, given as ``pid@host/start``; any other text: of this process."""
    match = _OWNER.fullmatch(owner.encode("utf-8", "replace")) if owner else None
    if match is None:
        return _own(os.getpid())[1]
    digits, host, start = match.groups()
    return digits + b"@" + _given(host) + b"/" + start


@cache
def _own(pid: int) -> tuple[bytes, bytes]:
    """Return the host of this process, as in a claim, and its claim; cached, because every claim needs them."""
    host = _bare(process_host())
    return host, b"%d@%s/%d" % (pid, host, process_start(pid) or 0)


os.register_at_fork(after_in_child=_own.cache_clear)


def is_alive(owner: bytes) -> bool:
    """Return whether a claim is valid: its process is alive, hidden from this user, or cannot be checked from here."""
    match = _OWNER.fullmatch(owner)
    if match is None:
        return True
    digits, host, start = match.groups()
    here, own = _own(os.getpid())
    if host != here:
        return True
    return owner == own if int(digits) == os.getpid() else is_running(int(digits), int(start))


def host_of(owner: bytes) -> str:
    """Return the host of a claim whose process cannot be seen from here, as it is in the claim; otherwise empty."""
    match = _OWNER.fullmatch(owner)
    if match is None or match[2] == _own(os.getpid())[0]:
        return ""
    return decode(match[2])


def is_here(raw: bytes) -> bool:
    """Return whether a program on this host has written the claim in a message's mutex, or a part of it.

    An editor that reads while the claim is written has a part of it, with blanks in place of the rest. A part of the
    pid or of the host's name alone looks like a reservation by a person, and counts as one.
    """
    mutex, host = mutex_of(raw), _own(os.getpid())[0]
    if mutex is None:
        return False
    pid, at, rest = mutex.holder.rpartition(b"@")
    name, slash, start = rest.rpartition(b"/")
    if len(pid) > _DIGITS or not (pid or b"0").isdigit():
        return False
    if at and not slash:
        return host.startswith(rest)
    if not (rest and (start or b"0").isdigit()):
        return False
    if at:
        return name == host
    begin = len(mutex.data) - len(mutex.data.lstrip()) + len(name + slash)
    fits = begin >= len(b"1@" + host + b"/") and len(mutex.data.rstrip()) <= len(host) + _NUMBERS
    return fits and host.endswith(name)


@lru_cache
def belongs_to(owner: bytes, process: str) -> bool:
    """Return whether a claim belongs to the process ``pid@host/start``."""
    claim, whole = _OWNER.fullmatch(owner), _OWNER.fullmatch(process.encode("utf-8", "replace"))
    if claim is None or whole is None or (claim[1], claim[3]) != (whole[1], whole[3]):
        return False
    return claim[2] == _given(whole[2])


def _given(host: bytes) -> bytes:
    """Return the host of a process that a caller named: without a namespace, this host's name means this namespace."""
    return _own(os.getpid())[0] if host == _bare(host_name()) else host


def _bare(host: str) -> bytes:
    return re.sub(r"[/ ~\s]", "_", host).encode("utf-8", "replace")


_LEASE: Final = re.compile(rb"\+([0-9a-f]{8})\.(\d{1,20})\.(\d{1,20})")


def claimant(owner: bytes) -> bytes:
    """Return the owner of a claim without the lease: what is written into the mutex."""
    at = owner.rfind(b"+")
    return owner[:at] if at > owner.rfind(b"/") else owner


class Leases:
    """Writes and reads deadlines. Tests move its clock."""

    def __init__(self, clock: Clock) -> None:
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

    def holder(self, owner: bytes) -> bytes:
        """Return the process of a claim, in its mutex form; empty if it has died, or if the deadline has passed."""
        process = claimant(owner)
        return process if process and is_alive(process) and not self.is_over(owner) else b""

    def over(self, leased: Mapping[int, bytes]) -> set[int]:
        """Return the positions of the claims whose deadline has passed, from their owners by position."""
        return {position for position, owner in leased.items() if self.is_over(owner)}

    def _start(self) -> bytes:
        if not self._boot:
            self._boot = b"%08x" % zlib.crc32(self._clock.boot_id())
        return self._boot
