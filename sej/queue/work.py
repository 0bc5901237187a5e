"""A worker loop: :func:`work` calls a function for each item of a queue.

Each thread takes an item, calls the handler and ends the item: ``done`` if the handler returns, ``retry`` if it raises.
A further thread extends the leases of all items whose handlers still run, up to the time limit of each.

A stop is a request: no further item is taken, and the handlers that run are waited for. So the loop takes items in
slices of half a second.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sej.checks import (
    Seconds,
    between,
    handler_of,
    instance_of,
    is_failure,
    optional,
    reason_of,
    refuse_coroutine,
    require,
    seconds,
)
from sej.errors import ClosedError, LeaseLostError, SejError
from sej.queue.interface.queue import Item, WorkQueue, require_queue
from sej.queue.interface.values import handled_under
from sej.system.process import set_from_handler

MAX_THREADS: Final = 1_000
"""The most threads of one call: more of them cost memory and turns of the interpreter, and finish nothing sooner."""
_SLICE_S: Final = 0.5
_LEASE_S: Final = 60.0
_log: Final = logging.getLogger("sej.worker")

_Handler = Callable[[Item], Any]


def work(
    queue: WorkQueue,
    handler: _Handler,
    threads: int = 1,
    *,
    until_empty: bool = False,
    time_limit_s: Seconds | None = None,
    stop: threading.Event | None = None,
    on_time_limit: Callable[[Item], object] | None = None,
) -> int:
    """Call a function for each item of a queue, until a stop is requested.

    An item is done if the function returns. If it raises, the item is retried later, or becomes a dead letter after the
    queue's ``max_attempts``, and the logger ``sej.worker`` writes one line and the traceback. The same happens if it
    calls ``sys.exit`` or raises something else that is not an Exception, which then ends ``work``. Only
    ``KeyboardInterrupt`` is not counted as an attempt. The function may end the item itself. Its lease is extended
    while the function runs. If OpenTelemetry is installed, the function runs under the trace context of ``put``.

    In the main thread of a program, SIGTERM and SIGINT request a stop: items whose functions run are finished, and
    ``work`` returns. A second signal ends the program as without ``work``, although functions in other threads run.

    Args:
        queue: the queue; it stays open.
        handler: called as ``handler(item)``, in one of the threads.
        threads: how many items are handled concurrently, at most 1,000.
        until_empty: return when no item is ready, waits for its time (a retry or a delay), or is held by a worker; or
            if the queue is paused.
        time_limit_s: after this time an item counts as failed, is retried, and its lease is not extended any more. Its
            function is not interrupted; None: no limit.
        stop: an event that requests a stop; None: only signals and ``queue.close()`` do.
        on_time_limit: called in a thread of its own after an item has reached the limit.

    Returns:
        How many items the handler has finished without an exception.

    Raises:
        SejError: the queue failed, for example because its disk did. All threads have ended.

    Example:
        >>> import tempfile, sej
        >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as q:
        ...     _ = q.put(b"job")
        ...     sej.work(q, lambda item: print(item.value), until_empty=True)
        b'job'
        1
    """
    time_limit_s = seconds("time_limit_s", time_limit_s)
    require(until_empty=until_empty, time_limit_s=time_limit_s, on_time_limit=on_time_limit)
    require(queue=(queue, require_queue), handler=(handler, handler_of("item")))
    require(threads=(threads, between(1, MAX_THREADS)), stop=(stop, optional(instance_of(threading.Event))))
    worker = _Worker(queue, handler, until_empty, time_limit_s, stop or threading.Event(), on_time_limit)
    with _until_signal(worker.stop):
        worker.run(threads)
    return worker.finished


class _Held:
    """An item whose handler runs."""

    def __init__(self, item: Item, ends_at: float | None) -> None:
        self.item = item
        self.ends_at = ends_at
        self.late = False


class _Worker:
    """The threads of one call of :func:`work`."""

    def __init__(
        self,
        queue: WorkQueue,
        handler: _Handler,
        until_empty: bool,
        time_limit_s: float | None,
        stop: threading.Event,
        on_time_limit: Callable[[Item], object] | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._until_empty = until_empty
        self._time_limit_s = time_limit_s
        self._on_time_limit = on_time_limit
        self._lease_s = float(getattr(queue, "lease_s", _LEASE_S))
        self.stop = stop
        self.finished = 0
        self._held: set[_Held] = set()
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, threads: int) -> None:
        keeper = threading.Thread(target=self._keep, name="sej-worker-leases", daemon=True)
        # Daemons, because a second signal ends the program although their handlers run.
        others = [threading.Thread(target=self._loop, name=f"sej-worker-{n}", daemon=True) for n in range(1, threads)]
        try:
            for thread in (keeper, *others):
                thread.start()
            self._loop()  # in this thread: a signal reaches it
            self._end(others)
        finally:
            self._over.set()
        keeper.join()
        if self._failure is not None:
            raise self._failure

    def _end(self, others: list[threading.Thread]) -> None:
        """Wait for the handlers of the other threads, which take no further item."""
        if not self._until_empty or self._failure is not None:
            self.stop.set()
        for thread in others:
            thread.join()

    def _is_empty(self) -> bool:
        """Return whether no item is left that this worker may still get: no retry waits, and no worker has one."""
        stats = self._queue.stats()
        return stats.paused or not (stats.delayed or stats.leased)

    def _loop(self) -> None:
        wait_s = 0.0 if self._until_empty else _SLICE_S
        try:
            while not self.stop.is_set() and self._failure is None and not self._over.is_set():
                item = self._queue.get(wait_s)
                wait_s = _SLICE_S
                if item is None:
                    if self._until_empty and self._is_empty():
                        return
                elif self.stop.is_set():
                    item.give_back()
                else:
                    self._handle(item)
        except ClosedError:  # another thread closed the queue: it wants no more work
            self.stop.set()
        except BaseException as error:
            self._failure = self._failure or error
            self.stop.set()
            if not isinstance(error, Exception):
                raise  # an interrupt: it does not wait for the other threads

    def _handle(self, item: Item) -> None:
        limit = self._time_limit_s
        held = _Held(item, None if limit is None else time.monotonic() + limit)
        with self._guard:
            self._held.add(held)
        try:
            try:
                with handled_under(item.headers):
                    refuse_coroutine(self._handler(item))
            finally:
                with self._guard:
                    self._held.discard(held)
        except BaseException as error:
            if is_failure(error):
                self._failed(item, error, ended=held.late or item.ended)
                return
            if not item.ended and not held.late:
                with suppress(SejError):
                    if isinstance(error, KeyboardInterrupt):  # an interrupt of the program, not a failure of the item
                        item.give_back()
                    else:  # the function ended the program, as sys.exit does: it would do so again
                        self._failed(item, error, ended=False)
            raise
        if held.late:
            return
        try:
            if not item.ended:
                item.done()
        except LeaseLostError as error:
            self._failed(item, f"it returned, but {error}", ended=True)
            return
        with self._guard:
            self.finished += 1

    def _failed(self, item: Item, failure: str | BaseException, *, ended: bool) -> None:
        """Retry an item, and log one line, with the traceback of an exception."""
        reason, error = reason_of(failure), failure if isinstance(failure, BaseException) else None
        if not ended:
            try:
                item.retry(reason=failure)
            except LeaseLostError as lost:
                reason += f", but {lost}"
        number = getattr(item.message, "offset", None)
        name = "an item" if number is None else f"item {number}"
        text = " ".join(reason.split())
        _log.warning("%s: attempt %d of %s failed: %s", self._queue.path, item.attempts, name, text, exc_info=error)

    def _keep(self) -> None:
        """Extend leases, and end items whose time is over."""
        extends = "extend" in self._queue.can
        pause_s = min(self._lease_s / 3, threading.TIMEOUT_MAX)
        extend_at = time.monotonic() + pause_s
        while not self._over.wait(max(min(self._next_limit(), extend_at) - time.monotonic(), 0.001)):
            now = time.monotonic()
            with self._guard:
                held = list(self._held)
            for one in held:
                if one.ends_at is not None and now >= one.ends_at and not one.late:
                    self._too_late(one)
            if now >= extend_at:
                extend_at = now + pause_s
                for one in held if extends else ():
                    if not one.late:
                        with suppress(SejError, OSError):  # the call that ends the item raises it again
                            one.item.extend(self._lease_s)

    def _next_limit(self) -> float:
        """Return when the next item reaches its limit; it is looked for at least every half second."""
        soon = time.monotonic() + _SLICE_S
        if self._time_limit_s is None:
            return float("inf")
        with self._guard:
            return min((one.ends_at for one in self._held if one.ends_at is not None and not one.late), default=soon)

    def _too_late(self, one: _Held) -> None:
        with self._guard:
            if one not in self._held:
                return  # its handler has just returned
            one.late = True
        with suppress(SejError, OSError):  # then its lease ends; this thread extends those of others
            self._failed(one.item, f"it reached its time limit of {self._time_limit_s} s", ended=False)
        if self._on_time_limit is not None:  # in its own thread: leases are extended although it raises or waits
            threading.Thread(target=self._on_time_limit, args=(one.item,), name="sej-worker-late", daemon=True).start()


@contextmanager
def _until_signal(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set an event, once each; afterwards they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _: object) -> None:
        set_from_handler(stop)
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
