"""Serves an ASGI application with uvicorn, in a thread: what the web page and the hub over HTTP share."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from contextlib import nullcontext
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"([0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_GRACE_S: Final = 3


class Listener:
    """A socket that listens; :meth:`start` serves in a thread.

    Attributes:
        address: ``host:port`` with the actual port.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        """Listen; nothing is served yet.

        Args:
            host: the address to listen on.
            port: the port; 0 takes a free one.
            name: the name of the thread.

        Raises:
            OSError: the address is not available.
        """
        self._server: _Server | None = None
        self._name = name
        self._socket = _listening(host, port)
        shown, actual = self._socket.getsockname()[:2]
        self.address = f"[{shown}]:{actual}" if ":" in shown else f"{shown}:{actual}"

    def start(self, app: ASGIApp, **settings: Any) -> None:
        """Serve in a thread, until :meth:`close`; the settings are uvicorn's."""
        config = uvicorn.Config(
            app,
            timeout_graceful_shutdown=_GRACE_S,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            **settings,
        )
        self._server = _Server(config)
        serving = self._server.serve_to_the_end([self._socket])
        self._thread = threading.Thread(target=asyncio.run, args=(serving,), name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the requests in progress, and stop. A second call does nothing."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()


def name_in(host: str) -> str:
    """Return the name or address in a Host header, in lower case and without its port; empty if it is not one."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1].strip("[]").lower()


class _Server(uvicorn.Server):
    """Leaves signals to the program that uses it."""

    def capture_signals(self) -> Any:
        """Capture no signals."""
        return nullcontext()

    async def serve_to_the_end(self, sockets: list[socket.socket]) -> None:
        """Serve, and close the connections that came while the server stopped: nothing else closes their sockets."""
        await self.serve(sockets)
        late = asyncio.all_tasks() - {asyncio.current_task()}
        if late:
            await asyncio.wait(late, timeout=_GRACE_S)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes an aborted one in its next round
        await asyncio.sleep(0)


def _listening(host: str, port: int) -> socket.socket:
    found: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)  # named, or asyncio sets no TCP_NODELAY: 40 ms for each answer
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        if found is not None:
            found.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return found
