"""The server: listens, serves the page, and stops without leaving a stream open."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Self

import uvicorn

from hub.certificates import check_certificates, check_time, is_loopback
from hub.page.guard import Guard
from hub.page.places import place_of
from hub.page.sampler import Sampler
from hub.page.site import Site, Stopping
from hub.page.views import Context, Renderer
from hub.store import Counts
from hub.tokens import Tokens

_GRACE_S: Final = 3
_POLL_S: Final = 0.2


class PageServer:
    """Serves the page of some paths; :meth:`serve` blocks, :meth:`start` uses a thread.

    Attributes:
        address: the address that it listens on, as ``host:port`` with the actual port.
        url: the address for a browser.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> sej.Writer(path).close()
        >>> with PageServer([path], port=0) as page:
        ...     page.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tokens: Tokens | str | os.PathLike[str] | None = None,
        allow_changes: bool = False,
        counts: Callable[[], Counts] | None = None,
    ) -> None:
        """Listen; nothing is served yet.

        Args:
            paths: journals, sharded journals, hubs, directories of journals, ``.tq`` files.
            host: the address to listen on.
            port: the port; 0 takes a free one.
            certificate: TLS: the server's certificate chain, PEM.
            key: its private key, PEM.
            tokens: a file of tokens, or :class:`hub.wire.Tokens`; None: everyone who reaches the address is admitted.
            allow_changes: whether viewers may change something.
            counts: the counts of the hub that serves this page.

        Raises:
            ValueError: the host is not the loopback interface, and TLS or tokens are missing; or a file is not PEM.
            JournalNotFoundError: a path does not exist.
            NotAJournalError: a path is a file that is not a ``.tq`` file.
            AccessError: the file of tokens has a bad line, or others may write it.
            SejError: the certificate has expired, or is not valid yet.
            OSError: the address is not available, or a file cannot be read.
        """
        loopback = is_loopback(f"{host}:{port}")
        if not loopback and (certificate is None or key is None or tokens is None):
            raise ValueError(
                f"{host} can be reached from other machines, so the page needs TLS and tokens there: pass certificate,"
                " key and tokens, or listen on 127.0.0.1"
            )
        check_certificates(None, certificate, key)
        check_time(certificate)
        if tokens is not None and not isinstance(tokens, Tokens):
            tokens = Tokens(tokens)
        places = [place_of(Path(path)) for path in paths]
        if not places:
            raise ValueError("paths must have at least one path")
        self._stopping: Stopping | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._socket = _listening(host, port)
        try:
            shown, actual = self._socket.getsockname()[:2]
            self.address = f"[{shown}]:{actual}" if ":" in shown else f"{shown}:{actual}"
            self.url = f"{'http' if certificate is None else 'https'}://{self.address}/"
            sampler = Sampler([place.path for place in places if place.kind != "text queue"])
        except BaseException:
            self._socket.close()
            raise
        self._sampler = sampler
        context = Context(places, sampler, Renderer(), allow_changes, counts)

        def guarded(stopping: Stopping) -> Guard:
            return Guard(
                Site(context, stopping).application,
                tokens=tokens,
                allow_changes=allow_changes,
                secure=certificate is not None,
                loopback=loopback,
            )

        self._guarded = guarded
        self._options: dict[str, Any] = {
            "ssl_certfile": certificate,
            "ssl_keyfile": key,
            "timeout_graceful_shutdown": _GRACE_S,
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "date_header": True,
            "lifespan": "off",
            "ws": "none",
            "proxy_headers": False,
        }

    def serve(self, stop: threading.Event | None = None) -> None:
        """Serve until :meth:`close` or the event."""
        self._sampler.start()
        try:
            asyncio.run(self._serve(stop))
        finally:
            self._started.set()
            self._sampler.close()

    def start(self) -> None:
        """Serve in a thread, until :meth:`close`."""
        self._thread = threading.Thread(target=self.serve, name="sej-page", daemon=True)
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        """End the streams, finish the requests in progress, and stop. A second call does nothing."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stopping.stop)
        if self._thread is not None:
            self._thread.join()
        self._sampler.close()
        self._socket.close()

    def __enter__(self) -> Self:
        """Serve in a thread and return the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    async def _serve(self, stop: threading.Event | None) -> None:
        self._stopping, self._loop = Stopping(), asyncio.get_running_loop()
        application = self._guarded(self._stopping)
        server = _Server(uvicorn.Config(application, **self._options))
        serving = asyncio.create_task(server.serve([self._socket]))
        self._started.set()
        while not serving.done() and not await self._stopping.within(_POLL_S):
            if stop is not None and stop.is_set():
                break
        self._stopping.stop()
        server.should_exit = True
        await serving
        await _close_late(server)


async def _close_late(server: uvicorn.Server) -> None:
    """Close the connections that came while the server stopped: nothing else closes their sockets."""
    late = asyncio.all_tasks() - {asyncio.current_task()}
    if late:
        await asyncio.wait(late, timeout=_GRACE_S)
    for connection in list(server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.sleep(0)  # the loop closes an aborted one in its next round
    await asyncio.sleep(0)


class _Server(uvicorn.Server):
    """Leaves signals to the program that uses it."""

    def capture_signals(self) -> Any:
        """Capture no signals."""
        return nullcontext()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return found
