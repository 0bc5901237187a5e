"""Litestar: one handler puts into a journal, another one streams it. Run `uvicorn litestar_orders:app`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, get, post
from litestar.response import ServerSentEvent, ServerSentEventMessage

import sej.aio


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    """Open the journal as long as the application runs."""
    async with sej.aio.Writer("orders", durability="disk") as app.state.writer:
        yield


@post("/orders")
async def put(request: Request[Any, Any, Any]) -> dict[str, int]:
    """Answer when the message is on the disk."""
    return {"offset": await request.app.state.writer.append(await request.body())}


@get("/orders/events")
async def follow(request: Request[Any, Any, Any]) -> ServerSentEvent:
    """Stream messages; the id of each is the offset to continue at."""

    async def events() -> AsyncIterator[ServerSentEventMessage]:
        start = int(request.headers.get("last-event-id", "0"))
        async with sej.aio.Scanner("orders", start, timeout=None) as scanner:
            async for message in scanner:
                yield ServerSentEventMessage(json.dumps(message.value.decode()), id=str(message.offset + 1))

    return ServerSentEvent(events())


app = Litestar([put, follow], lifespan=[lifespan])
