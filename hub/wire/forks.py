"""gRPC and forks: a child can be forked from a program that uses gRPC, but it cannot use gRPC itself.

gRPC has support of forks of its own. With it, version 1.85 ended up to half of the children by a signal, also those
that only forked to run another program, and the parent could wait without end for calls in other threads. So
:mod:`hub.wire` turns it off, unless the environment has a setting. Then forking is safe, but the child has gRPC's state
without its threads: a call would hang, or end the child.
"""

from __future__ import annotations

import os
from typing import Final

from sej.errors import ClosedError
from sej.mutex import notice_fork, watch_forks


class _Use:
    """Whether this process, or one that it was forked from, has used gRPC."""

    def __init__(self) -> None:
        """Nothing was used."""
        self._started = self._lost = False

    def start(self, what: str) -> None:
        """See :func:`use_grpc`."""
        notice_fork()
        if self._lost:
            raise ClosedError(
                f"{what} cannot be used in this process: it was forked from one that used gRPC, which does not work"
                ' after that; start it with the method "spawn" or "forkserver" of multiprocessing, or as a program'
            )
        if not self._started:
            self._started = True
            watch_forks(self)

    def _after_fork(self) -> None:
        self._lost = os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == "0"


_use: Final = _Use()
_kept: Final[list[object]] = []


def keep_unused(inherited: object) -> None:
    """Keep what a forked child got from its parent: gRPC would wait for its threads when it is freed."""
    _kept.append(inherited)


def use_grpc(what: str) -> None:
    """Check that gRPC works in this process, before a channel or a server is made, or used.

    Args:
        what: what needs it, for the error: ``"the client of 10.0.0.1:7000"``.

    Raises:
        ClosedError: the process was forked from one that had used gRPC.
    """
    _use.start(what)
