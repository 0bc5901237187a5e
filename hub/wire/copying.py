"""One raw copy as the server sees it: append on one thread, sync and acknowledge on another.

While a sync is under way the next chunks are appended already, so the disk and the network work at the same time; an
acknowledgement is sent for whatever the last sync covered. Appending stops ``window_bytes`` ahead of the disk, and with
it, by gRPC's flow control, the sender.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hub.errors import UnavailableError
from hub.wire.frames import open_copy_request
from sej.errors import InvalidMessageError, InvalidNameError

__all__ = ["CopySession", "Incoming"]

_WINDOW_BYTES: Final = 1 << 24


class Incoming:
    """The requests of a stream: the first says whose journal it is, and each brings messages.

    Attributes:
        client: whose; empty before the first request.
        journal_dir: the journal's name.
        create: whether the next messages may start a journal.
    """

    def __init__(self, requests: Iterator[bytes], allow: Callable[[str, str], None]) -> None:
        """Nothing is read yet.

        Args:
            requests: as they come.
            allow: raises where the caller may not write this client's journal; asked again and again.
        """
        self.client = self.journal_dir = ""
        self.create = False
        self._requests = requests
        self._allow = allow

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The messages."""
        first = next(self._requests, None)
        if first is None:
            return
        self.client, self.journal_dir, data, self.create = open_copy_request(first)
        self._allow(self.client, self.journal_dir)
        if len(data):
            yield data
            self.create = False
        for request in self._requests:
            client, journal_dir, data, create = open_copy_request(request)
            if client or journal_dir or create:
                raise InvalidNameError("the names stand in the first request of a stream; open another one")
            if not len(data):
                raise InvalidMessageError("a request without messages")
            self._allow(self.client, self.journal_dir)
            yield data
            self.create = False


class CopySession:
    """Takes chunks and says how far they are durable."""

    def __init__(
        self,
        append: Callable[[bytes | memoryview], int],
        sync: Callable[[], int],
        allow: Callable[[], None],
        *,
        idle_s: float,
        ask_s: float,
        window_bytes: int = _WINDOW_BYTES,
    ) -> None:
        """Start a session.

        Args:
            append: hands a chunk to the kernel; returns the next offset.
            sync: makes what was appended durable; returns the next offset.
            allow: raises if the sender may no longer write; called while nothing comes.
            idle_s: a sender that is silent for so long is gone.
            ask_s: how often allow is called.
            window_bytes: how far appending may run ahead of the disk.
        """
        self._append = append
        self._sync = sync
        self._allow = allow
        self._idle_s = idle_s
        self._ask_s = ask_s
        self._window_bytes = window_bytes
        self._condition = threading.Condition()
        self._appended = -1
        self._unsynced = 0
        self._ended = False
        self._stopped = False
        self._at_work = False
        self._error: Exception | None = None

    def acknowledge(self, chunks: Iterable[bytes | memoryview], stopping: threading.Event) -> Iterator[int]:
        """Yield offsets below which everything is durable, until the chunks end.

        Raises:
            Exception: what appending raised, after everything before it was acknowledged.
            AccessError: the sender may no longer write.
            UnavailableError: the sender was silent for too long, or the server stops.
        """
        reader = threading.Thread(target=self._run, args=(chunks,), name="hub-copy", daemon=True)
        reader.start()
        silent_since = time.monotonic()
        try:
            while True:
                with self._condition:
                    came = self._condition.wait_for(
                        lambda: self._unsynced or self._ended or stopping.is_set(), min(self._ask_s, self._idle_s)
                    )
                    appended, unsynced, ended = self._appended, self._unsynced, self._ended
                if unsynced:
                    durable = self._sync()
                    if durable < appended:
                        raise UnavailableError(f"the disk failed: everything below {durable} is there; go on from it")
                    with self._condition:
                        self._unsynced -= unsynced
                        self._condition.notify_all()
                    yield appended
                    silent_since = time.monotonic()
                elif ended:
                    if self._error is not None:
                        raise self._error
                    return
                elif stopping.is_set():
                    raise UnavailableError("the hub is stopping; what was acknowledged is safe, go on when it is back")
                elif not came:
                    self._allow()
                    if self._at_work:
                        silent_since = time.monotonic()
                    elif time.monotonic() - silent_since >= self._idle_s:
                        raise UnavailableError(f"nothing came for {self._idle_s} s")
        finally:
            with self._condition:
                self._stopped = True
                self._condition.notify_all()

    def wake(self) -> None:
        """Let the acknowledging thread look at its stop flag."""
        with self._condition:
            self._condition.notify_all()

    def _run(self, chunks: Iterable[bytes | memoryview]) -> None:
        try:
            for chunk in chunks:
                self._at_work = True  # a disk that is slow is no silence of the sender's
                offset = self._append(chunk)
                with self._condition:
                    self._at_work = False
                    self._appended = offset
                    self._unsynced += len(chunk)
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._unsynced < self._window_bytes or self._stopped)
                    if self._stopped:
                        return
        except Exception as error:
            self._error = error
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()
