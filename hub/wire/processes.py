"""The processes of one hub, which serve one root on one port, and the calls between them.

The kernel gives each connection to one of the processes (``SO_REUSEPORT``). Whatever a process keeps in memory is its
own, so the few things that concern all of them are calls on a Unix socket, in a folder that only this user can enter:

=========  ===================  ====================================================================================
call       is answered by       meaning
=========  ===================  ====================================================================================
Release    all other processes  close the writer of a journal (:mod:`hub.siblings`)
Hold       process 0            a call of a named reader: its caller was checked; process 0 has all leases
Refuse     all other processes  a job was aborted: its tasks are refused
Count      all, for metrics     :class:`hub.wire.counts.Counts`
=========  ===================  ====================================================================================

Everything else is on the disk, under locks that end with their process: journals, kept offsets, staged rows, decisions
of jobs, and the bytes that each client uses.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self

import grpc

from hub.naming import Source
from hub.siblings import ASK_S
from hub.store import Store
from hub.wire.counts import Counts, encoded

__all__ = ["Processes", "ask_counts"]

_SERVICE: Final = "hub.Processes"
_COUNT_S: Final = 2.0
_HOLD_S: Final = 60.0
_STOP_S: Final = 1.0
_THREADS: Final = 32
_THREADS_EACH: Final = 8
"""In addition for each process: as many as it has for calls of named readers, so that those cannot delay the others."""
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # A process that was replaced is there again after a second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long a connection may take
    ("grpc.max_reconnect_backoff_ms", 500),
]

_Call = Callable[[bytes, grpc.ServicerContext], bytes]


class Processes:
    """The other processes, as one of them sees them."""

    def __init__(self, folder: str, number: int, count: int) -> None:
        """Connect to nothing yet.

        Args:
            folder: the folder of the sockets.
            number: of this process.
            count: how many processes there are.
        """
        self.counts = os.path.join(folder, "counts")
        self._address = _address(folder, number)
        self._started = uuid.uuid4().hex
        self._channels = {
            each: grpc.insecure_channel(_address(folder, each), options=_OPTIONS)
            for each in range(count)
            if each != number
        }
        self._server: grpc.Server | None = None

    @property
    def has_readers(self) -> bool:
        """Whether this process has the leases of named readers."""
        return 0 not in self._channels

    def serve(
        self, store: Store, hold: _Call, refuse: Callable[[str, str], object], counts: Callable[[], Counts]
    ) -> None:
        """Answer the calls of the others, until :meth:`close`.

        Args:
            store: releases journals.
            hold: answers Hold.
            refuse: refuses the tasks of a client's job.
            counts: returns the counts of this process.
        """

        def release(data: bytes, _: object) -> bytes:
            client, journal = data.decode().split("\n")
            return b"1" if store.release(client, journal) else b""

        def refused(data: bytes, _: object) -> bytes:
            refuse(*data.decode().split("\n"))
            return b""

        calls: Mapping[str, _Call] = {
            "Release": release,
            "Hold": hold,
            "Refuse": refused,
            "Count": lambda _, __: encoded(self._started, counts()),
        }
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()
        }
        threads = _THREADS + _THREADS_EACH * len(self._channels)
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="hub-processes"),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, methods)],
            options=_OPTIONS,
        )
        self._server.add_insecure_port(self._address)
        self._server.start()

    def ask(self, source: Source) -> bool:
        """Ask like :meth:`hub.siblings.Siblings.ask`."""
        data = "\n".join(source).encode()
        futures = [_method(channel, "Release").future(data, timeout=ASK_S) for channel in self._channels.values()]
        found = False
        for future in futures:
            try:
                found |= bool(future.result())
            except grpc.RpcError:  # it has ended, and with it its locks, or it is about to start
                found = True
        return found

    def hold(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Let the process that has the leases answer a call of a named reader; its status becomes this call's.

        The call may be repeated after a lost answer, so it is, if that process ends.
        """
        deadline = time.monotonic() + min(context.time_remaining() or _HOLD_S, _HOLD_S)
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            try:
                answer: bytes = _method(self._channels[0], "Hold")(data, timeout=left_s, wait_for_ready=True)
            except grpc.RpcError as error:
                call: Any = error
                metadata = call.trailing_metadata() or ()
                if call.code() is grpc.StatusCode.UNAVAILABLE and not any(key == "sej-error" for key, _ in metadata):
                    continue
                context.set_trailing_metadata(metadata)
                context.abort(call.code(), call.details() or "")
            return answer

    def refuse(self, client: str, job: str) -> None:
        """Tell the others that a job was aborted. A process that does not answer has ended, with its calls."""
        data = f"{client}\n{job}".encode()
        futures = [
            _method(channel, "Refuse").future(data, timeout=ASK_S, wait_for_ready=True)
            for channel in self._channels.values()
        ]
        for future in futures:
            with suppress(grpc.RpcError):
                future.result()

    def close(self) -> None:
        """End the calls of the others, and the connections to them."""
        if self._server is not None:
            self._server.stop(_STOP_S).wait()
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def ask_counts(folder: str, count: int) -> Callable[[], list[bytes | None]]:
    """Return a function that asks all processes of a hub for their counts; None: one did not answer."""
    channels = [grpc.insecure_channel(_address(folder, number), options=_OPTIONS) for number in range(count)]

    def ask() -> list[bytes | None]:
        futures = [_method(channel, "Count").future(b"", timeout=_COUNT_S) for channel in channels]
        found: list[bytes | None] = []
        for future in futures:
            try:
                found.append(future.result())
            except grpc.RpcError:
                found.append(None)
        return found

    return ask


def _address(folder: str, number: int) -> str:
    return f"unix:{os.path.join(folder, str(number))}"


def _method(channel: grpc.Channel, name: str) -> Any:
    return channel.unary_unary(f"/{_SERVICE}/{name}")
