"""A thread pool for each kind of call, so that no kind waits for the threads of another.

gRPC's Python server runs every call on a thread and queues calls in the pool without a limit. With one pool a few
hundred slow readers hold all threads, or fill the queue, and a put waits until they end. Here each method has a lane:
its own threads, its own queue, its own limit. A call for a lane that is full is refused immediately, on a thread of
its own, before its request is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

import grpc

_P = ParamSpec("_P")
_T = TypeVar("_T")


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

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Submit like the base class, and count the call."""
        with self._counting:
            self.calls += 1
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._ended()
            raise
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object = None) -> None:
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


class Method(NamedTuple):
    """One method of a service.

    Attributes:
        make: gRPC's function for its kind, such as ``grpc.unary_unary_rpc_method_handler``.
        call: answers the call; requests are bytes, and answers are bytes or :class:`Answer` objects.
        lane: the threads that it runs on.
    """

    make: Callable[..., grpc.RpcMethodHandler[Any, Any]]
    call: Callable[..., Any]
    lane: Lane


class Lanes(grpc.GenericRpcHandler):
    """Finds the method of a call, or the refusal if its lane is full."""

    def __init__(self, service: str, methods: Mapping[str, Method], refuse: Callable[..., Any], lane: Lane) -> None:
        """Set the methods.

        Args:
            service: its full name.
            methods: by name.
            refuse: ends a call; called with its requests (none is read) and its context.
            lane: the threads of refusals.
        """
        self._methods = {
            f"/{service}/{name}": (method.lane, method.make(_on(method.lane, method.call), None, _serialize))
            for name, method in methods.items()
        }
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(_on(lane, refuse))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call; None if the method is unknown."""
        found = self._methods.get(handler_call_details.method)
        if found is None:
            return None
        lane, handler = found
        return self._refusal if lane.full else handler


def _serialize(answer: bytes | Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.take()


def _on(lane: Lane, call: Callable[..., Any]) -> Callable[..., Any]:
    """Set the lane on which a call runs, in the attribute that gRPC reads."""
    behaviour = partial(call)
    behaviour.experimental_thread_pool = lane  # type: ignore[attr-defined]  # it has no stub
    return behaviour
