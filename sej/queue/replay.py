"""The hot half of a queue's state log: compiled where :mod:`sej.codec` is, the reference elsewhere.

Every process replays what all the others wrote, so this is what many processes at one queue cost. ``SEJ_CODEC`` forces
the one or the other, as for the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import compiled

if TYPE_CHECKING:  # one truth for type checkers: the reference
    from sej.queue.records import done_record, good_bytes, lease_record
    from sej.queue.state import QueueState

    def apply(state: QueueState, data: bytes | memoryview) -> None:
        """Take in whole, checked records: :meth:`sej.queue.state.QueueState.apply`."""
elif _twin := compiled("sej.queue._replay_c"):
    apply, done_record, good_bytes, lease_record = _twin.apply, _twin.done_record, _twin.good_bytes, _twin.lease_record
else:
    from sej.queue.records import done_record, good_bytes, lease_record
    from sej.queue.state import QueueState

    apply = QueueState.apply

__all__ = ["apply", "done_record", "good_bytes", "lease_record"]
