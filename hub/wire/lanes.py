"""A thread pool for each kind of call, so that no kind waits for the threads of another.

gRPC's Python server runs every call on a thread and queues calls in the pool without a limit. With one pool a few
hundred slow readers hold all threads, or fill the queue, and a put waits until they end. Here each method has a lane:
its own threads, its own queue, its own limit. A call for a lane that is full is refused immediately, on a thread of
its own, before its request is read.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Lane(ThreadPoolExecutor):
    """Threads for one kind of call; a subclass, because gRPC accepts only this type as a method's pool.

    Attributes:
        calls: the number of calls in progress or waiting.
    """

    def __init__(self, name: str, threads: int, max_calls: int) -> None:
        """Name the threads; they start at their first use."""
        super().__init__(threads, thread_name_prefix=f"hub-{name}")
        self.calls = 0
        self._max_calls = max_calls
        self._counting = threading.Lock()

    @property
    def full(self) -> bool:
        """True if the next call must be refused."""
        return self.calls >= self._max_calls

    def submit(self, *given: Any, **named: Any) -> Future[Any]:
        """Submit like the base class, and count the call."""
        future = super().submit(*given, **named)
        with self._counting:
            self.calls += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        with self._counting:
            self.calls -= 1


class Answer:
    """One answer of a stream, which gRPC can take once.

    gRPC's loop over the answers keeps the last one while it waits for the next: then it only keeps this empty object.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        """Hold the bytes until they are taken."""
        self._data = data

    def take(self) -> bytes:
        """Return the bytes and release them."""
        data, self._data = self._data, b""
        return data

    @staticmethod
    def taken(answer: bytes | Answer) -> bytes:
        """Return the bytes of an answer in either form."""
        return answer if isinstance(answer, bytes) else answer.take()
