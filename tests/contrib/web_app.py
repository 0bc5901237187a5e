"""An application of `examples/web`, whose requests are cancelled at random places; served by uvicorn."""

import asyncio
import os
import random
import runpy
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.crash.harness import ROOT

_SECONDS = [None, None, 0.0, 0.0005, 0.002, 0.005, 0.02]


class Cancelling:
    """Cancels what serves a request after a random time."""

    def __init__(self, served: ASGIApp, seed: int) -> None:
        self._app = served
        self._dice = random.Random(seed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def noting(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            async with asyncio.timeout(self._dice.choice(_SECONDS)):
                await self._app(scope, receive, noting)
        except TimeoutError:
            if has_started:
                raise  # uvicorn cuts the connection
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})


_program: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "web" / f"{os.environ['SEJ_TEST_WEB']}.py"))
app = Cancelling(_program["app"], int(os.environ["SEJ_TEST_SEED"]))
