"""FastAPI: one handler puts into a journal, another one streams it. Run `uvicorn fastapi_orders:app`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import StreamingResponse

import sej.aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the journal as long as the application runs."""
    async with sej.aio.Writer("orders", durability="disk") as app.state.writer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def put(request: Request) -> dict[str, int]:
    """Answer when the message is on the disk."""
    return {"offset": await request.app.state.writer.append(await request.body())}


@app.get("/orders/events")
async def follow(last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    """Stream messages; the id of each is the offset to continue at."""

    async def events() -> AsyncIterator[str]:
        async with sej.aio.Scanner("orders", last_event_id, timeout=None) as scanner:
            async for message in scanner:
                yield f"id: {message.offset + 1}\ndata: {json.dumps(message.value.decode())}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
