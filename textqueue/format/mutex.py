"""Who works on a message: the text of a claim, and its room in the message's ``mutex`` variable. No I/O.

A claim is written ``mutex=pid@host/start``; start is when that process started (``sej.system.locks.process_start``),
because a pid alone may be used again. What does not fit is cut from the host's name, and the cut is marked by ``~`` and
a few digits of a hash over the whole name, so that two hosts are not taken for one. With less than ``ROOM`` bytes
behind ``mutex=`` a claim does not go into the message but into the ledger beside the file.

Anything else that stands there was written by somebody who meant it: such a message is taken.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from functools import cache
from typing import Final, NamedTuple

from sej.system.locks import host_name, process_start
from textqueue.format.grammar import MUTEX
from textqueue.format.parser import name_of, variables_of

__all__ = [
    "HELD",
    "ROOM",
    "MutexRoom",
    "holder_of",
    "is_alive",
    "is_claim",
    "is_of",
    "is_own",
    "mutex_of",
    "owner_text",
]

ROOM: Final = 24
_HASH_DIGITS: Final = 5
_OWNER: Final = re.compile(rb"(\d{1,20})@([^/\s]+)/(\d{1,20})")

HELD: Final = re.compile(rb"\n\\[ \t]*[mM][uU][tT][eE][xX][ \t]*=[ \t]*[^\s]")
"""Somewhere in these bytes a mutex is held."""


class MutexRoom(NamedTuple):
    """The text behind ``mutex=``: its position within the message's bytes, and what stands there, with its padding."""

    position: int
    data: bytes

    @property
    def holder(self) -> bytes:
        """Who is written there; empty where it is free."""
        return self.data.strip()

    def fits(self, owner: bytes) -> bool:
        """Whether a claim may be written here."""
        return len(owner) <= len(self.data)

    def filled(self, owner: bytes) -> bytes:
        """The bytes to write: the owner, padded; blanks when there is none."""
        return owner.ljust(len(self.data))


def mutex_of(raw: bytes) -> MutexRoom | None:
    """The room of a message's ``mutex`` variable, in any case of letters; None where it has none."""
    if b"\\" not in raw:
        return None
    for position, data in variables_of(raw):
        name = name_of(data)
        if name is not None and name.lower() == MUTEX:
            start = data.find(b"=") + 1
            return MutexRoom(position + start, data[start:]) if start else MutexRoom(position + len(data), b"")
    return None


def holder_of(raw: bytes) -> bytes:
    """Who is written into a message's mutex; empty where it is free, or has none."""
    mutex = mutex_of(raw)
    return b"" if mutex is None else mutex.holder


def is_claim(holder: bytes) -> bool:
    """Whether it is a claim of ours, and not what a person wrote."""
    return _OWNER.fullmatch(holder) is not None


def owner_text(room: int = 255, owner: str | None = None) -> bytes:
    """A process, as it is written into a claim, in at most room bytes; more only for numbers that no system gives.

    Args:
        room: in bytes.
        owner: ``pid@host/start`` of another process; anything else, or None, is this one.
    """
    match = _OWNER.fullmatch((owner or "").encode("utf-8", "replace"))
    if match is None:
        pid = os.getpid()
        digits, host, start = b"%d" % pid, _host(), b"%d" % _own_start()
    else:
        digits, host, start = match.groups()
    return digits + b"@" + _cut(host, room - len(digits) - len(start) - 2) + b"/" + start


def is_alive(owner: bytes, *, dead_hosts: Collection[str] = ()) -> bool:
    """Whether a claim still holds: its process lives, or nobody here can know.

    Args:
        owner: as it stands in the claim.
        dead_hosts: hosts whose processes are known to be gone; others' claims are never doubted.
    """
    match = _OWNER.fullmatch(owner)
    if match is None:
        return True
    pid, host, start = match.groups()
    if host == _cut(_host(), len(host)):
        return (_own_start() if int(pid) == os.getpid() else process_start(int(pid))) == int(start)
    return not any(host == _cut(name.encode(), len(host)) for name in dead_hosts)


def is_own(owner: bytes) -> bool:
    """Whether a claim is this process's."""
    return is_of(owner, owner_text().decode())


def is_of(owner: bytes, process: str) -> bool:
    """Whether a claim is of a process, ``pid@host/start``, whose host may be cut in the claim."""
    claim, whole = _OWNER.fullmatch(owner), _OWNER.fullmatch(process.encode("utf-8", "replace"))
    if claim is None or whole is None or (claim[1], claim[3]) != (whole[1], whole[3]):
        return False
    return claim[2] == _cut(whole[2], len(claim[2]))


@cache
def _own_start() -> int:
    """Asked for with every claim, and the system has to be asked for it."""
    return process_start(os.getpid()) or 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_start.cache_clear)


def _host() -> bytes:
    return re.sub(r"[/ ~\s]", "_", host_name()).encode("utf-8", "replace")


def _cut(host: bytes, room: int) -> bytes:
    if len(host) <= room:
        return host
    mark = b"~" + hashlib.blake2b(host, digest_size=8).hexdigest().encode()[:_HASH_DIGITS]
    return (host[: max(room - len(mark), 0)] + mark)[: max(room, 1)]
