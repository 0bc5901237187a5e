"""What is between a copier or reader and a hub: a TCP relay, and a transport that goes wrong by one seed."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import hub
from hub.wire import JournalState


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


# --- a hub behind a transport that loses, repeats, reorders and cuts, all by one seed; no threads, no clock


class Transport:
    """One client's way to a store."""

    def __init__(self, store: hub.Store, client_id: str, rng: random.Random, trouble: float) -> None:
        self.store = store
        self.client_id = client_id
        self._rng = rng
        self._trouble = trouble
        self._late: list[tuple[str, bytes, bool]] = []  # requests that are still on their way
        self.refused = 0

    def where(self, journal_dir: str, *, own: range) -> JournalState:
        """Return the state of a journal, or lose the request or the answer."""
        self._deliver_late()
        if self._goes_wrong():
            raise hub.UnavailableError("the question was lost")
        first = self.store.first_offset(self.client_id, journal_dir)
        standing = JournalState(first is not None, first or 0, self.store.end_offset(self.client_id, journal_dir))
        if self._goes_wrong():
            raise hub.UnavailableError("the answer was lost")
        return standing

    def copy(
        self, journal_dir: str, chunks: Iterable[bytes], *, create: bool, accept_gaps_from: int | None
    ) -> Iterator[int]:
        """Chunks arrive, or twice, or later, or never; so do their acknowledgements."""
        waiting: list[tuple[bytes, bool]] = []
        for data in chunks:
            chunk, create = (data, create), False
            if self._goes_wrong():
                self._late.append((journal_dir, *chunk))  # arrives much later, when the client has given up
                raise hub.UnavailableError("cut before it arrived")
            waiting.append(chunk)
            if len(waiting) < 3 and self._rng.random() < 0.5:
                continue
            if self._goes_wrong():
                self._rng.shuffle(waiting)
            if self._goes_wrong():
                waiting.append(self._rng.choice(waiting))
            yield from self._arrive(journal_dir, waiting)
            waiting = []
        yield from self._arrive(journal_dir, waiting)

    def _arrive(self, journal_dir: str, chunks: list[tuple[bytes, bool]]) -> Iterator[int]:
        for chunk, create in chunks:
            try:
                offset = self.store.put_encoded(self.client_id, journal_dir, chunk, create=create)
            except hub.GapError as error:
                self.refused += 1
                raise hub.UnavailableError(f"came out of order: {error}") from error
            if self._goes_wrong():
                raise hub.UnavailableError("cut after it was stored")
            yield offset

    def _deliver_late(self) -> None:
        while self._late and self._rng.random() < 0.5:
            journal_dir, chunk, create = self._late.pop(self._rng.randrange(len(self._late)))
            try:
                self.store.put_encoded(self.client_id, journal_dir, chunk, create=create)
            except hub.GapError:
                self.refused += 1

    def _goes_wrong(self) -> bool:
        return self._rng.random() < self._trouble
