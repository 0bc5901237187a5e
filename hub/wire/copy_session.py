"""One Copy call on the server: append on one thread, sync and acknowledge on another.

During a sync the next chunks are appended already, so the disk and the network work concurrently; each sync is followed
by one acknowledgement. Appending stops 16 MiB ahead of the disk, and then gRPC's flow control stops the sender too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

from hub.errors import UnavailableError
from hub.naming import Source
from hub.store import Store
from hub.wire.access import Call
from hub.wire.frames import open_copy_request
from sej.errors import InvalidMessageError, InvalidNameError

_WINDOW_BYTES: Final = 1 << 24
_ASK_S: Final = 1.0
"""Seconds between two checks of a silent sender's token."""


class CopySession:
    """Appends the messages of a stream's requests, and reports up to which offset they are durable."""

    def __init__(self, store: Store, call: Call, *, idle_s: float) -> None:
        """Create a session.

        Args:
            store: stores the messages.
            call: decides whether the sender may write.
            idle_s: a sender that is silent for this long is disconnected.
        """
        self._store = store
        self._call = call
        self._idle_s = idle_s
        self._source: Source | None = None
        """Named by the first request."""
        self._condition = threading.Condition()
        self._appended = -1
        self._unsynced = 0
        self._ended = False
        self._stopped = False
        self._at_work = False
        self._error: Exception | None = None

    def acknowledge(self, requests: Iterator[bytes]) -> Iterator[int]:
        """Yield offsets below which everything is durable, until the requests end.

        Raises:
            Exception: the error of an append, after everything before it was acknowledged.
            AccessError: the sender may no longer write.
            UnavailableError: the sender was silent for too long, or the server stops.
        """
        reader = threading.Thread(target=self._run, args=(requests,), name="hub-copy", daemon=True)
        reader.start()
        silent_since = time.monotonic()
        try:
            while True:
                with self._condition:
                    came = self._condition.wait_for(lambda: self._unsynced or self._ended, min(_ASK_S, self._idle_s))
                    appended, unsynced, ended = self._appended, self._unsynced, self._ended
                if unsynced:
                    assert self._source is not None
                    durable = self._store.sync(*self._source)
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
                elif not came:
                    self._call.check()
                    if self._at_work:
                        silent_since = time.monotonic()
                    elif time.monotonic() - silent_since >= self._idle_s:
                        raise UnavailableError(f"no message arrived for {self._idle_s} s")
        finally:
            with self._condition:
                self._stopped = True
                self._condition.notify_all()

    def _run(self, requests: Iterator[bytes]) -> None:
        create = False
        try:
            for encoded in requests:
                request, chunk = open_copy_request(encoded)
                if self._source is None:
                    self._source, create = self._call.allow(request.ClientID, request.JournalDir), request.Create
                    if not len(chunk):
                        continue
                elif request.ClientID or request.JournalDir or request.Create:
                    raise InvalidNameError("only the first request of a stream may name the journal; open another one")
                elif not len(chunk):
                    raise InvalidMessageError("a request must have messages")
                self._call.check()
                lost_from = request.LostFrom if request.HasField("LostFrom") else None
                self._at_work = True  # a slow disk does not count as a silent sender
                offset = self._store.put_encoded(*self._source, chunk, sync=False, create=create, lost_from=lost_from)
                create = False
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
