"""Thin asyncio faces: a scanner for ``async for``, and a writer to be awaited. Neither blocks the loop.

Both run the blocking object in a thread. What it promises beyond that: appends that wait at the same time go to the
thread together, so that under ``"disk"`` they share one sync; a cancelled read takes no message with it.

Example:
    >>> import asyncio, tempfile
    >>> async def main(path: str) -> list[bytes]:
    ...     async with Writer(path) as w:
    ...         await asyncio.gather(w.append(b"a"), w.append(b"b"))
    ...     async with Scanner(path) as s:
    ...         return [message.value async for message in s]
    >>> asyncio.run(main(tempfile.mkdtemp()))
    [b'a', b'b']
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Self

import sej.scanner
import sej.writer
from sej.errors import ClosedError
from sej.message import FIRST, BytesLike, Message, Start

__all__ = ["Scanner", "Writer"]


class Scanner:
    """A :class:`sej.Scanner` for ``async for``; takes the same arguments. For one task at a time."""

    def __init__(
        self, path: str | os.PathLike[str], offset: int | Start = FIRST, timeout: float | None = 0.0, **options: Any
    ) -> None:
        """Open a journal for reading; see :class:`sej.Scanner` for arguments and errors."""
        self.scanner = sej.scanner.Scanner(path, offset, timeout, **options)

    async def read(self, max_messages: int = 1024, timeout: float | Start | None = FIRST) -> list[Message]:
        """As :meth:`sej.Scanner.read`. When it is cancelled, what was read meanwhile comes with the next read."""
        if not self.scanner.ready:
            waiting = asyncio.ensure_future(asyncio.to_thread(self.scanner.prefetch, max_messages, timeout))
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                self.scanner.interrupt()
                await waiting
                raise
        return self.scanner.read(max_messages, timeout=0.0) if self.scanner.ready else []

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Message after message; ends after the time-out."""
        while batch := await self.read():
            for message in batch:
                yield message

    @property
    def offset(self) -> int:
        """The offset behind what was read."""
        return self.scanner.offset

    async def close(self) -> None:
        """Stop."""
        await asyncio.to_thread(self.scanner.close)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


class Writer:
    """A :class:`sej.Writer` to be awaited; takes the same arguments. For any number of tasks of one loop."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Name a journal; it is opened by ``async with`` or :meth:`open`."""
        self._path = path
        self._options = options
        self._writer: sej.writer.Writer | None = None
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[int]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def open(self) -> Self:
        """Open the journal; see :class:`sej.Writer` for errors."""
        self._writer = await asyncio.to_thread(sej.writer.Writer, self._path, **self._options)
        return self

    @property
    def writer(self) -> sej.writer.Writer:
        """The writer below.

        Raises:
            ClosedError: it is not open.
        """
        if self._writer is None:
            raise ClosedError("the writer is not open: use `async with`, or await open()", path=os.fspath(self._path))
        return self._writer

    async def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Append one message, as durable as the writer says, and return its offset."""
        self.writer  # noqa: B018  # raises where it is not open
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(((value, key, type, timestamp), done))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())
        return await done

    async def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """As :meth:`sej.Writer.append_many`."""
        return await asyncio.to_thread(self.writer.append_many, values, keys, type, timestamp)

    async def sync(self) -> None:
        """As :meth:`sej.Writer.sync`."""
        await asyncio.to_thread(self.writer.sync)

    async def close(self) -> None:
        """Let appends that wait go through, then close."""
        if self._sender is not None:
            await self._sender
        await asyncio.to_thread(self.writer.close)

    async def __aenter__(self) -> Self:
        """Open."""
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def _send(self) -> None:
        """Take everything that waits to the thread, until nothing does."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            results = await asyncio.to_thread(self.writer.append_each, [row for row, _ in batch])
            for (_, done), result in zip(batch, results, strict=True):
                if done.done():
                    continue  # its task was cancelled; the message is in the journal all the same
                if isinstance(result, BaseException):
                    done.set_exception(result)
                else:
                    done.set_result(result)
