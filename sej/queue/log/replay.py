"""Apply the records of a queue's state log: compiled if :mod:`sej.codec` is, else the reference.

Every process replays what all others wrote, so this is the cost of many processes at one queue. ``SEJ_CODEC`` chooses,
as for the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import compiled

if TYPE_CHECKING:  # type checkers see the reference
    from sej.queue.log.records import good_bytes, leased, one_done, picked, picked_run
    from sej.queue.log.state import QueueState

    def apply(state: QueueState, data: bytes | memoryview) -> None:
        """Apply whole, checked records: :meth:`sej.queue.log.state.QueueState.apply`."""
elif _twin := compiled("sej.queue.log._replay_c"):
    apply, good_bytes = _twin.apply, _twin.good_bytes
    leased, one_done = _twin.leased, _twin.one_done
    picked, picked_run = _twin.picked, _twin.picked_run
else:
    from sej.queue.log.records import good_bytes, leased, one_done, picked, picked_run
    from sej.queue.log.state import QueueState

    apply = QueueState.apply

__all__ = ["apply", "good_bytes", "leased", "one_done", "picked", "picked_run"]
