"""The asyncio API: a scanner for ``async for``, a writer, an offset and a consumer with coroutines.

None blocks the event loop: each runs the blocking object in a thread, and adds three things. Appends that wait at the
same time are sent to the thread together, so that at durability ``"disk"`` they share one sync. A cancelled read loses
no message. The handler of a consumer is a coroutine function.

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
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol, Self, TypeVar

import sej.reading.consumer
import sej.reading.offset
import sej.reading.scanner
import sej.writing.writer
from sej.checks import CALLABLE, PATH, Seconds, options_of, refuse_pickling, refuse_unknown
from sej.errors import ClosedError
from sej.journal.directory import Directory, wait_for_journal
from sej.message import FIRST, LAST, BytesLike, Message, Start
from sej.reading.attempts import InterruptError
from sej.system.disk import absolute_path

__all__ = ["Consumer", "Offset", "Scanner", "Writer"]

_BATCH = 1024
_Waiting = tuple[tuple[Any, ...], "asyncio.Future[int]"]
_Call = tuple[list[Message], "Future[None]"]


class _Closes(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closes)


def _thread(name: str) -> ThreadPoolExecutor:
    """Return a thread for what waits for messages: many that wait would use up the loop's own threads."""
    return ThreadPoolExecutor(1, f"sej-{name}")


class _Opening(ABC):
    """An object that an ``async with`` block opens and closes. It cannot be pickled."""

    __reduce__ = refuse_pickling

    @abstractmethod
    async def open(self) -> Self: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        """Open the object and return it."""
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        """Close the object."""
        await self.close()


def _required(opened: _Opened | None, what: str, path: str) -> _Opened:
    """Return what is open; raise an error if it is not."""
    if opened is None:
        raise ClosedError(f"{what} is not open; use `async with`, or await open()", path=path)
    return opened


async def _arrived(directory: Directory, timeout: float | None) -> bool:
    """Wait until a journal exists, in a thread; return False if it was there already."""
    stop = threading.Event()
    wait = partial(wait_for_journal, directory, timeout, stop.is_set)
    thread = _thread("arrival")
    waiting = asyncio.get_running_loop().run_in_executor(thread, wait)
    thread.shutdown(wait=False)
    try:
        return bool(await asyncio.shield(waiting))
    except asyncio.CancelledError:
        stop.set()
        raise


class Scanner(_Opening):
    """A :class:`sej.Scanner` for ``async for``; takes the same arguments. One task at a time may use it.

    With ``wait=True`` the first read waits for the journal, or ``async with`` or :meth:`open` does.
    """

    def __init__(
        self, path: str | os.PathLike[str], offset: int | Start = FIRST, timeout: Seconds | None = 0.0, **options: Any
    ) -> None:
        """Open a journal for reading; see :class:`sej.Scanner` for arguments and errors."""
        refuse_unknown("a scanner", options, options_of(sej.reading.scanner.Scanner.__init__))
        self._directory, self._timeout = sej.reading.scanner.check_arguments(path, offset, timeout, **options)
        self._offset = offset
        waits = options.pop("wait", False)
        self._open = partial(sej.reading.scanner.Scanner, path, timeout=timeout, **options)
        self._scanner = None if waits else self._open(offset=offset)
        self._thread = _thread("scanner")

    @property
    def scanner(self) -> sej.reading.scanner.Scanner:
        """The blocking scanner.

        Raises:
            ClosedError: with ``wait=True``, the scanner is not open yet.
        """
        return _required(self._scanner, "the scanner", self._directory.path)

    async def open(self) -> Self:
        """With ``wait=True``, wait for the journal and open it; otherwise it is open already.

        Raises:
            SejError: as :class:`sej.Scanner`.
        """
        if self._scanner is None:
            arrived = await _arrived(self._directory, self._timeout)
            offset = FIRST if arrived and self._offset is LAST else self._offset
            self._scanner = await asyncio.to_thread(self._open, offset=offset)
        return self

    async def read(self, max_messages: int = _BATCH, timeout: Seconds | Start | None = FIRST) -> list[Message]:
        """Read messages, like :meth:`sej.Scanner.read`.

        If it is cancelled, the next read returns what was read in the meantime.
        """
        if self._scanner is None:
            await self.open()
        if not self.scanner.ready:
            await self._read_ahead(max_messages, timeout)
        return self.scanner.read(max_messages, timeout=0.0) if self.scanner.ready else []

    async def _read_ahead(self, max_messages: int, timeout: Seconds | Start | None) -> bool:
        read_ahead = partial(self.scanner.prefetch, max_messages, timeout)
        waiting = asyncio.get_running_loop().run_in_executor(self._thread, read_ahead)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.scanner.interrupt()
            await _ended(waiting)  # it reads until then
            self.scanner.resume()
            waiting.exception()  # the next read returns it again
            raise

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until the timeout passes. A second iteration continues where the first ended."""
        if self._scanner is None:
            await self.open()
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
        self._thread.shutdown(wait=False)
        if self._scanner is not None:
            await asyncio.to_thread(self._scanner.close)


class Writer(_Opening):
    """A :class:`sej.Writer` with coroutines; takes the same arguments. Any number of tasks of one loop may use it."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Set the path and the options of :class:`sej.Writer`; ``async with`` or :meth:`open` opens the journal."""
        PATH("path", path)
        sej.writing.writer.check_options(**options)
        self._path = absolute_path(path)
        self._options = options
        self._writer: sej.writing.writer.Writer | None = None
        self._waiting: list[_Waiting] = []
        self._sent: asyncio.Future[None] | None = None
        """Done as soon as no append waits; None if none has waited."""
        self._closing = False
        """Whether :meth:`close` was called: an append would make it wait longer."""

    async def open(self) -> Self:
        """Open the journal; see :class:`sej.Writer` for errors. If it is cancelled, nothing stays open."""
        self._closing = False
        self._writer = await _opened(partial(sej.writing.writer.Writer, self._path, **self._options))
        return self

    @property
    def writer(self) -> sej.writing.writer.Writer:
        """The blocking writer.

        Raises:
            ClosedError: the writer is not open.
        """
        return _required(self._writer, "the writer", self._path)

    async def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one message with the writer's durability, and return its offset.

        Raises:
            ClosedError: the writer is not open, or is being closed.
            SejError: as :meth:`sej.Writer.append`.
        """
        if expect_offset is not None:
            return (await self.append_many((value,), (key,), type, timestamp, expect_offset=expect_offset)).start
        path = self.writer.path  # raises if it is not open
        if self._closing:
            raise ClosedError("the writer is closed; use another one", path=path)
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
        *,
        expect_offset: int | None = None,
    ) -> range:
        """Append messages, like :meth:`sej.Writer.append_many`."""
        append = partial(self.writer.append_many, expect_offset=expect_offset)
        return await asyncio.to_thread(append, values, keys, type, timestamp)

    async def sync(self) -> None:
        """Sync, like :meth:`sej.Writer.sync`."""
        await asyncio.to_thread(self.writer.sync)

    async def close(self) -> None:
        """Finish the appends that wait, refuse others, then close; if it is cancelled, close anyway."""
        self._closing = True
        try:
            if self._sent is not None:
                await asyncio.shield(self._sent)
        finally:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(None, self.writer.close))

    # Not run by a task, because a cancelled task would leave the other appends without an answer.

    def _send(self) -> None:
        """Send all appends that wait to the thread."""
        batch, self._waiting = self._waiting, []
        rows = [row for row, _ in batch]
        sending: asyncio.Future[list[int | Exception]]
        try:
            sending = asyncio.get_running_loop().run_in_executor(None, self.writer.end.append_each, rows)
        except RuntimeError as error:  # the loop is shutting down and starts no more threads
            sending = asyncio.get_running_loop().create_future()
            sending.set_exception(error)
        sending.add_done_callback(partial(self._answer, batch))

    def _answer(self, batch: list[_Waiting], sending: asyncio.Future[list[int | Exception]]) -> None:
        if sending.cancelled():
            error: BaseException | None = ClosedError("the loop's threads ended before this append", path=self._path)
        else:
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


class Offset(_Opening):
    """A :class:`sej.Offset` with coroutines; takes the same arguments.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> async def main() -> int:
        ...     async with Offset(path, "reader1") as o:
        ...         await o.commit(2)
        ...         return o.value
        >>> asyncio.run(main())
        2
    """

    def __init__(self, path: str | os.PathLike[str], name: str, default: int | Start = FIRST, **options: Any) -> None:
        """Set the arguments of :class:`sej.Offset`; ``async with`` or :meth:`open` opens the offset."""
        refuse_unknown("an offset", options, options_of(sej.reading.offset.Offset.__init__))
        self._directory, self._timeout = sej.reading.offset.check_arguments(path, name, default, **options)
        self._path = self._directory.path
        self._name = name
        self._default = default
        self._waits = options.pop("wait", False)
        options.pop("timeout", None)
        self._open = partial(sej.reading.offset.Offset, self._path, name, **options)
        self._offset: sej.reading.offset.Offset | None = None

    async def open(self) -> Self:
        """Take the reader's lock; see :class:`sej.Offset` for errors. If it is cancelled, the lock is released."""
        if self._waits and await _arrived(self._directory, self._timeout) and self._default is LAST:
            self._offset = await _opened(self._open_first)
        else:
            self._offset = await _opened(partial(self._open, default=self._default))
        return self

    def _open_first(self) -> sej.reading.offset.Offset:
        """Open the offset of a journal that has just appeared, and keep what LAST means now."""
        offset = self._open(default=FIRST)
        try:
            offset.commit(offset.value)
        except BaseException:
            offset.close()
            raise
        return offset

    @property
    def offset(self) -> sej.reading.offset.Offset:
        """The blocking offset.

        Raises:
            ClosedError: the offset is not open.
        """
        return _required(self._offset, f"reader {self._name!r}", self._path)

    @property
    def value(self) -> int:
        """The next offset to read."""
        return self.offset.value

    async def commit(self, offset: int) -> None:
        """Commit an offset, like :meth:`sej.Offset.commit`. If it is cancelled, the offset may be committed later."""
        await asyncio.to_thread(self.offset.commit, offset)

    async def reset(self, offset: int) -> None:
        """Set an offset, like :meth:`sej.Offset.reset`. If it is cancelled, the offset may be set later."""
        await asyncio.to_thread(self.offset.reset, offset)

    async def close(self) -> None:
        """Release the reader's lock, after a commit that has begun; if it is cancelled, release it anyway."""
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(None, self.offset.close))


class Consumer:
    """A :class:`sej.Consumer` whose handler is a coroutine function; takes the same arguments.

    The handler runs in the task that called :meth:`run`; a thread reads the journal and commits. If the task is
    cancelled, the handler is cancelled too. The messages before it are committed, and its own message is delivered
    again by the next run. That is not a failed attempt. A cancelled run ends after at most 0.2 seconds plus the time of
    a commit.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b"])
        >>> async def handle(message: sej.Message) -> None:
        ...     print(message.value)
        >>> asyncio.run(Consumer(path, "worker", timeout=0.0).run(handle))
        b'a'
        b'b'
        2
    """

    def __init__(self, path: str | os.PathLike[str], name: str, **options: Any) -> None:
        """Set up a reader; see :class:`sej.Consumer` for arguments and errors."""
        refuse_unknown("a consumer", options, options_of(sej.reading.consumer.Consumer.__init__))
        self.consumer = sej.reading.consumer.Consumer(path, name, **options)

    async def run(
        self, handler: Callable[[Message], Awaitable[object]], *, timeout: Seconds | Start | None = FIRST
    ) -> int:
        """Handle messages one after the other, like :meth:`sej.Consumer.run`.

        Raises:
            TypeError: the handler returned something else than an awaitable; its message is not committed.
            SejError: as :meth:`sej.Consumer.run`.
        """
        CALLABLE("handler", handler)
        return await self.run_batches(lambda batch: handler(batch[0]), batch_messages=1, timeout=timeout)

    async def run_batches(
        self,
        handler: Callable[[list[Message]], Awaitable[object]],
        *,
        batch_messages: int = sej.reading.consumer.BATCH,
        timeout: Seconds | Start | None = FIRST,
    ) -> int:
        """Handle messages in batches, like :meth:`sej.Consumer.run_batches`; errors as :meth:`run`."""
        CALLABLE("handler", handler)
        calls = _Calls()
        thread = _thread("consumer")
        run = partial(self.consumer.run_batches, calls.from_thread, batch_messages=batch_messages, timeout=timeout)
        running = asyncio.get_running_loop().run_in_executor(thread, run)
        thread.shutdown(wait=False)
        running.add_done_callback(calls.end)
        try:
            while call := await calls.waiting.get():
                await _answer_call(handler, *call)
        except GeneratorExit:  # the loop is gone: nothing can be awaited
            self.consumer.stop()
            calls.leave()
            raise
        except BaseException:
            self.consumer.stop()
            calls.leave()
            await _ended(running)
            running.exception()  # the caller gets the error of the handler, or the cancellation
            raise
        return running.result()

    def stop(self) -> None:
        """Let :meth:`run` return after the current message; called from any thread or task."""
        self.consumer.stop()


class _Calls:
    """The calls of a consumer's handler: made by its thread, one at a time, and answered by the task."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[_Call | None] = asyncio.Queue()
        """The call to answer; None after the last."""
        self._loop = asyncio.get_running_loop()
        self._answer: Future[None] = Future()
        self._left = False

    def from_thread(self, batch: list[Message]) -> None:
        """Let the task handle a batch, and raise what its handler raises."""
        answer: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(self._offer, batch, answer)
        except RuntimeError:  # the loop is closed
            raise InterruptError from None
        answer.result()

    def _offer(self, batch: list[Message], answer: Future[None]) -> None:
        self._answer = answer
        if self._left:
            answer.set_exception(InterruptError())
        else:
            self.waiting.put_nowait((batch, answer))

    def end(self, _: object) -> None:
        """Tell the task that the thread has ended."""
        self.waiting.put_nowait(None)

    def leave(self) -> None:
        """End the call that waits, and any further one, without an attempt."""
        self._left = True
        if not self._answer.done():
            self._answer.set_exception(InterruptError())


async def _answer_call(
    handler: Callable[[list[Message]], Awaitable[object]], batch: list[Message], answer: Future[None]
) -> None:
    """Handle a batch and pass the handler's exception on to the thread; raise only what ends the run."""
    task = asyncio.current_task()
    try:
        awaitable = handler(batch)
        if isawaitable(awaitable):
            await awaitable
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        failure = RuntimeError("the handler awaited a task that was cancelled")  # a failed attempt, like any error
        failure.__cause__ = error
        answer.set_exception(failure)
    except Exception as error:
        answer.set_exception(error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # as of sys.exit: the thread counts it like the death of the process
        answer.set_exception(error)
        raise
    else:
        if not isawaitable(awaitable):
            raise TypeError(f"handler must be a coroutine function, but it returned {awaitable!r}")
        answer.set_result(None)


async def _opened(opens: Callable[[], _Opened]) -> _Opened:
    """Open in a thread; if it is cancelled, close again what the thread opened."""
    wanted = True

    def work() -> _Opened:
        opened = opens()
        if not wanted:
            opened.close()
        return opened

    opening = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        wanted = False
        opening.add_done_callback(_close_again)
        raise


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended, also if the task is cancelled again."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])


def _close_again(opening: asyncio.Future[Any]) -> None:
    """Close what the thread opened after ``open`` was cancelled."""
    if opening.exception() is None:
        opening.result().close()
