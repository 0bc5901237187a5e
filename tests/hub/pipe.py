"""A TCP relay before a server, which counts the bytes of the server's answers, and may change requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class Pipe:
    """Relays connections to an address.

    Attributes:
        address: where it listens.
        received: bytes that the server has sent through it.
        change: changes the bytes that go to the server.
        answer: changes the bytes that the server sends.
    """

    def __init__(
        self, target: str, change: Callable[[bytes], bytes] = bytes, answer: Callable[[bytes], bytes] = bytes
    ) -> None:
        self.change, self.answer = change, answer
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._relay, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._relay, args=(far, near, True), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.received += len(data) if answers else 0
                target.sendall((self.answer if answers else self.change)(data))
            target.shutdown(socket.SHUT_WR)
