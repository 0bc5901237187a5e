"""The message: what goes in and comes out. Plain values, no I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["FIRST", "LAST", "MAX_OFFSET", "NO_TIMESTAMP", "BytesLike", "Message", "Start"]

MAX_OFFSET: Final = 2**63 - 1
"""Offsets above fit the field, but not the signed integers of the programs around it."""
NO_TIMESTAMP: Final = -(2**63)
"""The timestamp of a message without a time: the original's zero time."""

BytesLike = bytes | bytearray | memoryview
"""What may be given for bytes."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Message(NamedTuple):
    """One message of a journal; immutable.

    Attributes:
        offset: its number in the journal, from 0.
        timestamp: nanoseconds since the epoch, UTC; ``NO_TIMESTAMP`` where it has none.
        type: 0 to 255, the application's own.
        key: up to 127 bytes.
        value: the payload; the whole message takes at most 2^31-1 bytes.

    Example:
        >>> Message(0, 1_500_000_000_000_000_000, 0, b"key", b"value").time
        datetime.datetime(2017, 7, 14, 2, 40, tzinfo=datetime.timezone.utc)
    """

    offset: int
    timestamp: int
    type: int
    key: bytes
    value: bytes

    @property
    def time(self) -> datetime | None:
        """The timestamp as an aware datetime, cut to microseconds; None where there is none."""
        if self.timestamp == NO_TIMESTAMP:
            return None
        return _EPOCH + timedelta(microseconds=self.timestamp // 1000)


class Start(Enum):
    """Where to start when no offset is given or kept."""

    FIRST = "first"
    """The first message that is still there."""
    LAST = "last"
    """The end: only what is appended from now on."""

    def __repr__(self) -> str:
        """As users write it: ``sej.FIRST``."""
        return f"sej.{self.name}"

    __str__ = __repr__


FIRST: Final = Start.FIRST
LAST: Final = Start.LAST
