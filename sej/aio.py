"""The asyncio API: a scanner for ``async for``, and a writer with coroutines. Neither blocks the event loop.

Both run the blocking object in a thread, and add two things. Appends that wait at the same time are sent to the thread
together, so that at durability ``"disk"`` they share one sync. A cancelled read loses no message.

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
from contextlib import suppress
from functools import partial
from typing import Any, Self

import sej.reading.scanner
import sej.writing.writer
from sej.checks import PATH, options_of, refuse_pickling, refuse_unknown
from sej.errors import ClosedError
from sej.message import FIRST, BytesLike, Message, Start

__all__ = ["Scanner", "Writer"]

_BATCH = 1024
_Waiting = tuple[tuple[Any, ...], "asyncio.Future[int]"]


class Scanner:
    """A :class:`sej.Scanner` for ``async for``; takes the same arguments. One task at a time may use it."""

    __reduce__ = refuse_pickling

    def __init__(
        self, path: str | os.PathLike[str], offset: int | Start = FIRST, timeout: float | None = 0.0, **options: Any
    ) -> None:
        """Open a journal for reading; see :class:`sej.Scanner` for arguments and errors."""
        refuse_unknown("a scanner", options, options_of(sej.reading.scanner.Scanner.__init__))
        self.scanner = sej.reading.scanner.Scanner(path, offset, timeout, **options)

    async def read(self, max_messages: int = _BATCH, timeout: float | Start | None = FIRST) -> list[Message]:
        """Read messages, like :meth:`sej.Scanner.read`.

        If it is cancelled, the next read returns what was read in the meantime.
        """
        if not self.scanner.ready:
            await self._read_ahead(max_messages, timeout)
        return self.scanner.read(max_messages, timeout=0.0) if self.scanner.ready else []

    async def _read_ahead(self, max_messages: int, timeout: float | Start | None) -> bool:
        read_ahead = partial(self.scanner.prefetch, max_messages, timeout)
        waiting = asyncio.get_running_loop().run_in_executor(None, read_ahead)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.scanner.interrupt()
            while not waiting.done():  # the thread has not ended yet, and reads until then
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([waiting])
            self.scanner.resume()
            waiting.exception()  # the next read returns it again
            raise

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until the timeout passes. A second iteration continues where the first ended."""
        while True:
            ready = self.scanner._ready
            for message in ready:
                yield message
                if self.scanner._ready is not ready:
                    break  # another task has read or called seek
            else:
                if not await self._read_ahead(_BATCH, FIRST):
                    return

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self.scanner.offset

    async def close(self) -> None:
        """Close the scanner."""
        await asyncio.to_thread(self.scanner.close)

    async def __aenter__(self) -> Self:
        """Return the scanner."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the scanner."""
        await self.close()


class Writer:
    """A :class:`sej.Writer` with coroutines; takes the same arguments. Any number of tasks of one loop may use it."""

    __reduce__ = refuse_pickling

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Set the path and the options of :class:`sej.Writer`; ``async with`` or :meth:`open` opens the journal."""
        PATH("path", path)
        sej.writing.writer.check_options(**options)
        self._path = path
        self._options = options
        self._writer: sej.writing.writer.Writer | None = None
        self._waiting: list[_Waiting] = []
        self._sent: asyncio.Future[None] | None = None
        """Done as soon as no append waits; None if none has waited."""

    async def open(self) -> Self:
        """Open the journal; see :class:`sej.Writer` for errors. If it is cancelled, nothing stays open."""
        wanted = True

        def work() -> sej.writing.writer.Writer:
            writer = sej.writing.writer.Writer(self._path, **self._options)
            if not wanted:
                writer.close()
            return writer

        opening = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            self._writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            wanted = False
            opening.add_done_callback(_close_again)
            raise
        return self

    @property
    def writer(self) -> sej.writing.writer.Writer:
        """The blocking writer.

        Raises:
            ClosedError: the writer is not open.
        """
        if self._writer is None:
            raise ClosedError("the writer is not open; use `async with`, or await open()", path=os.fspath(self._path))
        return self._writer

    async def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Append one message with the writer's durability, and return its offset."""
        self.writer  # noqa: B018  # raises where it is not open
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append(((value, key, type, timestamp), done))
        if self._sent is None:
            self._sent = loop.create_future()
            loop.call_soon(self._send)
        return await done

    async def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Append messages, like :meth:`sej.Writer.append_many`."""
        return await asyncio.to_thread(self.writer.append_many, values, keys, type, timestamp)

    async def sync(self) -> None:
        """Sync, like :meth:`sej.Writer.sync`."""
        await asyncio.to_thread(self.writer.sync)

    async def close(self) -> None:
        """Finish the appends that wait, then close; if it is cancelled, close anyway."""
        try:
            if self._sent is not None:
                await asyncio.shield(self._sent)
        finally:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(None, self.writer.close))

    async def __aenter__(self) -> Self:
        """Open the journal."""
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        """Close the writer."""
        await self.close()

    # Not run by a task, because a cancelled task would leave the other appends without an answer.

    def _send(self) -> None:
        """Send all appends that wait to the thread."""
        batch, self._waiting = self._waiting, []
        rows = [row for row, _ in batch]
        sending: asyncio.Future[list[int | Exception]]
        try:
            sending = asyncio.get_running_loop().run_in_executor(None, self.writer.tail.append_each, rows)
        except RuntimeError as error:  # the loop is shutting down and starts no more threads
            sending = asyncio.get_running_loop().create_future()
            sending.set_exception(error)
        sending.add_done_callback(partial(self._answer, batch))

    def _answer(self, batch: list[_Waiting], sending: asyncio.Future[list[int | Exception]]) -> None:
        error = sending.exception()
        results = sending.result() if error is None else [error] * len(batch)
        for (_, done), result in zip(batch, results, strict=True):
            if done.done():
                continue  # its task was cancelled; the message is in the journal anyway
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)
        if self._waiting:
            self._send()
        elif self._sent is not None:
            self._sent.set_result(None)
            self._sent = None


def _close_again(opening: asyncio.Future[sej.writing.writer.Writer]) -> None:
    """Close a writer that the thread opened after ``open`` was cancelled."""
    if opening.exception() is None:
        opening.result().close()
