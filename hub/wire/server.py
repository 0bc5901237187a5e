"""The server: a store behind gRPC, with limits, a health check and a clean shutdown.

The default address is the loopback interface; any other address needs TLS, unless ``allow_plaintext`` is set.
Reflection is off. Health is the standard service ``grpc.health.v1.Health``, which needs no token: it reports only
whether the hub serves.

When it stops, no new call is accepted, the calls in progress end, streams acknowledge what they appended, and only then
is it closed. Acknowledged messages are on the disk in any case: they were before the acknowledgement was sent.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hub.certificates import ServerTLS, absolute_address, keep_unused, require_private, use_grpc, validity_of
from hub.store import Counts, Store
from hub.tokens import Tokens
from hub.wire.access import Guard
from hub.wire.frames import BATCH_BYTES, MAX_MESSAGE_BYTES
from hub.wire.service import Limits, Service
from sej.checks import PATH, POSITIVE_SECONDS, Seconds, between, instance_of, optional, require, seconds
from sej.fork import notice_fork, watch_forks
from sej.system.disk import spare_files
from sej.system.lifecycle import Closing
from sej.system.process import keep_freed_up_to

_SERVICES: Final = ("", "hub.Hub")
ANSWER_BYTES: Final = 1 << 28
"""The default memory of all answers."""
_MAX_ANSWER_BYTES: Final = 1 << 22
_LEAST_BYTES: Final = 1 << 20

_HANDSHAKE_MS: Final = 10_000
"""How long a new connection may take until its caller speaks HTTP/2."""


class Server(Closing):
    """Serves a store; starts when it is created.

    Attributes:
        address: the address that it listens on, with the actual port.
        service: the calls, with their counts.
        store: the store.

    Example:
        >>> import tempfile, hub
        >>> from hub.wire import Server
        >>> with hub.Store(tempfile.mkdtemp()) as store, Server(store, "127.0.0.1:0") as server:
        ...     server.address.startswith("127.0.0.1:")
        True
    """

    def __init__(
        self,
        store: Store,
        address: str = "127.0.0.1:7890",
        *,
        tls: ServerTLS | None = None,
        tokens: Tokens | str | os.PathLike[str] | None = None,
        allow_plaintext: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_answer_bytes: int = _MAX_ANSWER_BYTES,
        answer_bytes: int = ANSWER_BYTES,
        max_calls: int = 4096,
        max_streams: int = 256,
        max_followers: int = 256,
        max_copiers: int = 256,
        threads: int = 32,
        wait_s: Seconds = 30.0,
        stall_s: Seconds = 10.0,
        idle_s: Seconds = 120.0,
        keepalive_s: Seconds = 30.0,
        grace_s: Seconds = 30.0,
    ) -> None:
        """Listen and serve.

        Args:
            store: the store; the caller closes it after the server.
            address: ``host:port``; port 0 takes a free one. Or ``unix:path`` for a Unix socket.
            tls: certificate and key; with ``client_ca`` callers send theirs, whose common name is their client id.
            tokens: a file of tokens, or :class:`Tokens`; None: every caller is accepted.
            allow_plaintext: listen beyond the loopback interface without TLS.
            max_message_bytes: the most bytes of one request or answer. A larger message of a journal is not sent.
            max_answer_bytes: the most bytes of one answer, whatever the caller requests; it requests the rest again. A
                larger message is sent alone.
            answer_bytes: the memory of all answers to readers together: those that are being built, and those that
                their callers have not received yet. At least 1 MiB.
            max_calls: calls of one kind (puts, gets, reading streams, copying streams, others) at one time, including
                waiting ones; further calls are refused with "try again later".
            max_streams: Read calls, such as those of Spark tasks, at one time; further ones wait in a queue. Each holds
                a thread.
            max_followers: Follow calls at one time; each holds a thread. They do not end by themselves, so further ones
                are refused with "try again later".
            max_copiers: copying streams at one time; each holds a thread.
            threads: threads for puts.
            wait_s: how long a reader waits for memory, if its deadline allows that, before it is refused.
            stall_s: a reader that does not receive its answer for this long is disconnected, if others wait.
            idle_s: a copying client that sends nothing for this long is disconnected.
            keepalive_s: seconds between pings of a silent connection.
            grace_s: how long the calls in progress may take when the server stops.

        Raises:
            ValueError: the address is not the loopback interface, and there is no TLS, or its files are not PEM; a
                limit is out of range, or the address has no port.
            OSError: the address is not available, or a file cannot be read.
            AccessError: the file of tokens has a bad line, or others may write it.
            SejError: the server's certificate has expired, or is not valid yet.
            LockedError: another process serves this root.
        """
        keepalive_s, grace_s = seconds("keepalive_s", keepalive_s), seconds("grace_s", grace_s)
        require(address=address, allow_plaintext=allow_plaintext, keepalive_s=keepalive_s, grace_s=grace_s)
        require(store=(store, instance_of(Store)), tls=(tls, optional(instance_of(ServerTLS))))
        require(tokens=(tokens, optional(instance_of(Tokens, str, os.PathLike))))
        if isinstance(tokens, str):
            PATH("tokens", tokens)
        absolute_address(address)
        require_private(address, tls, allow_plaintext=allow_plaintext)
        limits = Limits(
            threads, max_calls, max_streams, max_followers, max_copiers, max_message_bytes, max_answer_bytes,
            answer_bytes, seconds("wait_s", wait_s), seconds("stall_s", stall_s), seconds("idle_s", idle_s),
        )  # fmt: skip
        for name, value in limits._asdict().items():
            if not name.endswith("_s"):
                between(_LEAST_BYTES if name == "answer_bytes" else 1)(name, value)
                continue
            POSITIVE_SECONDS(name, value)
            if value == float("inf"):
                raise ValueError(f"{name} must be more than 0 seconds, got {value}")
        if tokens is not None and not isinstance(tokens, Tokens):
            tokens = Tokens(tokens)
        credentials = None
        if tls is not None:
            key, certificate, ca = tls.pem()
            credentials = grpc.ssl_server_credentials([(key, certificate)], ca, ca is not None)
        self.certificate_times = validity_of(tls and tls.certificate)
        self.store = store
        self._grace_s = grace_s
        self._stopped = False
        self._root = ExitStack()
        self._root.enter_context(store.serving())
        guard = Guard(tokens, mutual=tls is not None and tls.client_ca is not None)
        self.service = Service(store, guard, limits)
        use_grpc("a hub's server")
        watch_forks(self)
        keep_freed_up_to(2 * BATCH_BYTES)
        self._server = grpc.server(
            self.service.lane("look"),  # for other services, such as health
            handlers=[self.service],
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_allowed_incoming_connections", max(spare_files() // 2, 1)),
                ("grpc.so_reuseport", 0),  # otherwise two servers on one port would share its callers
                ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.ping_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            self.service.close()
            self._root.close()
            raise OSError(f"cannot listen on {address}: {_refusal(address) or error}") from error
        host, colon, _ = address.rpartition(":")
        self.address = absolute_address(address) if address.startswith("unix") else f"{host}{colon}{port}"
        self._server.start()
        self._say(health_pb2.HealthCheckResponse.SERVING)

    @property
    def root(self) -> str:
        """The store's root."""
        return self.store.root

    def counts(self) -> Counts:
        """Return what the server has counted since it was started, for metrics."""
        return self.service.counts()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the server has stopped; return False after the timeout."""
        timeout = seconds("timeout", timeout)
        return not self._server.wait_for_termination(timeout)

    def close(self) -> None:
        """Finish the calls in progress, acknowledge what streams appended, and close. A second call does nothing."""
        notice_fork()
        if self._stopped:
            return
        self._stopped = True
        self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        stopped = self._server.stop(self._grace_s)
        self.service.stop()
        stopped.wait()
        self.service.close()
        self._root.close()

    def _after_fork(self) -> None:
        self._stopped = True
        keep_unused(self._server)

    def __repr__(self) -> str:
        """Show the address."""
        return f"<hub.wire.Server {self.address}>"

    def _say(self, status: int) -> None:
        for name in _SERVICES:
            self._health.set(name, status)


def _refusal(address: str) -> str | None:
    """Return why the system refuses an address, because gRPC does not say; None if it does not refuse it."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as found:
            found.bind(place)
    except OSError as error:
        return error.strerror
    except ValueError:  # not host:port
        return None
    return None
