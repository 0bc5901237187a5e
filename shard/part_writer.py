"""One shard's writer: takes its part of a batch as the twin encodes it, which costs less than a batch of its own.

What it relies on: :class:`sej.writing.resting.RestingWriter`, whose buffer takes messages that are encoded already, and
:class:`shard.routing.Parts`, which checked them.
"""

from __future__ import annotations

from sej.writing.resting import RestingWriter
from shard.routing import Parts

__all__ = ["PartWriter"]


class PartWriter(RestingWriter):
    """A :class:`~sej.writing.resting.RestingWriter` for :class:`shard.Writer`."""

    def append_part(self, parts: Parts, index: int) -> range:
        """Append a shard's part of a batch. Under ``"disk"`` the caller commits it: many shards at a time.

        Raises:
            WriterFailedError: a write failed, now or before.
            ClosedError: the writer was closed.
        """
        with self._mutex:
            if self._closed or self._failure is not None:  # whose process this is the owner has looked at
                self._refuse()
            buffer = self._buffer
            buffer.freeze()
            try:
                span = parts.pour(index, buffer)
                if self._durability != "buffer" or len(buffer.pending()) >= buffer.limit:
                    buffer.flush()
            finally:
                buffer.thaw()
        return span

    def commit(self, offset: int) -> None:
        """Return once every message below offset is durable, at rest too.

        Raises:
            WriterFailedError: a sync failed.
        """
        self._syncer.commit(offset)

    def rest(self) -> None:
        """Hand everything to the kernel, under ``"disk"`` to the disk, then give back the descriptors and the lock.

        Raises:
            WriterFailedError: the last write or sync failed, now or before.
        """
        if self._durability == "disk":
            self.sync()
        super().rest()
