"""The message: what is appended to a journal and read from it. Plain values, no I/O."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime, timedelta

MAX_OFFSET: Final = 2**63 - 1
"""The largest offset. Larger ones fit the field, but not the signed integers of other programs."""
NO_TIMESTAMP: Final = -(2**63)
"""The timestamp of a message without a time: the original's zero time."""

BytesLike = bytes | bytearray | memoryview
"""The types that are accepted as bytes."""


@cache
def _calendar() -> tuple[datetime, type[timedelta]]:
    """Return the epoch, and the class of durations. The module is imported here because its import takes long."""
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC), timedelta


class Message(NamedTuple):
    """One message of a journal; immutable.

    Attributes:
        offset: its number in the journal, from 0.
        timestamp: nanoseconds since the epoch, UTC; ``NO_TIMESTAMP`` if it has none.
        type: 0 to 255; its meaning is up to the application.
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
        """The timestamp as an aware datetime, cut to microseconds; None if the message has none."""
        if self.timestamp == NO_TIMESTAMP:
            return None
        epoch, duration = _calendar()
        return epoch + duration(microseconds=self.timestamp // 1000)


class Start(Enum):
    """Where to start if no offset is passed or kept."""

    FIRST = "first"
    """The first message that still exists."""
    LAST = "last"
    """The end: only messages appended from now on."""

    def __repr__(self) -> str:
        """Return the name as users write it: ``sej.FIRST``."""
        return f"sej.{self.name}"

    __str__ = __repr__


FIRST: Final = Start.FIRST
LAST: Final = Start.LAST


def text_or_b64(name: str, data: bytes) -> dict[str, str]:
    """Return the field of JSON for bytes: ``name`` if they are UTF-8, else ``name_b64``."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_b64": b64encode(data).decode()}
