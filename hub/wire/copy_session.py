"""One Copy call on the server: append on one thread, sync and acknowledge on another.

During a sync the next chunks are appended already, so the disk and the network work concurrently; each sync is followed
by one acknowledgement. Appending stops 16 MiB ahead of the disk, and then gRPC's flow control stops the sender too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hub.errors import UnavailableError
from hub.wire import hub_pb2 as pb
from hub.wire.frames import open_copy_request
from sej.errors import InvalidMessageError, InvalidNameError

_WINDOW_BYTES: Final = 1 << 24


class Incoming:
    """The requests of a stream: the first names the journal, and each has messages.

    Attributes:
        client: the client id; empty before the first request.
        journal_dir: the journal's name.
        create: whether the next messages may start a journal.
        lost_from: where the messages begin that the client lost before the next ones; None: none.
    """

    def __init__(self, requests: Iterator[bytes], allow: Callable[[str, str], None]) -> None:
        """Start before the first request.

        Args:
            requests: the requests of the call.
            allow: raises if the caller may not write this client's journal; called repeatedly.
        """
        self.client = self.journal_dir = ""
        self.create = False
        self.lost_from: int | None = None
        self._requests = requests
        self._allow = allow

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield the messages of each request."""
        first = next(self._requests, None)
        if first is None:
            return
        request, data = open_copy_request(first)
        self.client, self.journal_dir, self.create = request.ClientID, request.JournalDir, request.Create
        self._allow(self.client, self.journal_dir)
        if len(data):
            self.lost_from = _lost_from(request)
            yield data
            self.create = False
        for later in self._requests:
            request, data = open_copy_request(later)
            if request.ClientID or request.JournalDir or request.Create:
                raise InvalidNameError("only the first request of a stream may name the journal; open another stream")
            if not len(data):
                raise InvalidMessageError("a request must have messages")
            self._allow(self.client, self.journal_dir)
            self.lost_from = _lost_from(request)
            yield data
            self.create = False


def _lost_from(request: pb.CopyRequest) -> int | None:
    return request.LostFrom if request.HasField("LostFrom") else None


class CopySession:
    """Appends chunks and reports up to which offset they are durable."""

    def __init__(
        self,
        append: Callable[[bytes | memoryview], int],
        sync: Callable[[], int],
        allow: Callable[[], None],
        *,
        idle_s: float,
        ask_s: float,
    ) -> None:
        """Create a session.

        Args:
            append: passes a chunk to the kernel; returns the next offset.
            sync: makes the appended chunks durable; returns the next offset.
            allow: raises if the sender may no longer write; called while no chunk arrives.
            idle_s: a sender that is silent for this long is disconnected.
            ask_s: seconds between two calls of ``allow``.
        """
        self._append = append
        self._sync = sync
        self._allow = allow
        self._idle_s = idle_s
        self._ask_s = ask_s
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
            Exception: the error of an append, after everything before it was acknowledged.
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
                        raise UnavailableError(
                            f"the disk failed; everything below offset {durable} is stored, continue there"
                        )
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
                    raise UnavailableError(
                        "the hub is stopping; acknowledged messages are durable, continue when it is back"
                    )
                elif not came:
                    self._allow()
                    if self._at_work:
                        silent_since = time.monotonic()
                    elif time.monotonic() - silent_since >= self._idle_s:
                        raise UnavailableError(f"no message arrived for {self._idle_s} s")
        finally:
            with self._condition:
                self._stopped = True
                self._condition.notify_all()

    def wake(self) -> None:
        """Let the acknowledging thread check its stop flag."""
        with self._condition:
            self._condition.notify_all()

    def _run(self, chunks: Iterable[bytes | memoryview]) -> None:
        try:
            for chunk in chunks:
                self._at_work = True  # a slow disk does not count as a silent sender
                offset = self._append(chunk)
                with self._condition:
                    self._at_work = False
                    self._appended = offset
                    self._unsynced += len(chunk)
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._unsynced < _WINDOW_BYTES or self._stopped)
                    if self._stopped:
                        return
        except Exception as error:
            self._error = error
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()
