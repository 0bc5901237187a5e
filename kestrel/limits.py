"""The limits of a queue, of both formats: how many items, how much data, and how old an item may become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kestrel.errors import TooLargeError
from kestrel.files import Place
from sej.checks import COUNT, SECONDS, optional, require

_UNREACHED: Final = 1 << 62


class Limits:
    """The limits of a queue for size and age.

    Attributes:
        max_items: how many items it may hold; None: any number.
        max_bytes: how much data it may hold, passed by one item at most; None: any amount.
        max_item_bytes: how much data one item may have.
        max_age_ms: how long an item lives after it was put; None: without a limit.
        bounded: whether max_items or max_bytes is set.
        most_items: max_items in 64 bits; a number that no queue reaches for None.
        most_bytes: max_bytes in the same way.
    """

    def __init__(
        self,
        place: Place,
        max_items: int | None,
        max_bytes: int | None,
        max_item_bytes: int | None,
        max_age_s: float | None,
        *,
        most: int,
    ) -> None:
        """Check and keep the options; most: how much data an item of this format may have.

        Raises:
            ValueError: one of them is below 0.
        """
        count = optional(COUNT)
        require(max_items=(max_items, count), max_bytes=(max_bytes, count), max_item_bytes=(max_item_bytes, count))
        optional(SECONDS)("max_age_s", max_age_s)
        self.max_items, self.max_bytes = max_items, max_bytes
        self.max_item_bytes = most if max_item_bytes is None else min(max_item_bytes, most)
        never = max_age_s is None or max_age_s * 1000 >= _UNREACHED  # such a time does not fit into the files
        self.max_age_ms = None if max_age_s is None or never else int(max_age_s * 1000)
        self.bounded = max_items is not None or max_bytes is not None
        self.most_items = _UNREACHED if max_items is None else min(max_items, _UNREACHED)
        self.most_bytes = _UNREACHED if max_bytes is None else min(max_bytes, _UNREACHED)
        self._place = place

    def checked(self, data: bytes) -> bytes:
        """An item as ``bytes``.

        Raises:
            TypeError: it is not bytes, a bytearray or a memoryview.
            TooLargeError: it is larger than ``max_item_bytes``.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"an item must be bytes, got {type(data).__name__}")
        data = bytes(data)
        if len(data) > self.max_item_bytes:
            raise TooLargeError(
                f"an item must have at most {self.max_item_bytes} bytes (max_item_bytes, or the"
                f" limit of the format or of a file), got {len(data)}",
                path=self._place.directory,
            )
        return data

    def full(self, count: int, size: int, more: Sequence[bytes] = (b"",)) -> bool:
        """Whether a queue of count items and size bytes refuses more items. Only the last one may pass max_bytes."""
        return count + len(more) > self.most_items or size + sum(map(len, more[:-1])) >= self.most_bytes

    def expiry(self, since_ms: int, own: int | None) -> int | None:
        """When an item expires that was put at since_ms, in ms since the epoch; own: by its own expiry; None: never."""
        if self.max_age_ms is None:
            return own
        latest = since_ms + self.max_age_ms
        return latest if own is None else min(own, latest)
