"""Server-sent events: the parts of a page that changed, and the messages that are appended to a journal.

A stream holds no thread while it waits: it sleeps on the event loop, and borrows a thread to look. So a server with
many open pages stays small. A stream ends when the browser leaves or when the server stops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import anyio
import anyio.to_thread

from hub.page.journal import cells
from hub.page.views import Context, PageFunction
from sej.errors import OffsetTooSmallError, SejError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.reading.scanner import Scanner
from sej.system.disk import OS

MAX_STREAMS: Final = 64
"""Streams at one time; a browser opens one or two for each page."""
_TICK_S: Final = 2.0
_TAIL_TICK_S: Final = 0.25
_KEEPALIVE_S: Final = 15.0
_TAIL_ROWS: Final = 200
_RETRY: Final = b"retry: 2000\n\n"


class Stopping:
    """Says that the server stops, so that streams end; to be used on one event loop."""

    def __init__(self) -> None:
        """The server does not stop yet."""
        self._event = anyio.Event()

    def stop(self) -> None:
        """End every stream."""
        self._event.set()

    async def within(self, seconds: float) -> bool:
        """Wait; return True if the server stops within this time."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        return self._event.is_set()


async def page_events(
    context: Context, page: PageFunction, query: Mapping[str, str], stopping: Stopping, admitted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield all parts of a page first, and after that those that changed.

    Args:
        context: what the page reads from.
        page: the page.
        query: the query of its address.
        stopping: ends the stream.
        admitted: whether the viewer still may see it.
    """
    yield _RETRY
    sent: dict[str, str] | None = None
    quiet_s = 0.0
    with context.sampler.viewed():
        while True:
            try:
                view = await anyio.to_thread.run_sync(page, context, query)
            except (SejError, OSError, ValueError):
                yield _event("gone", {})
                return
            parts = {name: str(html) for name, html in view.parts.items()}
            if sent is None or parts.keys() != sent.keys():
                yield _event("all", parts)
                quiet_s = 0.0
            elif changed := {name: html for name, html in parts.items() if sent[name] != html}:
                yield _event("some", changed)
                quiet_s = 0.0
            elif quiet_s >= _KEEPALIVE_S:
                yield b": still here\n\n"
                quiet_s = 0.0
            sent = parts
            quiet_s += _TICK_S
            if await stopping.within(_TICK_S) or not admitted():
                return


async def tail_events(
    context: Context, path: str, offset: int, stopping: Stopping, admitted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield the rows of messages as they are appended, from an offset on.

    The id of an event is the next offset, so that a browser that reconnects continues there. If more messages arrive
    than a browser can show, the event has the number of those that were left out.

    Args:
        context: what the page reads from.
        path: the journal.
        offset: the first message.
        stopping: ends the stream.
        admitted: whether the viewer still may see it.
    """
    yield _RETRY
    follow = _Follow(context, path, offset)
    quiet_s = 0.0
    while True:
        try:
            event = await anyio.to_thread.run_sync(follow.look)
        except (SejError, OSError) as error:
            yield _event("failed", {"why": str(error)})
            return
        if event is not None:
            yield b"id: %d\n" % follow.offset + _event("rows", event)
            quiet_s = 0.0
        elif quiet_s >= _KEEPALIVE_S:
            yield b": still here\n\n"
            quiet_s = 0.0
        quiet_s += _TAIL_TICK_S
        if await stopping.within(_TAIL_TICK_S) or not admitted():
            return


class _Follow:
    """Reads what was appended to a journal since the last look."""

    def __init__(self, context: Context, path: str, offset: int) -> None:
        self._render: Callable[[str, Mapping[str, Any]], str] = context.render
        self._path = path
        self._tail = Tail(Directory(path, OS))
        self.offset = offset

    def look(self) -> dict[str, Any] | None:
        """Return the rows of the new messages, newest first; None without new ones."""
        end = self._tail.end_offset()
        if end < self.offset:
            self.offset = end  # the journal was replaced by a shorter one
        if end == self.offset:
            return None
        first = max(self.offset, end - _TAIL_ROWS)
        try:
            with Scanner(self._path, first) as scanner:
                messages = scanner.read(end - first)
        except OffsetTooSmallError as error:
            self.offset = error.first_available
            return None
        if not messages:
            return None
        skipped, self.offset = first - self.offset, messages[-1].offset + 1
        rows = [cells(message) for message in reversed(messages)]
        html = self._render("_message_rows.html", {"path": self._path, "messages": rows})
        return {"html": str(html), "skipped": skipped}


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False)  # one line: JSON escapes line ends
    return f"event: {kind}\ndata: {text}\n\n".encode("utf-8", "replace")
